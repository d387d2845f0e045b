// The two warpgroups that compute: each 64 query rows of an item against all its key tiles.
//
// Products of one tile overlap the softmax of another in two ways. Inside a warpgroup S = Q K^T of
// tile n is issued, then O += P V of tile n - 1, and the softmax of tile n runs while the second
// product does. Between the warpgroups a pair of named barriers makes them take turns in issuing,
// so that one computes its softmax while the products of the other run.
#pragma once

#include <cstdint>

#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/forward_load.cuh"
#include "sm90/forward_params.hpp"
#include "sm90/forward_softmax.cuh"
#include "sm90/fragment.hpp"

namespace fdma::sm90 {

inline constexpr int kGroupRows = 64;
inline constexpr int kOrderThreads = 2 * kWarpgroupThreads;

/// Writes a warpgroup's 64 rows of output and lse. `out` holds O / sum already.
template <class T, int kHeadDim>
__device__ __forceinline__ void store_rows(const ForwardParams& p, const PublishedItem& item,
                                           const float (&out)[kHeadDim / 2], const float (&lse)[2],
                                           std::uint32_t q_half, std::uint32_t q_empty, int group,
                                           int thread) {
  const int lane = thread % 32;
  const int first_row = item.q_begin + group * kGroupRows;
  const int row = first_row + thread / 32 * 16 + lane / 4;
  // The copy engine cuts at the end of the tensor. Where an element ends before, threads store.
  if (first_row + kGroupRows <= item.q_len || p.out_rows == item.q_len) {
    const int stored_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      const int col = j * 16 + lane / 16 * 8;
      ptx::stmatrix_x4(q_half + swizzled_offset(stored_row, col, kGroupRows),
                       ptx::pack<T>(out[8 * j], out[8 * j + 1]),
                       ptx::pack<T>(out[8 * j + 2], out[8 * j + 3]),
                       ptx::pack<T>(out[8 * j + 4], out[8 * j + 5]),
                       ptx::pack<T>(out[8 * j + 6], out[8 * j + 7]));
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(kStore + group, kWarpgroupThreads);
    if (thread == 0) {
      ptx::tma_store_5d(&p.out_map, q_half, 0, first_row, 0, item.head, item.batch);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
      ptx::mbarrier_arrive(q_empty);
    }
  } else {
    ptx::named_barrier_sync(kStore + group, kWarpgroupThreads);
    if (thread == 0) ptx::mbarrier_arrive(q_empty);
    T* base = static_cast<T*>(p.out) + item.batch * p.out_batch_stride +
              item.head * p.out_head_stride + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + 8 * i >= item.q_len) continue;
      T* to = base + (row + 8 * i) * p.out_row_stride;
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        *reinterpret_cast<std::uint32_t*>(to + 8 * j) =
            ptx::pack<T>(out[4 * j + 2 * i], out[4 * j + 2 * i + 1]);
      }
    }
  }
  if (p.lse != nullptr && lane % 4 == 0) {
    float* to = p.lse + item.batch * p.lse_batch_stride + item.head * p.lse_head_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + 8 * i < item.q_len) to[(row + 8 * i) * p.lse_row_stride] = lse[i];
    }
  }
}

/// Computes items until there are none. One of two warpgroups.
template <class T, int kHeadDim, bool kGeneral>
__device__ __forceinline__ void compute_rows(const ForwardParams& p, std::uint32_t base, int group,
                                             int thread) {
  using Layout = ForwardLayout<kHeadDim>;
  using ScoreProduct = ptx::product<T, kTileKeys>;
  using OutProduct = ptx::product<T, kHeadDim>;
  constexpr int kStages = Layout::kStages;
  constexpr float kLn2 = 0.693147180559945309417f;
  const int lane = thread % 32;
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  };
  const std::uint64_t k_descriptor = matrix_descriptor(base + Layout::kK, 16, 1024);
  const std::uint64_t v_descriptor =
      matrix_descriptor(base + Layout::kV, kTileKeys * kPanelRowBytes, 1024);
  constexpr std::uint64_t kStageAdvance = Layout::kTileBytes / 16;

  if (group == 0) ptx::named_barrier_arrive(kOrder + 1, kOrderThreads);
  int tiles_before = 0;  // of all items so far: gives stages and phases
  ptx::Ring<Layout::kMaskSlots> slots;
  ptx::Ring<Layout::kQBuffers> q_ring;
  std::uint32_t item_phase = 0;
  for (;; q_ring.advance()) {
    ptx::mbarrier_wait(base + Layout::kItemFull, item_phase, "compute: item full");
    const PublishedItem item = read_item(base + Layout::kItem);
    __syncwarp();
    release(base + Layout::kItemEmpty);
    item_phase ^= 1;
    if (item.num_tiles < 0) break;

    const std::uint32_t q_half =
        base + Layout::kQ + q_ring.stage * Layout::kQBytes + group * (Layout::kQBytes / 2);
    const std::uint64_t q_descriptor = matrix_descriptor(q_half, 16, 1024);
    float s[kTileKeys / 2], out[kHeadDim / 2];
    std::uint32_t probabilities[kTileKeys / 16][4];
    RowState state{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (float& x : out) x = 0.0f;

    const auto stage_of = [](int tile) { return tile % kStages; };
    const auto phase_of = [](int tile) { return static_cast<std::uint32_t>(tile / kStages) & 1; };
    const auto issue_scores = [&](int stage) {
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
        ScoreProduct::template shared<ptx::Major::k, ptx::Major::k>(
            s, q_descriptor + k_major_advance(step, kGroupRows),
            k_descriptor + stage * kStageAdvance + k_major_advance(step, kTileKeys), step != 0);
      }
      ptx::wgmma_commit();
    };
    const auto issue_out = [&](int stage) {
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kTileKeys / 16; ++step) {
        OutProduct::template registers<ptx::Major::mn>(
            out, probabilities[step],
            v_descriptor + stage * kStageAdvance + mn_major_advance(step), 1);
      }
      ptx::wgmma_commit();
    };
    // The mask of the tile in hand, read while its product runs.
    bool is_masked = false;
    std::uint32_t word0 = 0, word1 = 0;
    const auto read_mask = [&](int stage) {
      int flag;
      asm volatile("ld.shared.b32 %0, [%1];"
                   : "=r"(flag)
                   : "r"(base + Layout::kIsMasked + 4 * stage)
                   : "memory");
      is_masked = flag != 0;
      if (!is_masked) return;
      ptx::mbarrier_wait(base + Layout::kMaskFull + 8 * slots.stage, slots.phase,
                         "compute: mask full");
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(word0), "=r"(word1)
                   : "r"(base + Layout::kMask + slots.stage * Layout::kMaskBytes +
                         (group * kWarpgroupThreads + thread) * 8)
                   : "memory");
      if constexpr (!kGeneral) {
        __syncwarp();
        release(base + Layout::kMaskEmpty + 8 * slots.stage);
        slots.advance();
      }
    };
    const auto softmax = [&]() -> float2 {
      if constexpr (kGeneral) {
        scale_and_bias(s, p.scale_log2,
                       base + Layout::kBias + slots.stage * Layout::kBiasBytes + lane % 4 * 8);
        __syncwarp();
        release(base + Layout::kMaskEmpty + 8 * slots.stage);
        slots.advance();
      }
      if (is_masked) apply_words(s, word0, word1);
      return softmax_step(s, state, kGeneral ? 1.0f : p.scale_log2);
    };
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < kTileKeys / 4; ++i) {
        probabilities[i / 4][i % 4] = ptx::pack<T>(s[2 * i], s[2 * i + 1]);
      }
    };

    ptx::mbarrier_wait(base + Layout::kQFull + 8 * q_ring.stage, q_ring.phase, "compute: Q full");
    {
      const int stage = stage_of(tiles_before);
      ptx::mbarrier_wait(base + Layout::kKFull + 8 * stage, phase_of(tiles_before),
                         "compute: first K full");
      issue_scores(stage);
      read_mask(stage);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
      softmax();
      release(base + Layout::kKEmpty + 8 * stage);
      pack();
    }
#pragma unroll 1
    for (int n = 1; n < item.num_tiles; ++n) {
      const int tile = tiles_before + n;
      const int stage = stage_of(tile), previous = stage_of(tile - 1);
      ptx::mbarrier_wait(base + Layout::kKFull + 8 * stage, phase_of(tile), "compute: K full");
      ptx::named_barrier_sync(kOrder + group, kOrderThreads);
      issue_scores(stage);
      ptx::mbarrier_wait(base + Layout::kVFull + 8 * previous, phase_of(tile - 1),
                         "compute: V full");
      issue_out(previous);
      ptx::named_barrier_arrive(kOrder + 1 - group, kOrderThreads);
      read_mask(stage);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(s);
      const float2 factor = softmax();
      release(base + Layout::kKEmpty + 8 * stage);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(out);
      release(base + Layout::kVEmpty + 8 * previous);
      pack();
      if (__any_sync(~0u, factor.x != 1.0f || factor.y != 1.0f)) {
#pragma unroll
        for (int i = 0; i < kHeadDim / 8; ++i) {
          out[4 * i] *= factor.x;
          out[4 * i + 1] *= factor.x;
          out[4 * i + 2] *= factor.y;
          out[4 * i + 3] *= factor.y;
        }
      }
    }
    {
      const int last = tiles_before + item.num_tiles - 1;
      const int stage = stage_of(last);
      ptx::mbarrier_wait(base + Layout::kVFull + 8 * stage, phase_of(last), "compute: last V full");
      issue_out(stage);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(out);
      release(base + Layout::kVEmpty + 8 * stage);
    }
    tiles_before += item.num_tiles;

    float lse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = state.sum[i];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      // Rows without keys are 0 whatever V holds; a sum that is NaN stays one.
      const float inverse = 1.0f / sum;
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = out[4 * j + 2 * i + e];
          x = sum == 0.0f ? 0.0f : x * inverse;
        }
      }
      lse[i] = sum == 0.0f ? -INFINITY
                           : (state.max[i] * (kGeneral ? 1.0f : p.scale_log2) + log2f(sum)) * kLn2;
    }
    store_rows<T, kHeadDim>(p, item, out, lse, q_half, base + Layout::kQEmpty + 8 * q_ring.stage,
                            group, thread);
  }
  if (thread == 0) ptx::bulk_wait<0>();
}

}  // namespace fdma::sm90
