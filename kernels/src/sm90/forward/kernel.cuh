// The forward kernel and its launch: one persistent block per multiprocessor, three warpgroups
// and the extra warps of the reader. The instance files include it and instantiate launch_forward.
// The warps of the first warpgroup make mask fragments, issue TMA loads (sm90/forward/load.cuh) and
// issue TMA stores (store.cuh). The second and third compute (sm90/forward/compute.cuh). The
// extra warps copy rows (kv_reader.cuh).
// Each role reallocates registers with setmaxnreg; shared memory is laid out by ForwardLayout. The
// order in which the roles stand in the source is forced by ptxas (C7511).
#pragma once

#include "ptx/grid.cuh"
#include "sm90/forward/compute.cuh"
#include "sm90/forward/kernels.hpp"
#include "sm90/forward/load.cuh"
#include "sm90/forward/store.cuh"

namespace fdma::sm90 {

/// Registers of each kind of thread: kLoad of the first warpgroup, kCompute of the computing ones,
/// kExtra of the warps of the reader.
template <class Score, class Reader>
struct Registers {
  static constexpr bool kIsCrowded = Reader::kExtraWarps > 0;
  static constexpr int kLoad = kIsCrowded && Score::kAddsKeyBias ? 88 : 72;
  static constexpr int kCompute = !kIsCrowded ? 216 : Score::kAddsKeyBias ? 192 : 200;
  static constexpr int kExtra = kIsCrowded ? 40 : 0;
  static_assert(kLoad + 2 * kCompute + kExtra <= (kIsCrowded ? 512 : 504), "65536 registers");
};

template <class Reader>
inline constexpr int kThreadsWith = kForwardThreads + kWarpSize* Reader::kExtraWarps;

template <class T, class Score, class Weight, class Reader, int kDimQk, int kDimV>
__global__ void __launch_bounds__(kThreadsWith<Reader>, 1)
    forward_kernel(const __grid_constant__ WithArguments<ForwardParams, Score> p) {
  using Layout = ForwardLayout<kDimQk, kDimV>;
  using Count = Registers<Score, Reader>;
  extern __shared__ std::uint8_t memory[];
  const std::uint32_t base = (ptx::shared_address(memory) + Layout::kAlignment - 1) &
                             ~static_cast<std::uint32_t>(Layout::kAlignment - 1);
  constexpr bool kTerms = kHasBiasTerms<T, Score, Reader>;
  if constexpr (kTerms) {
    for (int i = static_cast<int>(threadIdx.x) * 16; i < Layout::kTermBytes;
         i += static_cast<int>(blockDim.x) * 16) {
      store_words(base + Layout::kTermZeros + i, make_uint4(0, 0, 0, 0));
    }
    ptx::fence_async_shared();
  }
  if (threadIdx.x == 0) {
    ptx::let_next_grid_start();
    const auto init = [&](int first, int count, std::uint32_t num_insertions) {
      for (int i = 0; i < count; ++i) ptx::mbarrier_init(base + first + 8 * i, num_insertions);
    };
    init(Layout::kQFull, Layout::kQBuffers, 1);
    // Released by the thread that stores, or by the warps that compute.
    init(Layout::kQEmpty, Layout::kQBuffers,
         Layout::kQBuffers == 2 ? 1 : kComputeWarps * ptx::kWarpInsertions);
    init(Layout::kOutFull, 2 * Layout::kQBuffers, kComputeWarps / 2 * ptx::kWarpInsertions);
    init(Layout::kKFull, Layout::kStages, 1 + Reader::kInsertions);
    init(Layout::kKEmpty, Layout::kStages, kComputeWarps * ptx::kWarpInsertions);
    init(Layout::kVFull, Layout::kStages, ptx::kWarpInsertions + Reader::kInsertions);
    init(Layout::kVEmpty, Layout::kStages, kComputeWarps * ptx::kWarpInsertions);
    init(Layout::kVTail, Layout::kStages * kMaskWarps, 1);
    init(Layout::kMaskFull, Layout::kMaskSlots, ptx::kWarpInsertions);
    init(Layout::kMaskEmpty, Layout::kMaskSlots, kComputeWarps * ptx::kWarpInsertions);
    init(Layout::kWorkTileFull, Layout::kWorkTileSlots, 1);
    init(Layout::kWorkTileEmpty, Layout::kWorkTileSlots,
         (kComputeWarps + kMaskWarps + Reader::kExtraWarps) * ptx::kWarpInsertions +
             (Layout::kQBuffers == 2 ? 1 : 0));
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  // In this order of the roles ptxas has registers for all products (otherwise C7511).
  if constexpr (Reader::kExtraWarps > 0) {
    if (ptx::warp_index() >= kForwardThreads / kWarpSize) {
      ptx::decrease_registers<Count::kExtra>();
      Reader::template run<Layout>(p, base,
                                   ptx::thread_index() % (kWarpSize * Reader::kExtraWarps));
      return;
    }
  }
  if (ptx::warp_index() < 4) {
    ptx::decrease_registers<Count::kLoad>();
    const int warp = ptx::warp_index(), lane = ptx::thread_index() % 32;
    if (warp < kMaskWarps) {
      make_masks<Layout, Score, Reader, kTerms>(p, base, warp, lane);
    } else if (warp == kMaskWarps) {
      if (lane == 0) load_tiles<Layout, Score, Weight, Reader>(p, base);
    } else if constexpr (Layout::kQBuffers == 2) {
      if (lane == 0) store_tiles<Layout>(p, base);
    }
  } else {
    ptx::increase_registers<Count::kCompute>();
    compute_rows<T, Score, Weight, Reader, kDimQk, kDimV>(
        p, p.arguments(), base, ptx::warp_index() / 4 - 1, ptx::thread_index() % kWarpgroupThreads);
  }
}

template <class T, class Score, class Weight, class Reader, int kDimQk, int kDimV>
cudaError_t launch_forward(const ForwardParams& params, const ScoreNumbers& numbers, int num_blocks,
                           cudaStream_t stream) {
  using Layout = ForwardLayout<kDimQk, kDimV>;
  constexpr int kBytes = kHasBiasTerms<T, Score, Reader> ? Layout::kBytesWithTerms : Layout::kBytes;
  const auto kernel = forward_kernel<T, Score, Weight, Reader, kDimQk, kDimV>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return ptx::launch_overlapping(
      kernel, dim3(static_cast<unsigned>(num_blocks)), dim3(kThreadsWith<Reader>), kBytes, stream,
      WithArguments<ForwardParams, Score>{params, Score::arguments(numbers)});
}

}  // namespace fdma::sm90
