// The two warpgroups that compute in the forward kernel. Each computes 64 query rows of a work tile
// against all key tiles of the work tile.
//
// Products of one tile overlap the softmax of another in two ways. Inside a warpgroup S = Q K^T of
// tile n is issued, then O += P V of tile n - 1, and the softmax of tile n begins while the second
// product runs. Between the warpgroups a pair of named barriers orders the issue of products, so
// that one has its softmax while the other's products run. The file is long, because its parts
// share registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/dropout.cuh"
#include "cuda/out_low.cuh"
#include "cuda/pair_values.cuh"
#include "cuda/quad_transpose.cuh"
#include "cuda/score.cuh"
#include "cuda/score_parts.cuh"
#include "cuda/softmax.cuh"
#include "ptx/addresses.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/forward/bias_terms.cuh"
#include "sm90/forward/load.cuh"
#include "sm90/forward/params.hpp"
#include "sm90/forward/store.cuh"
#include "sm90/shared/fragment.hpp"

namespace fdma::sm90 {

inline constexpr int kOrderThreads = 2 * kWarpgroupThreads;

/// The query and head of a row of a tile. Rows of a packed tile are the heads of a query, then the
/// heads of the next query.
struct RowPlace {
  int query, head;
  bool exists;
};
__device__ __forceinline__ RowPlace place_of(const ForwardParams& p, const BroadcastTile& work_tile,
                                             int row) {
  const int in_set = row & ((1 << p.plan.pack_shift) - 1);
  const int query = work_tile.q_begin + (row >> p.plan.pack_shift);
  return {query, work_tile.head + in_set, query < work_tile.q_len && in_set < work_tile.num_heads};
}

/// Writes two of a thread's consecutive values, as T or as float32.
template <class T>
__device__ __forceinline__ void write_pair(T* to, float a, float b) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(to) = make_float2(a, b);
  } else {
    *reinterpret_cast<std::uint32_t*>(to) = ptx::pack<T>(a, b);
  }
}

/// Writes a thread's part of a row from registers to memory; `to` is column 0.
template <int kDimV, class T>
__device__ __forceinline__ void write_row(T* to, const float (&out)[kDimV / 2], int i,
                                          int head_dim_v, int lane) {
  to += lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kDimV / 8; ++j) {
    if (8 * j < head_dim_v) write_pair(to + 8 * j, out[4 * j + 2 * i], out[4 * j + 2 * i + 1]);
  }
}

/// Writes the low half of a warpgroup's 64 rows of output to memory, 16 bytes a thread and store.
/// It does not pass through shared memory, because the Q buffer holds the output.
template <class T, int kDimV>
__device__ __forceinline__ void write_out_low(const ForwardParams& p,
                                              const BroadcastTile& work_tile,
                                              const float (&out)[kDimV / 2], int group,
                                              int thread) {
  const int lane = thread % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = group * kHalfRows + thread / 32 * 16 + lane / 4 + 8 * i;
    const RowPlace place = place_of(p, work_tile, row);
    T* const to =
        p.out_strides.row_of(static_cast<T*>(p.out_low), work_tile.batch, place.query, place.head) +
        lane % 4 * 8;
#pragma unroll
    for (int m = 0; m < kDimV / 32; ++m) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int reg = 4 * (4 * m + j) + 2 * i;
        words[j] = pack_out_low<T>(out[reg], out[reg + 1]);
      }
      transpose_in_quad(words, lane);
      if (place.exists && 32 * m + lane % 4 * 8 < p.head_dim_v) {
        *reinterpret_cast<uint4*>(to + 32 * m) = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

/// Puts a warpgroup's 64 rows of output into its half of the Q buffer, from where store_tiles takes
/// them.
template <class T, int kDimV>
__device__ __forceinline__ void put_rows_out(std::uint32_t q_half, const float (&out)[kDimV / 2],
                                             int thread) {
  const auto lane = static_cast<std::uint32_t>(thread) % 32,
             row = static_cast<std::uint32_t>(thread) / 32 * 16 + lane % 16;
  // For column 16 j, and the one 8 behind it, the swizzle changes bits 5 and 6 of the row's
  // address.
  const std::uint32_t first = q_half + row * kPanelRowBytes + ((lane / 16 ^ row % 8) << 4);
  constexpr int kOfPanel = kPanelColumns / 16;
#pragma unroll
  for (int j = 0; j < kDimV / 16; ++j) {
    ptx::stmatrix_x4(
        (first ^ j % kOfPanel * 32) + j / kOfPanel * (kHalfRows * kPanelRowBytes),
        ptx::pack<T>(out[8 * j], out[8 * j + 1]), ptx::pack<T>(out[8 * j + 2], out[8 * j + 3]),
        ptx::pack<T>(out[8 * j + 4], out[8 * j + 5]), ptx::pack<T>(out[8 * j + 6], out[8 * j + 7]));
  }
  ptx::fence_async_shared();
}

/// Writes a warpgroup's 64 rows of output to memory: as a partial result, or as rows that TMA may
/// not store.
template <class T, int kDimV>
__device__ __forceinline__ void write_rows_out(const ForwardParams& p,
                                               const BroadcastTile& work_tile,
                                               const float (&out)[kDimV / 2], const float (&lse)[2],
                                               int group, int thread) {
  const int lane = thread % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = group * kHalfRows + thread / 32 * 16 + lane / 4 + 8 * i;
    const RowPlace place = place_of(p, work_tile, row);
    if (!place.exists) continue;
    if (work_tile.partial != kWholeRow) {
      const std::int64_t at = std::int64_t{work_tile.partial} * kTileRows + row;
      write_row<kDimV>(p.partial_out + at * p.head_dim_v, out, i, p.head_dim_v, lane);
      if (lane % 4 == 0) p.partial_lse[at] = lse[i];
      continue;
    }
    write_row<kDimV>(
        p.out_strides.row_of(static_cast<T*>(p.out), work_tile.batch, place.query, place.head), out,
        i, p.head_dim_v, lane);
  }
}

/// Writes the logsumexp of a warpgroup's 64 rows to memory.
__device__ __forceinline__ void write_lse(const ForwardParams& p, const BroadcastTile& work_tile,
                                          const float (&lse)[2], int group, int thread) {
  const int lane = thread % 32;
  if (p.lse.data == nullptr || lane % 4 != 0 || work_tile.partial != kWholeRow) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = group * kHalfRows + thread / 32 * 16 + lane / 4 + 8 * i;
    const RowPlace place = place_of(p, work_tile, row);
    if (!place.exists) continue;
    p.lse.at(work_tile.batch, place.head, place.query) = lse[i];
  }
}

/// Multiplies the factors of a warpgroup's 64 rows of output by what a sink leaves of them:
/// exp(lse) / (exp(lse) + exp(sink)). Rows without keys keep their factor 0.
template <class T>
__device__ __forceinline__ void leave_out_sinks(const ForwardParams& p,
                                                const BroadcastTile& work_tile,
                                                const float (&lse)[2], float (&factors)[2],
                                                int group, int thread) {
  constexpr float kLog2E = 1.44269504088896340736f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = group * kHalfRows + thread / 32 * 16 + thread % 32 / 4 + 8 * i;
    const RowPlace place = place_of(p, work_tile, row);
    if (!place.exists || factors[i] == 0.0f) continue;
    const float sink =
        value_at<T>(p.sinks, p.sinks.offset(work_tile.batch, place.head, place.query));
    factors[i] *= ptx::reciprocal_approx(1.0f + ptx::exp2_approx((sink - lse[i]) * kLog2E));
  }
}

/// True iff a last step of up to 32 or up to 64 keys computes scores of only so many keys. ptxas
/// has registers for such steps only in these kernels (otherwise C7511).
template <class T, class Score, class Reader, int kDimV>
inline constexpr bool kHasNarrowSteps =
    Reader::kEndsInUnits && !Score::kBends &&
    (std::is_same_v<T, __nv_bfloat16> && (kDimV == 128 || (kDimV == 64 && Score::kAddsKeyBias)));

/// Number of groups of four exponentials of a step that are computed before the wait for the
/// product of the step before. The values are measured. Without them ptxas puts all exponentials
/// after the wait, and with too many the registers run out. A step of 128 columns is a tenth faster
/// with 6 than with 0.
template <class Score, class Reader, int kDimQk>
FDMA_HOST_DEVICE constexpr int first_quads() {
  constexpr bool kIsCrowded = Reader::kExtraWarps > 0;
  if (Score::kBends || Score::kAddsTerms)
    return 1;  // registers are few, and bending takes the time of the wait
  if (kDimQk == 64) return 1;
  if (kDimQk == 96) return kIsCrowded ? 2 : Score::kIsLinear ? 3 : 1;
  if (kDimQk == 128) return kIsCrowded ? 1 : Score::kIsLinear ? 6 : 7;
  return kDimQk == 192 ? 3 : 2;
}

/// The number of keys of a step that are computed, the first ones.
template <int kCount>
using Keys = std::integral_constant<int, kCount>;

template <int kUsed, int kCount>
__device__ __forceinline__ float (&first_of(float (&registers)[kCount]))[kUsed] {
  static_assert(kUsed <= kCount);
  return *reinterpret_cast<float(*)[kUsed]>(&registers);
}

/// Computes work tiles until there are none. Called by all threads of one of two warpgroups.
///
/// Where registers allow, work tiles follow each other without a gap. The scores of the next work
/// tile's first step are issued with the last product of this work tile, whose output is written
/// while they are computed. The product is issued first, so its output is ready before the scores.
/// Where biases are terms of the scores, the scores are issued first, which is faster there.
template <class T, class Score, class Weight, class Reader, int kDimQk, int kDimV>
__device__ __forceinline__ void compute_rows(const ForwardParams& p,
                                             const typename Score::Arguments& arguments,
                                             std::uint32_t base, int group, int thread) {
  using Layout = ForwardLayout<kDimQk, kDimV>;
  constexpr bool kTerms = kHasBiasTerms<T, Score, Reader>;
  constexpr bool kHasPlaces = kAsksForPlaces<Score, Weight>;
  static_assert(!kHasPlaces || (!kTerms && !Reader::kHasLists), "keys of a step are neighbours");
  constexpr bool kIsCrowded = Reader::kExtraWarps > 0;  // fewer registers for each thread
  constexpr int kStepKeys = Layout::kStepKeys, kSteps = Layout::kSteps;
  using OutProduct = ptx::product<T, kDimV>;
  constexpr bool kHasNarrow = kHasNarrowSteps<T, Score, Reader, kDimV>;
  constexpr bool kOverlaps = Layout::kOverlapsWorkTiles, kOutFirst = kOverlaps && !kTerms;
  constexpr Keys<kStepKeys> kAllKeys;
  constexpr int kStages = Layout::kStages;
  constexpr std::uint64_t kKAdvance = Layout::kKBytes / 16, kVAdvance = Layout::kVBytes / 16;
  const int lane = thread % 32;
  const std::uint64_t k_descriptor = matrix_descriptor(base + Layout::kK, 16, 1024);
  const std::uint64_t v_descriptor =
      matrix_descriptor(base + Layout::kV, kStepKeys * kPanelRowBytes, 1024);

  float s[kStepKeys / 2], out[kDimV / 2];
  std::uint32_t probabilities[kStepKeys / 16][4];
  RowState state{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  ptx::Ring<Layout::kMaskSlots> slots;
  // Counted over all work tiles. They determine stages and phases.
  int step = 0, work_tile_index = 0;

  // Read anew at each use: no register is left for it.
  const auto own_thread = [] { return ptx::thread_index() % kWarpgroupThreads; };
  const auto release = [&](std::uint32_t barrier) { ptx::mbarrier_arrive_warp(barrier, lane); };
  const auto stage_of = [](int index) { return index % kStages; };
  const auto phase_of = [](int index) { return static_cast<std::uint32_t>(index / kStages) & 1; };
  // Phase of the Q buffers or work tile slots (`size` of them) for the work tile in hand.
  const auto ring_phase = [&](int size) {
    return static_cast<std::uint32_t>(work_tile_index / size) & 1;
  };
  const auto q_buffer = [](int work_tile) { return work_tile % Layout::kQBuffers; };
  const auto work_tile_slot = [&](int work_tile) {
    return base + Layout::kItem + work_tile % Layout::kWorkTileSlots * Layout::kWorkTileSlotBytes;
  };
  const auto q_half = [&](int work_tile) {
    return base + Layout::kQ + q_buffer(work_tile) * Layout::kQBytes +
           group * (Layout::kQBytes / 2);
  };
  // Returns the number of steps of the work tile in hand, or kNoWorkTile. The rest of the work tile
  // stays in shared memory until its output is stored.
  const auto wait_for_work_tile = [&] {
    ptx::mbarrier_wait(
        base + Layout::kWorkTileFull + 8 * (work_tile_index % Layout::kWorkTileSlots),
        ring_phase(Layout::kWorkTileSlots), "compute: work tile full");
    const int tiles = ptx::load_word(work_tile_slot(work_tile_index));
    return tiles == kNoWorkTile ? kNoWorkTile : tiles * kSteps;
  };
  // Number of keys of its last step, in whole units. Later keys have no probabilities.
  const auto last_keys_of_work_tile = [&] {
    int keys = kStepKeys;
    if constexpr (Reader::kEndsInUnits) {
      keys = Reader::last_keys(work_tile_slot(work_tile_index) + Layout::kWorkTileGather);
    }
    return keys;
  };
  const auto wait_for_scores_input = [&](bool is_first_step) {
    if (is_first_step) {
      ptx::mbarrier_wait(base + Layout::kQFull + 8 * q_buffer(work_tile_index),
                         ring_phase(Layout::kQBuffers), "compute: Q full");
    }
    ptx::mbarrier_wait(base + Layout::kKFull + 8 * stage_of(step), phase_of(step),
                       "compute: K full");
  };
  const auto issue_scores = [&](auto keys) {
    using Product = ptx::product<T, decltype(keys)::value>;
    auto& scores = first_of<decltype(keys)::value / 2>(s);
    const std::uint64_t q = matrix_descriptor(q_half(work_tile_index), 16, 1024);
    const std::uint64_t k = k_descriptor + stage_of(step) * kKAdvance;
    [[maybe_unused]] std::uint32_t ones[4];
    if constexpr (kTerms) ones_of_terms(ptx::opaque(lane), ones);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDimQk / 16; ++i) {
      Product::template shared<ptx::Major::k, ptx::Major::k>(
          scores, q + k_major_advance(i, kHalfRows), k + k_major_advance(i, kStepKeys), i != 0);
    }
    if constexpr (kTerms) {
      Product::template registers<ptx::Major::k>(
          scores, ones,
          terms_descriptor(base + Layout::kTerms + slots.stage * Layout::kTermBytes,
                           base + Layout::kTermZeros),
          1);
    }
    ptx::wgmma_commit();
  };
  // Waits for V of the step before.
  const auto wait_for_values = [&] {
    ptx::mbarrier_wait(base + Layout::kVFull + 8 * stage_of(step - 1), phase_of(step - 1),
                       "compute: V full");
  };
  const auto multiply_values = [&](int first_key, int end_key) {
    const std::uint64_t v = v_descriptor + stage_of(step - 1) * kVAdvance;
    ptx::wgmma_fence();
#pragma unroll
    for (int i = first_key / 16; i < end_key / 16; ++i) {
      OutProduct::template registers<ptx::Major::mn>(out, probabilities[i], v + mn_major_advance(i),
                                                     1);
    }
  };
  const auto issue_out = [&] {
    wait_for_values();
    multiply_values(0, kStepKeys);
    ptx::wgmma_commit();
  };
  // The last product of a work tile. Each conditional product lies between fences; otherwise ptxas
  // adds some.
  const auto issue_last_out = [&](int num_keys) {
    if constexpr (!Reader::kEndsInUnits) return issue_out();
    wait_for_values();
    multiply_values(0, kCopyKeys);
#pragma unroll
    for (int key = kCopyKeys; key < kStepKeys; key += kCopyKeys) {
      if (key < num_keys) multiply_values(key, key + kCopyKeys);
    }
    ptx::wgmma_fence();
    ptx::wgmma_commit();
  };
  const auto release_k = [&] { release(base + Layout::kKEmpty + 8 * stage_of(step)); };
  // With one Q buffer the buffer is free for the next work tile as soon as the last scores are
  // computed.
  const auto scores_are_ready = [&](auto keys, bool is_last_step) {
    ptx::pin_registers(first_of<decltype(keys)::value / 2>(s));
    if constexpr (Layout::kQBuffers == 1) {
      if (is_last_step) release(base + Layout::kQEmpty);
    }
  };
  // The mask of the step in hand. It is read while the step's product runs, or before the product
  // where biases are terms of it.
  bool is_masked = false;
  std::uint32_t word0 = 0, word1 = 0;
  const auto is_first_of_tile = [&] { return kSteps == 1 || step % kSteps == 0; };
  const auto is_last_of_tile = [&] { return kSteps == 1 || step % kSteps == kSteps - 1; };
  const auto release_mask = [&] {
    __syncwarp();
    release(base + Layout::kMaskEmpty + 8 * slots.stage);
    slots.advance();
  };
  // Where a policy needs them: the places of this thread's first cells in the step in hand.
  [[maybe_unused]] CellPlace first_places[2] = {};
  [[maybe_unused]] int place_word = 0;  // of the step (step_word)
  // Found anew for each use, because registers are few.
  [[maybe_unused]] const auto cells_of = [&](int i) {
    const BroadcastTile tile = read_work_tile(work_tile_slot(ptx::opaque(work_tile_index)));
    const RowPlace row =
        place_of(p, tile, group * kHalfRows + own_thread() / 32 * 16 + lane / 4 + 8 * i);
    return RowCells{{tile.batch, min(row.head, tile.head + tile.num_heads - 1), row.query,
                     (place_word >> 1) + lane % 4 * 2},
                    tile.q_len,
                    tile.kv_len};
  };
  [[maybe_unused]] const auto find_places = [&] {
    place_word = ptx::load_word(base + Layout::kStepWords + 4 * stage_of(step));
    if constexpr (!Score::kAddsTerms) {
#pragma unroll
      for (int i = 0; i < 2; ++i) first_places[i] = cells_of(i);
    }
  };
  const auto cell_place = [&](int i, int column) {
    const CellPlace& first = first_places[i];
    return CellPlace{first.batch, first.head, first.query, first.key + column};
  };
  // Which cells of the present step a weight keeps, where it drops some (find_kept).
  [[maybe_unused]] DropoutWeight::Bits<kStepKeys> kept = {};
  const auto weighted = [&](float x, int i, int column) {
    if constexpr (Weight::kDrops) {
      return Weight::template is_kept<kStepKeys>(kept, i, column) ? x : 0.0f;
    } else {
      return Weight::weighted(x, [&] { return cell_place(i, column); });
    }
  };
  const auto wait_for_mask = [&] {
    ptx::mbarrier_wait(base + Layout::kMaskFull + 8 * slots.stage, slots.phase,
                       "compute: mask full");
  };
  constexpr int kStepBits = kStepKeys / 4 % 32;  // bits of a step in a word that holds 128 keys
  // All words of the tile, of which the first bits are those of the step.
  const auto read_words = [&] {
    const int2 words = ptx::load_words2(base + Layout::kMask + slots.stage * Layout::kMaskBytes +
                                        (group * kWarpgroupThreads + own_thread()) * 8);
    word0 = static_cast<std::uint32_t>(words.x);
    word1 = static_cast<std::uint32_t>(words.y);
  };
  const auto read_mask = [&] {
    if constexpr (kHasPlaces) find_places();
    if constexpr (Score::kAddsTerms) return;  // registers are few: read when they are used
    if (!is_first_of_tile()) {
      word0 >>= kStepBits;
      word1 >>= kStepBits;
      return;
    }
    const int word = ptx::load_word(base + Layout::kStepWords + 4 * stage_of(step));
    is_masked = (kHasPlaces ? word & 1 : word) != 0;
    if (!Score::kAddsKeyBias && !is_masked) return;
    wait_for_mask();
    read_words();
    if constexpr (!Score::kAddsKeyBias) release_mask();
  };
  const auto read_mask_early = [&] {
    if constexpr (kTerms) read_mask();
  };
  const auto read_mask_late = [&] {
    if constexpr (!kTerms) read_mask();
  };
  const float scale = kTerms ? fabsf(p.scale_log2) : Score::kIsLinear ? p.scale_log2 : 1.0f;
  // Turns finished products into logits, unless the scale is all that is missing, and applies the
  // mask.
  const auto finish_scores = [&](auto keys) {
    auto& scores = first_of<decltype(keys)::value / 2>(s);
    if constexpr (kTerms) {
      release_mask();
    } else if constexpr (!Score::kIsLinear) {
      if (Score::kAddsTerms && is_first_of_tile()) wait_for_mask();
      apply_score<Score>(scores, p.scale_log2, arguments,
                         base + Layout::kBias + slots.stage * Layout::kBiasBytes +
                             step % kSteps * (kStepKeys * 4) + ptx::opaque(lane) % 4 * 8,
                         cell_place);
      if constexpr (Score::kAddsTerms) {
        Score::template add_terms<T, false>(scores, arguments, cells_of);
        is_masked = (place_word & 1) != 0;
        if (is_masked) {
          read_words();
          if (!is_first_of_tile()) word0 >>= kStepBits, word1 >>= kStepBits;
        }
      }
      if (Score::kAddsKeyBias && is_last_of_tile()) release_mask();
    }
    if (is_masked) apply_fragments(scores, word0, word1);
    if constexpr (Weight::kDrops) {
      Weight::template find_kept<false, kStepKeys>(p.dropout, cells_of(0), kept);
    }
  };
  const auto softmax = [&] {
    finish_scores(kAllKeys);
    softmax_first(s, state, scale);
  };
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < kStepKeys / 4; ++i) {
      probabilities[i / 4][i % 4] = ptx::pack<T>(weighted(s[2 * i], i % 2, i / 2 * 8),
                                                 weighted(s[2 * i + 1], i % 2, i / 2 * 8 + 1));
    }
  };

  // The order in which the warpgroups issue products.
  const auto wait_for_dq_semaphore = [&] {
    ptx::named_barrier_sync(kOrderBarrier + ptx::opaque(group), kOrderThreads);
  };
  const auto give_dq_position = [&] {
    ptx::named_barrier_arrive(kOrderBarrier + 1 - ptx::opaque(group), kOrderThreads);
  };
  // The first scores of a work tile, with no other product beside them.
  const auto first_scores = [&](int num_steps) {
    wait_for_scores_input(true);
    read_mask_early();
    issue_scores(kAllKeys);
    read_mask_late();
    ptx::wgmma_wait<0>();
    scores_are_ready(kAllKeys, num_steps == 1);
    softmax();
    release_k();
    pack();
    ++step;
  };
  // The product of the step before is finished.
  const auto take_output = [&] {
    ptx::pin_registers(out);
    release(base + Layout::kVEmpty + 8 * stage_of(step - 1));
  };
  // The first scores of a work tile, if there is one.
  const auto take_first_scores = [&](bool is_item, bool is_last_step) {
    scores_are_ready(kAllKeys, is_last_step);
    if (is_item) {
      release_k();
      softmax();
    }
  };
  // The scores of a step beside the product of the step before.
  const auto next_scores = [&](auto keys, bool is_last_step) {
    wait_for_scores_input(false);
    read_mask_early();
    wait_for_dq_semaphore();
    issue_scores(keys);
    issue_out();
    give_dq_position();
    read_mask_late();
    ptx::wgmma_wait<1>();
    scores_are_ready(keys, is_last_step);
    release_k();
    finish_scores(keys);
    constexpr int kNumKeys = decltype(keys)::value;
    constexpr int kFirst = first_quads<Score, Reader, kDimQk>();
    weigh<T, kFirst, kNumKeys == kStepKeys>(first_of<kNumKeys / 2>(s), state, scale, probabilities,
                                            out, static_cast<int>(base), weighted, [&] {
                                              ptx::wgmma_wait<0>();
                                              take_output();
                                            });
  };

  int num_steps = wait_for_work_tile();
  if (num_steps == kNoWorkTile) return;
  if (group == 0) ptx::named_barrier_arrive(kOrderBarrier + 1, kOrderThreads);
  if constexpr (kOverlaps) first_scores(num_steps);
  for (;;) {
    if constexpr (!kOverlaps) first_scores(num_steps);
#pragma unroll
    for (float& x : out) x = 0.0f;
    if constexpr (kHasNarrow) {
      int left = num_steps - 1;
      const bool is_narrow = left > 0 && last_keys_of_work_tile() <= 64;
      if (is_narrow) --left;
#pragma unroll 1
      for (; left > 0; --left, ++step) next_scores(kAllKeys, false);
      if (is_narrow) {
        if (last_keys_of_work_tile() <= 32) {
          next_scores(Keys<32>{}, true);
        } else {
          next_scores(Keys<64>{}, true);
        }
        ++step;
      }
    } else {
#pragma unroll 1
      for (int n = 1; n < num_steps; ++n, ++step) next_scores(kAllKeys, n == num_steps - 1);
    }

    // The last product of this work tile and, if work tiles overlap, the first scores of the next.
    // After the last work tile the scores are computed from stale shared memory and not used.
    std::uint32_t slot_before = work_tile_slot(work_tile_index), q_before = q_half(work_tile_index);
    std::uint32_t out_full = base + Layout::kOutFull + 8 * (2 * q_buffer(work_tile_index) + group);
    std::uint32_t work_tile_empty =
        base + Layout::kWorkTileEmpty + 8 * (work_tile_index % Layout::kWorkTileSlots);
    // Read twice, because keeping it would take a register that ptxas does not have.
    const int last_keys = last_keys_of_work_tile();
    ++work_tile_index;
    bool has_next = false;
    if constexpr (kOverlaps) {
      num_steps = wait_for_work_tile();
      has_next = num_steps != kNoWorkTile;
      if (has_next) {
        wait_for_scores_input(true);
        read_mask_early();
      }
    }
    float inverse[2], lse[2];
    const auto finish_state = [&] {
      finish_rows<kIsCrowded>(state, scale, inverse, lse, [&](float sum, float maximum, int i) {
        return Score::finish_row(sum, maximum, arguments, [&] { return first_places[i]; });
      });
      state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    };
    // With biases this comes before the products. ptxas has registers only if no branches stand
    // beside the products.
    if constexpr (kTerms) finish_state();
    wait_for_dq_semaphore();
    if constexpr (kOverlaps && !kOutFirst) issue_scores(kAllKeys);
    issue_last_out(last_keys);
    give_dq_position();
    if constexpr (kOutFirst) issue_scores(kAllKeys);
    if constexpr (!kTerms) finish_state();
    if constexpr (kOutFirst) {
      ptx::wgmma_wait<1>();
      take_output();
    } else {
      if constexpr (kOverlaps) {
        if (has_next) read_mask_late();
        ptx::wgmma_wait<1>();
        take_first_scores(has_next, num_steps == 1);
      }
      ptx::wgmma_wait<0>();
      take_output();
      if constexpr (kOverlaps) {
        pack();
        ++step;
      }
    }
    if (p.sinks.data != nullptr) {  // partial results have none: combine_partials adds it
      const BroadcastTile work_tile = read_work_tile(slot_before);
      if (work_tile.partial == kWholeRow)
        leave_out_sinks<T>(p, work_tile, lse, inverse, group, own_thread());
    }
    if constexpr (Weight::kDrops) {
      inverse[0] *= p.dropout.bits.factor;
      inverse[1] *= p.dropout.bits.factor;
    }
    normalize(out, inverse);
    if constexpr (kIsCrowded) {
      // Computed anew, because keeping them would take registers that ptxas does not have.
      const int work_tile_before = ptx::opaque(work_tile_index) - 1;
      slot_before = work_tile_slot(work_tile_before);
      q_before = q_half(work_tile_before);
      out_full = base + Layout::kOutFull + 8 * (2 * q_buffer(work_tile_before) + group);
      work_tile_empty =
          base + Layout::kWorkTileEmpty + 8 * (work_tile_before % Layout::kWorkTileSlots);
    }
    const BroadcastTile work_tile = read_work_tile(slot_before);
    __syncwarp();
    release(work_tile_empty);
    const auto hand_on = [&] {
      if constexpr (Layout::kQBuffers == 2) {
        __syncwarp();
        release(out_full);
      }
    };
    // The rare cases share one branch, because a jump over each of them would cost every work tile.
    const bool is_copied = is_stored_by_copy<Layout>(p, work_tile, group);
    const bool has_out_low = p.out_low != nullptr;
    if (!is_copied || has_out_low || __any_sync(~0u, inverse[0] == 0.0f || inverse[1] == 0.0f)) {
      zero_rows(out, inverse);
      if (is_copied) {
        put_rows_out<T, kDimV>(q_before, out, own_thread());
      } else {
        write_rows_out<T, kDimV>(p, work_tile, out, lse, group, own_thread());
      }
      hand_on();
      if (has_out_low && work_tile.partial == kWholeRow) {
        write_out_low<T, kDimV>(p, work_tile, out, group, own_thread());
      }
    } else {
      put_rows_out<T, kDimV>(q_before, out, own_thread());
      hand_on();
    }
    write_lse(p, work_tile, lse, group, own_thread());
    if constexpr (kOutFirst) {
      if (has_next) read_mask_late();
      ptx::wgmma_wait<0>();
      take_first_scores(has_next, num_steps == 1);
      pack();
      ++step;
    }
    if constexpr (!kOverlaps) {
      num_steps = wait_for_work_tile();
      has_next = num_steps != kNoWorkTile;
    }
    if (!has_next) break;
  }
  if (group == 1) ptx::named_barrier_sync(kOrderBarrier + 1, kOrderThreads);
}

}  // namespace fdma::sm90
