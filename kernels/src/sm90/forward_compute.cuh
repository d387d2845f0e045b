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

inline constexpr int kOrderThreads = 2 * kWarpgroupThreads;

/// Writes a warpgroup's 64 rows of output, to the half of Q's buffer from where store_tiles takes
/// them, or to memory if they are not the copy engine's to store; and lse.
template <class T, int kHeadDim>
__device__ __forceinline__ void write_rows_out(const ForwardParams& p, const PublishedItem& item,
                                               const float (&out)[kHeadDim / 2],
                                               const float (&lse)[2], std::uint32_t q_half,
                                               int group, int thread) {
  const int lane = thread % 32;
  const int first_row = item.q_begin + group * kHalfRows;
  const int row = first_row + thread / 32 * 16 + lane / 4;
  if (is_stored_by_copy(p, item, group)) {
    const int stored_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      const int col = j * 16 + lane / 16 * 8;
      ptx::stmatrix_x4(q_half + swizzled_offset(stored_row, col, kHalfRows),
                       ptx::pack<T>(out[8 * j], out[8 * j + 1]),
                       ptx::pack<T>(out[8 * j + 2], out[8 * j + 3]),
                       ptx::pack<T>(out[8 * j + 4], out[8 * j + 5]),
                       ptx::pack<T>(out[8 * j + 6], out[8 * j + 7]));
    }
    ptx::fence_async_shared();
  } else {
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
///
/// Items follow each other without a gap: the scores of the next item's first tile are issued with
/// the last product of this one, whose output is written while they are computed.
template <class T, int kHeadDim, bool kGeneral>
__device__ __forceinline__ void compute_rows(const ForwardParams& p, std::uint32_t base, int group,
                                             int thread) {
  using Layout = ForwardLayout<kHeadDim>;
  using ScoreProduct = ptx::product<T, kTileKeys>;
  using OutProduct = ptx::product<T, kHeadDim>;
  constexpr int kStages = Layout::kStages;
  constexpr std::uint64_t kStageAdvance = Layout::kTileBytes / 16;
  const int lane = thread % 32;
  const std::uint64_t k_descriptor = matrix_descriptor(base + Layout::kK, 16, 1024);
  const std::uint64_t v_descriptor =
      matrix_descriptor(base + Layout::kV, kTileKeys * kPanelRowBytes, 1024);

  float s[kTileKeys / 2], out[kHeadDim / 2];
  std::uint32_t probabilities[kTileKeys / 16][4];
  RowState state{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  ptx::Ring<Layout::kMaskSlots> slots;
  ptx::Ring<Layout::kQBuffers> q_ring;
  ptx::Ring<Layout::kItemSlots> item_ring;
  int tile = 0;  // counted over all items: gives stages and phases
  std::uint32_t q_half = base + Layout::kQ + group * (Layout::kQBytes / 2);

  const auto release = [&](std::uint32_t barrier) { ptx::mbarrier_arrive_warp(barrier, lane); };
  const auto stage_of = [](int index) { return index % kStages; };
  const auto phase_of = [](int index) { return static_cast<std::uint32_t>(index / kStages) & 1; };
  // Tiles of the next item, or kNoItem. What else is known of it stays in shared memory until its
  // output is stored.
  const auto wait_for_item = [&] {
    ptx::mbarrier_wait(base + Layout::kItemFull + 8 * item_ring.stage, item_ring.phase,
                       "compute: item full");
    int tiles;
    asm volatile("ld.shared.b32 %0, [%1];"
                 : "=r"(tiles)
                 : "r"(base + Layout::kItem + item_ring.stage * Layout::kItemBytes)
                 : "memory");
    return tiles;
  };
  const auto wait_for_scores_input = [&](bool is_first_tile) {
    if (is_first_tile) {
      ptx::mbarrier_wait(base + Layout::kQFull + 8 * q_ring.stage, q_ring.phase, "compute: Q full");
    }
    ptx::mbarrier_wait(base + Layout::kKFull + 8 * stage_of(tile), phase_of(tile),
                       "compute: K full");
  };
  const auto issue_scores = [&] {
    const std::uint64_t q = matrix_descriptor(q_half, 16, 1024);
    const std::uint64_t k = k_descriptor + stage_of(tile) * kStageAdvance;
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      ScoreProduct::template shared<ptx::Major::k, ptx::Major::k>(
          s, q + k_major_advance(step, kHalfRows), k + k_major_advance(step, kTileKeys), step != 0);
    }
    ptx::wgmma_commit();
  };
  // Of the tile before.
  const auto issue_out = [&] {
    const int stage = stage_of(tile - 1);
    ptx::mbarrier_wait(base + Layout::kVFull + 8 * stage, phase_of(tile - 1), "compute: V full");
    const std::uint64_t v = v_descriptor + stage * kStageAdvance;
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      OutProduct::template registers<ptx::Major::mn>(out, probabilities[step],
                                                     v + mn_major_advance(step), 1);
    }
    ptx::wgmma_commit();
  };
  // The mask of the tile in hand, read while its product runs.
  bool is_masked = false;
  std::uint32_t word0 = 0, word1 = 0;
  const auto read_mask = [&] {
    int flag;
    asm volatile("ld.shared.b32 %0, [%1];"
                 : "=r"(flag)
                 : "r"(base + Layout::kIsMasked + 4 * stage_of(tile))
                 : "memory");
    is_masked = flag != 0;
    if (!kGeneral && !is_masked) return;
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

  int num_tiles = wait_for_item();
  if (num_tiles == kNoItem) return;
  if (group == 0) ptx::named_barrier_arrive(kOrderBarrier + 1, kOrderThreads);
  wait_for_scores_input(true);
  issue_scores();
  read_mask();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(s);
  softmax();
  release(base + Layout::kKEmpty + 8 * stage_of(tile));
  pack();
  ++tile;
  for (;;) {
#pragma unroll
    for (float& x : out) x = 0.0f;
#pragma unroll 1
    for (int n = 1; n < num_tiles; ++n, ++tile) {
      wait_for_scores_input(false);
      ptx::named_barrier_sync(kOrderBarrier + group, kOrderThreads);
      issue_scores();
      issue_out();
      ptx::named_barrier_arrive(kOrderBarrier + 1 - group, kOrderThreads);
      read_mask();
      ptx::wgmma_wait<1>();
      ptx::pin_registers(s);
      const float2 factor = softmax();
      release(base + Layout::kKEmpty + 8 * stage_of(tile));
      ptx::wgmma_wait<0>();
      ptx::pin_registers(out);
      release(base + Layout::kVEmpty + 8 * stage_of(tile - 1));
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

    // The last product of this item and the first of the next. After the last item the scores are
    // those of whatever lies in shared memory, and not used.
    const int item_slot = item_ring.stage;
    item_ring.advance();
    num_tiles = wait_for_item();
    const bool has_next = num_tiles != kNoItem;
    const std::uint32_t q_before = q_half;
    const std::uint32_t out_full = base + Layout::kOutFull + 8 * (2 * q_ring.stage + group);
    q_ring.advance();
    q_half = base + Layout::kQ + q_ring.stage * Layout::kQBytes + group * (Layout::kQBytes / 2);
    if (has_next) wait_for_scores_input(true);
    ptx::named_barrier_sync(kOrderBarrier + group, kOrderThreads);
    issue_scores();
    issue_out();
    ptx::named_barrier_arrive(kOrderBarrier + 1 - group, kOrderThreads);
    float inverse[2], lse[2];
    finish_rows(state, kGeneral ? 1.0f : p.scale_log2, inverse, lse);
    state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    if (has_next) read_mask();
    ptx::wgmma_wait<1>();
    ptx::pin_registers(s);
    if (has_next) {
      softmax();
      release(base + Layout::kKEmpty + 8 * stage_of(tile));
    }
    ptx::wgmma_wait<0>();
    ptx::pin_registers(out);
    release(base + Layout::kVEmpty + 8 * stage_of(tile - 1));
    pack();
    ++tile;
    normalize(out, inverse);
    const PublishedItem item = read_item(base + Layout::kItem + item_slot * Layout::kItemBytes);
    __syncwarp();
    release(base + Layout::kItemEmpty + 8 * item_slot);
    write_rows_out<T, kHeadDim>(p, item, out, lse, q_before, group, thread);
    __syncwarp();
    release(out_full);
    if (!has_next) break;
  }
  if (group == 1) ptx::named_barrier_sync(kOrderBarrier + 1, kOrderThreads);
}

}  // namespace fdma::sm90
