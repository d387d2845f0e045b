// The main backward kernel and its launch: persistent blocks of three warpgroups. The instance
// files include it and instantiate launch_backward. The first warpgroup loads (sm90/backward/load.cuh,
// over worklist keys with worklist.cuh), the others compute (sm90/backward/compute.cuh). Each role
// reallocates registers with setmaxnreg.
#pragma once

#include "ptx/grid.cuh"
#include "sm90/backward/compute.cuh"
#include "sm90/backward/kernels.hpp"
#include "sm90/backward/load.cuh"

namespace fdma::sm90 {

template <class T, class Score, class Weight, class Reader, Gradients kGradients, int kDimQk,
          int kDimV>
__global__ void __launch_bounds__(kForwardThreads, 1)
    backward_kernel(const __grid_constant__ WithArguments<BackwardParams, Score> p) {
  using Layout = LayoutFor<kGradients, kDimQk, kDimV>;
  constexpr bool kTakesMore = kAsksForPlaces<Score, Weight> || Score::kBends;
  extern __shared__ std::uint8_t memory[];
  const std::uint32_t base = (ptx::shared_address(memory) + Layout::kAlignment - 1) &
                             ~static_cast<std::uint32_t>(Layout::kAlignment - 1);
  if (threadIdx.x == 0) {
    ptx::let_next_grid_start();
    const auto init = [&](int first, int count, std::uint32_t num_insertions) {
      for (int i = 0; i < count; ++i) {
        ptx::mbarrier_init(base + first + 8 * i, num_insertions * ptx::kWarpInsertions);
      }
    };
    constexpr int kStages = Layout::kStages;
    init(Layout::kKFull, 1, Reader::kKeyArrivals);
    init(Layout::kVFull, 1, 1);
    init(Layout::kKvEmpty, 1, kComputeWarps);
    init(Layout::kQFull, kStages, 1);
    init(Layout::kQEmpty, kStages, kComputeWarps);
    init(Layout::kOFull, kStages, 1);
    init(Layout::kOEmpty, kStages, kComputeWarps);
    init(Layout::kMaskFull, Layout::kMaskSlots, 1);
    init(Layout::kMaskEmpty, Layout::kMaskSlots, kComputeWarps);
    init(Layout::kHelperTaskEmpty, Layout::kHelperTaskSlots, 1);
    for (int i = 0; i < Layout::kWorkTileSlots; ++i) {
      ptx::mbarrier_init(base + Layout::kWorkTileFull + 8 * i, 1);
      // Released by the warps that make masks and by the thread that loads.
      ptx::mbarrier_init(base + Layout::kWorkTileEmpty + 8 * i,
                         kMaskWarps * ptx::kWarpInsertions + 1);
    }
    for (int i = 0; i < Layout::kHelperTaskSlots; ++i) {
      ptx::mbarrier_init(base + Layout::kHelperTaskFull + 8 * i, 1);
    }
    init(Layout::kKeysFull, Layout::kKeySlots, 1);
    init(Layout::kDqAccumFull, 1, Layout::kDqAccumWarps);
    ptx::mbarrier_init(base + Layout::kDqAccumEmpty, 1);
    for (int at = Layout::kDqPositions; at <= Layout::kZeroFillState; at += 16) {
      store_words(base + at, make_uint4(0, 0, 0, 0));
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (ptx::warp_index() < 4) {
    ptx::decrease_registers<kBackwardLoadRegisters<kGradients, Layout, Reader, kTakesMore>>();
    const int warp = ptx::warp_index(), lane = ptx::thread_index() % 32;
    // The loading thread comes first in the source: then ptxas keeps its counters in uniform
    // registers.
    if (warp == kLoadWarp) {
      if (lane == 0) {
        TileGroupLoader<Layout, Score, Reader, kHasZeroFill<Layout, kGradients>>(p, base).run();
      }
    } else if (warp == kHelperWarp) {
      run_helper_warp<Layout, Reader, kHasZeroFill<Layout, kGradients>>(p, base, lane);
    } else {
      Reader::template make_masks<Layout>(p, base, warp, lane);
    }
  } else {
    ptx::increase_registers<kBackwardComputeRegisters<kGradients, Layout, Reader, kTakesMore>>();
    compute_tile_groups<T, Score, Weight, Reader, kGradients, kDimQk, kDimV>(
        p, p.arguments(), base, ptx::warp_index() / 4 - 1);
  }
}

template <class T, class Score, class Weight, class Reader, Gradients kGradients, int kDimQk,
          int kDimV>
cudaError_t launch_backward(const BackwardParams& params, const ScoreNumbers& numbers,
                            int num_blocks, cudaStream_t stream) {
  using Layout = BackwardLayout<kDimQk, kDimV>;
  constexpr int kBytes =
      kHasZeroFill<Layout, kGradients> ? Layout::kBytesWithZeroFill : Layout::kBytes;
  const auto kernel = backward_kernel<T, Score, Weight, Reader, kGradients, kDimQk, kDimV>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return ptx::launch_overlapping(
      kernel, dim3(static_cast<unsigned>(num_blocks)), dim3(kForwardThreads), kBytes, stream,
      WithArguments<BackwardParams, Score>{params, Score::arguments(numbers)});
}

}  // namespace fdma::sm90
