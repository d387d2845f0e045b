// The two warpgroups that compute gradients. Each computes 64 keys of a tile group against all
// queries of the tile group.
//
// With keys as rows, P^T and dS^T lie in registers in the layout that the products dV += P^T dO and
// dK += dS^T Q need for their first operand. dK and dV stay in registers until the tile group ends.
// A step computes:
//
//   S^T = K Q^T, dP^T = V dO^T           both issued; part of K may be in registers
//   P^T = 2^(S^T scale - lse)            while dP^T is computed; cells of the mask
//   dS^T = P^T (dP^T - delta)            also to shared memory
//   dV += P^T dO                         issued; then both warpgroups have written dS
//   dQ = dS K, dK += dS^T Q              issued; dQ is added to memory while dK is computed
//
// With 128 columns the warpgroups alternate (kAlternates): one computes dQ of a step, the other dQ
// of the next step. Only one of them then waits for the other's dS, and they drift apart. Otherwise
// each computes half of dQ: half of its columns, or half of its rows if a step has 128 queries.
// This plain order is faster than orders in which one step overlaps with the next
// (docs/notes/kernels-backward.md). The file is longer than most, because the parts of a step share
// their registers.
#pragma once

#include <cstdint>

#include "cuda/dropout.cuh"
#include "cuda/gradient_rows.cuh"
#include "cuda/mask_fragments.cuh"
#include "cuda/score.cuh"
#include "cuda/score_parts.cuh"
#include "cuda/softmax.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/backward/dq_semaphore.cuh"
#include "sm90/backward/key_reader.cuh"
#include "sm90/backward/params.hpp"
#include "sm90/backward/ring.cuh"
#include "sm90/backward/shifts.cuh"
#include "sm90/shared/fragment.hpp"

namespace fdma::sm90 {

inline constexpr int kComputeThreads = 2 * kWarpgroupThreads;

/// Computes tile groups until there are none. Called by all threads of one of two warpgroups.
template <class T, class Score, class Weight, class Reader, Gradients kGradients, int kDimQk,
          int kDimV>
__device__ __forceinline__ void compute_tile_groups(const BackwardParams& p,
                                                    const typename Score::Arguments& arguments,
                                                    std::uint32_t base, int group) {
  using Layout = LayoutFor<kGradients, kDimQk, kDimV>;
  constexpr int kQueries = Layout::kStepQueries, kStages = Layout::kStages;
  constexpr bool kSplitsRows = kQueries == 128;  // of dQ
  // Adds dS along rows for D, and nothing else
  constexpr bool kAddsRows = kGradients == Gradients::shifts;
  constexpr bool kHasScores = kGradients != Gradients::values;  // computes dS
  constexpr bool kHasKeys = kHasScores && !kAddsRows;           // computes dK and dQ
  constexpr bool kHasValues = kGradients == Gradients::all || kGradients == Gradients::values;
  constexpr bool kKeepsSlopes = Score::kBends && kHasKeys;  // in the weights
  constexpr bool kAlternates = Layout::kAlternates;
  // k16 steps of K in registers. A score that bends takes some of them, terms take all.
  constexpr int kHeld = Score::kAddsTerms ? 0
                        : Score::kBends   ? kHeldSteps<Layout, Reader> / 2
                                          : kHeldSteps<Layout, Reader>;
  constexpr bool kPacksLate = kSplitsRows || !Score::kIsLinear;  // packs P late: registers are few
  constexpr int kSumParts = (kSumColumns<kDimQk> + 63) / 64;     // number of parts of dQ
  constexpr int kPartColumns = kSumColumns<kDimQk> / kSumParts;
  using ScoreProduct = ptx::product<T, kQueries>;
  constexpr std::uint64_t kQAdvance = Layout::kQBytes / 16, kOAdvance = Layout::kOBytes / 16;
  // Read anew where they are used, because registers are few.
  const auto lane_now = [] { return ptx::thread_index() % 32; };
  const auto thread_now = [] { return ptx::thread_index() % kWarpgroupThreads; };
  const std::uint64_t k_rows = matrix_descriptor(base + Layout::kK + group * 64 * kPanelRowBytes,
                                                 16, 1024),
                      v_rows = matrix_descriptor(base + Layout::kV + group * 64 * kPanelRowBytes,
                                                 16, 1024);
  // The same Q and dO are [query, column] for S and dP, and [column, query] for dK and dV.
  const std::uint64_t q_rows = matrix_descriptor(base + Layout::kQ, 16, 1024),
                      o_rows = matrix_descriptor(base + Layout::kO, 16, 1024);
  const std::uint64_t q_columns =
                          matrix_descriptor(base + Layout::kQ, Layout::kPanelBytesQuery, 1024),
                      o_columns =
                          matrix_descriptor(base + Layout::kO, Layout::kPanelBytesQuery, 1024);
  const std::uint64_t k_columns = matrix_descriptor(
      base + Layout::kK +
          (kSplitsRows || kAlternates ? 0 : group * kSumParts * Layout::kPanelBytesKey),
      Layout::kPanelBytesKey, 1024);
  const std::uint64_t scores_t =
      matrix_descriptor(base + Layout::kScores + (kSplitsRows ? group * Layout::kPanelBytesKey : 0),
                        Layout::kPanelBytesKey, 1024);

  [[maybe_unused]] float dk[kHasKeys ? kDimQk / 2 : 1], dv[kHasValues ? kDimV / 2 : 1];
  ptx::Ring<kStages> ring;
  std::uint32_t phases = 0;  // bit 0: parity of tile groups, bit 1: parity of dQ sums
  const auto bias_sums = [&] {
    return base + Layout::kBiasAccum + 8 * (group * kWarpgroupThreads + thread_now());
  };
  const auto release = [&](std::uint32_t barrier) {
    ptx::mbarrier_arrive_warp(barrier, lane_now());
  };
  // Signals a barrier at which another warpgroup waits. Racecheck does not follow an order
  // established by threads that arrive without waiting.
  const auto hand_over = [&](int barrier) {
    if constexpr (ptx::kWarpInsertions > 1) {
      ptx::named_barrier_sync(barrier, kComputeThreads);
    } else {
      ptx::named_barrier_arrive(barrier, kComputeThreads);
    }
  };
  // Address at which this thread stores dS of 16 queries from `query` on. The next 16 queries of a
  // panel are 32 bytes further, which the swizzle turns into an exclusive or.
  const auto scores_of = [&](int scores_at, int query) {
    const int lane = lane_now(), row = group * kHalfRows + thread_now() / 32 * 16 + lane % 16;
    return base + Layout::kScores + scores_at * Layout::kScoreBytes +
           swizzled_offset(row, query + lane / 16 * 8, Layout::kTileGroupKeys);
  };
  const auto release_mask = [&](std::uint32_t words) {
    release(base + Layout::kMaskEmpty +
            8 * ((words - (base + Layout::kMask)) / Layout::kMaskBytes));
  };
  const auto key_row = [&] {
    const int thread = thread_now();
    return group * kHalfRows + accumulator_cell(thread, 0).row;
  };

  // Where dQ is added from registers: deterministic calls wait for the tile group's position.
  const auto step_at = [&](int stage) {
    return load_words(base + Layout::kStep + stage * static_cast<int>(sizeof(BackwardStep)));
  };
  const auto tile_group_at = [&](int stage) {
    return load_words(base + Layout::kStep + stage * static_cast<int>(sizeof(BackwardStep)) + 16);
  };
  const auto wait_for_step = [&] {
    ptx::mbarrier_wait(base + Layout::kQFull + 8 * ring.stage, ring.phase, "compute: Q full");
    return step_at(ring.stage);
  };
  const auto turn_of = [&](const uint4& step) {
    const std::int64_t tile = static_cast<int>(step.z) + (kSplitsRows ? group : 0);
    return p.dq_semaphores + 2 * tile + (kSplitsRows ? 0 : group);
  };
  const auto wait_for_dq_semaphore = [&](int stage) {
    if (p.dq_semaphores == nullptr) return;
    if (thread_now() == 0) {
      const uint4 step = step_at(stage);
      while (read_dq_semaphore(turn_of(step)) != static_cast<int>(step.w)) {
      }
    }
    ptx::named_barrier_sync(kDqOrderBarrier + group, kWarpgroupThreads);
  };
  const auto give_dq_position = [&](int stage) {
    if (p.dq_semaphores == nullptr) return;
    __threadfence();
    ptx::named_barrier_sync(kDqOrderBarrier + group, kWarpgroupThreads);
    if (thread_now() == 0) advance_dq_semaphore(turn_of(step_at(stage)));
  };
  // Otherwise TMA adds dQ (dq_semaphore.cuh), for each warp its part.
  constexpr int kWarpDqAccumBytes = Layout::kDqAccumBytes / Layout::kDqAccumWarps;
  const auto dq_accum_warp = [&] { return (kAlternates ? 0 : group * 4) + thread_now() / 32; };
  const auto adds_in_order = [&] { return p.dq_semaphores != nullptr; };
  const auto wait_until_copied = [&] {
    if (lane_now() == 0) ptx::bulk_wait_read<0>();
    __syncwarp();
  };
  const auto wait_for_accum = [&] {
    if (adds_in_order()) {
      ptx::mbarrier_wait(base + Layout::kDqAccumEmpty, phases >> 1, "compute: sums empty");
    } else {
      wait_until_copied();
    }
  };
  const auto add_sums = [&](const uint4& step) {
    if (adds_in_order()) {
      release(base + Layout::kDqAccumFull);
    } else if (lane_now() == 0) {
      ptx::bulk_reduce_add(
          p.places.dq_accum + std::int64_t{static_cast<int>(step.z)} * (kSumRows * kDimQk) +
              dq_accum_warp() * (kWarpDqAccumBytes / 4),
          base + Layout::kDqAccum + dq_accum_warp() * kWarpDqAccumBytes, kWarpDqAccumBytes);
      ptx::bulk_commit();
    }
  };

  // Sums dS of a step over this warpgroup's keys and adds it to QueryPlaces::missing, the
  // correction of D for the step's queries.
  [[maybe_unused]] std::uint32_t accum_parity = 0;
  [[maybe_unused]] const auto add_up_rows = [&](int stage, std::uint32_t sum_tile,
                                                const float(&probabilities)[kQueries / 2],
                                                const float(&dp)[kQueries / 2]) {
    constexpr std::uint32_t kBytes = kGroupSumBytes<kQueries>;
    const std::uint32_t row_sums = base + Layout::kScores + (2 * group + accum_parity) * kBytes;
    const int thread = thread_now();
    store_warp_sums<kQueries>(
        probabilities, dp, base + Layout::kDeltas + stage * Layout::kRowBytes + lane_now() % 4 * 8,
        row_sums + thread / 32 * (4 * kQueries), lane_now());
    wait_for_dq_semaphore(stage);
    ptx::named_barrier_sync(kDqOrderBarrier + group, kWarpgroupThreads);
    if (thread < kQueries) {
      const std::int64_t row = std::int64_t{sum_tile} * kSumRows + thread;
      atomicAdd(p.places.missing + 2 * row + group, sum_of_warps<kQueries>(row_sums, thread));
    }
    give_dq_position(stage);
    __syncwarp();
    release(base + Layout::kQEmpty + 8 * stage);
    release(base + Layout::kOEmpty + 8 * stage);
    accum_parity ^= 1;  // these are read until all threads have come to the next barrier
  };

  // Over worklist keys: the keys of tile group `tile_groups` in shared memory.
  [[maybe_unused]] CountedRing<Layout::kKeySlots> tile_groups;
  const auto entries = [&] {
    return base + Layout::kEntries + tile_groups.stage() * Layout::kEntryBytes;
  };
  // Where a policy needs them: the places of this thread's first cells in a step.
  constexpr bool kHasPlaces = kAsksForPlaces<Score, Weight>;
  [[maybe_unused]] CellPlace first_places[2] = {};
  [[maybe_unused]] const auto place_of_row = [&](int stage, std::uint32_t sum_tile, int i) {
    const uint4 tile_group = tile_group_at(stage);
    const int head_tiles = p.places.padded_q_len / kSumRows;
    const auto tile = static_cast<int>(sum_tile);
    const int query = tile % head_tiles * kSumRows + lane_now() % 4 * 2;
    const int own_row = key_row() + 8 * i;
    const int key = Reader::kIsListed ? load_word(entries() + 8 * own_row)
                                      : static_cast<int>(tile_group.z) + own_row;
    return CellPlace{static_cast<int>(tile_group.x), tile / head_tiles % p.places.heads_q, query,
                     key};
  };
  [[maybe_unused]] const auto find_places = [&](int stage, std::uint32_t sum_tile) {
    if constexpr (!Score::kAddsTerms) {
#pragma unroll
      for (int i = 0; i < 2; ++i) first_places[i] = place_of_row(stage, sum_tile, i);
    }
  };
  const auto cell_place = [&](int i, int column) {
    const CellPlace& first = first_places[i];
    return CellPlace{first.batch, first.head, first.query + column, first.key};
  };
  // Which cells of the present step a weight keeps, where it drops some (find_kept).
  [[maybe_unused]] DropoutWeight::Bits<kQueries> kept = {};
  const auto weighted = [&](float x, int i, int column) {
    if constexpr (Weight::kDrops) {
      return Weight::template is_kept<kQueries>(kept, i, column) ? x : 0.0f;
    } else {
      return Weight::weighted(x, [&] { return cell_place(i, column); });
    }
  };
  // The gradient of a weight less `delta`.
  const auto less_delta = [&](float x, float delta) {
    if constexpr (Weight::kDrops) {
      return fmaf(x, p.dropout.bits.factor, -delta);
    } else {
      return x - delta;
    }
  };
  // Starts copying this warp's rows of K and V of the tile group.
  [[maybe_unused]] const auto bring_keys = [&] {
    ptx::mbarrier_wait(base + Layout::kKeysFull + 8 * tile_groups.stage(), tile_groups.phase(),
                       "compute: keys full");
    ptx::mbarrier_wait(base + Layout::kKvEmpty, ~tile_groups.count & 1, "compute: K and V empty");
    const int lane = lane_now(), row = group * kHalfRows + thread_now() / 32 * kWarpRows;
    const int2 place = load_words2(entries() + 8 * Layout::kTileGroupKeys);
    copy_worklist_rows<Layout::kPanelsQk>(base + Layout::kK, p.worklist.k, place, entries(), row,
                                          lane);
    copy_worklist_rows<Layout::kPanelsV>(base + Layout::kV, p.worklist.v, place, entries(), row,
                                         lane);
    ptx::copies_commit();
  };
  // Waits until those copies have landed, and signals them.
  [[maybe_unused]] const auto hand_on_keys = [&] {
    ptx::copies_wait<0>();
    ptx::fence_async_shared();
    __syncwarp();
    release(base + Layout::kKFull);
  };
  // Stores or adds the gradients of a tile group's keys. The next tile group's keys are copied
  // meanwhile.
  [[maybe_unused]] const auto set_worklist_row = [&](const uint4& tile_group, bool is_last) {
    const int lane = lane_now(), first_accum_row = static_cast<int>(tile_group.w);
    const int batch = static_cast<int>(tile_group.x), kv_head = static_cast<int>(tile_group.y);
    if (batch < 0) return;  // a block without tile groups
    int2 keys[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) keys[i] = load_words2(entries() + 8 * (key_row() + 8 * i));
    tile_groups.advance();
    if (!is_last) bring_keys();
    if constexpr (kHasValues) {
      set_worklist_rows<T, kDimV>(p.dv, p.dv.strides.head_offset(batch, kv_head),
                                  p.worklist.dv_accum, dv, 1.0f, keys, first_accum_row,
                                  p.head_dim_v, lane);
    }
    if constexpr (kHasKeys) {
      set_worklist_rows<T, kDimQk>(p.dk, p.dk.strides.head_offset(batch, kv_head),
                                   p.worklist.dk_accum, dk, p.scale, keys, first_accum_row,
                                   p.head_dim, lane);
    }
    if constexpr (Score::kAddsKeyBias && kHasKeys) {
      const float2 sums = load_pair(bias_sums());
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = i == 0 ? sums.x : sums.y;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (p.dkey_bias.data != nullptr && lane % 4 == 0 && keys[i].x >= 0) {
          const bool has_accum =
              p.worklist.dbias_accum != nullptr && first_accum_row >= 0 && keys[i].y >= 0;
          atomicAdd(has_accum ? p.worklist.dbias_accum + (first_accum_row + keys[i].y)
                              : p.dkey_bias.head(batch, kv_head) + keys[i].x,
                    sum);
        }
      }
    }
  };

  if constexpr (Reader::kIsListed) {
    wait_for_step();
    if (static_cast<int>(tile_group_at(ring.stage).x) >= 0) bring_keys();
  }
  for (bool is_done = false; !is_done; phases ^= 1) {
#pragma unroll
    for (float& x : dk) x = 0.0f;
#pragma unroll
    for (float& x : dv) x = 0.0f;
    if constexpr (Score::kAddsKeyBias) store_pair(bias_sums(), 0.0f, 0.0f);
    if constexpr (Reader::kIsListed) hand_on_keys();
    ptx::mbarrier_wait(base + Layout::kKFull, phases & 1, "compute: K full");
    if constexpr (!Reader::kIsListed) {
      ptx::mbarrier_wait(base + Layout::kVFull, phases & 1, "compute: V full");
    }
    [[maybe_unused]] std::uint32_t held_k[kHeld > 0 ? kHeld : 1][4];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int lane = lane_now(),
                row = group * kHalfRows + thread_now() / 32 * kWarpRows + lane % 16;
      ptx::ldmatrix_x4(
          base + Layout::kK + swizzled_offset(row, 16 * i + lane / 16 * 8, Layout::kTileGroupKeys),
          held_k[i]);
    }
    uint4 step = wait_for_step();
#pragma unroll 1
    while ((step.x & kStepEndsTileGroup) == 0) {
      const int stage = ring.stage;
      phases ^= 2;
      const int scores_at = kAlternates ? static_cast<int>(~phases >> 1 & 1) : stage;
      if constexpr (kAlternates && kHasKeys) {
        // This warpgroup has nothing to compute, and it is the other's turn to compute dQ: dS = 0.
        if ((step.x & kStepIsEmpty << group) != 0 && scores_at != group) {
          const std::uint32_t to = scores_of(scores_at, 0);
#pragma unroll
          for (int j = 0; j < kQueries / 16; ++j) ptx::stmatrix_x4(to ^ (32 * j), 0, 0, 0, 0);
          ptx::fence_async_shared();
          wait_until_copied();
          hand_over(kScoreBarrier + scores_at);
          if ((step.x & kStepReleasesMask) != 0) release_mask(step.y);
          ptx::mbarrier_wait(base + Layout::kOFull + 8 * stage, ring.phase, "compute: dO full");
          ring.advance();
          step = wait_for_step();
          __syncwarp();
          release(base + Layout::kOEmpty + 8 * stage);
          release(base + Layout::kQEmpty + 8 * stage);
          continue;
        }
      }
      float s[kQueries / 2], dp[kQueries / 2];
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kDimQk / 16; ++i) {
        const std::uint64_t q_step = q_rows + stage * kQAdvance + k_major_advance(i, kQueries);
        if (i < kHeld) {
          ScoreProduct::template registers<ptx::Major::k>(s, held_k[i], q_step, i != 0);
        } else {
          ScoreProduct::template shared<ptx::Major::k, ptx::Major::k>(
              s, k_rows + k_major_advance(i, Layout::kTileGroupKeys), q_step, i != 0);
        }
      }
      ptx::wgmma_commit();
      ptx::mbarrier_wait(base + Layout::kOFull + 8 * stage, ring.phase, "compute: dO full");
      if constexpr (kHasScores) {
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kDimV / 16; ++i) {
          ScoreProduct::template shared<ptx::Major::k, ptx::Major::k>(
              dp, v_rows + k_major_advance(i, Layout::kTileGroupKeys),
              o_rows + stage * kOAdvance + k_major_advance(i, kQueries), i != 0);
        }
        ptx::wgmma_commit();
      }
      std::uint32_t word0 = 0, word1 = 0;
      if (step.y != 0) {
        const int2 words = load_words2(step.y + (group * kWarpgroupThreads + thread_now()) * 8);
        word0 = static_cast<std::uint32_t>(words.x);
        word1 = static_cast<std::uint32_t>(words.y);
        if (kQueries == 64 && (step.x & kStepIsSecondHalf) != 0) {
          word0 >>= 16;
          word1 >>= 16;
        }
        if ((step.x & kStepReleasesMask) != 0) {
          __syncwarp();
          release_mask(step.y);
        }
      }
      // Where terms are added: the cells of a row, found anew for each use.
      [[maybe_unused]] const auto cells_of = [&](int i) {
        CellPlace first = place_of_row(stage, step.z, 0);
        first.key += 8 * i;
        const int2 lengths = lengths_of(p.plan, p.lengths, first.batch);
        return RowCells{first, lengths.x, lengths.y};
      };
      ptx::wgmma_wait<kHasScores ? 1 : 0>();
      ptx::pin_registers(s);
      if constexpr (kHasPlaces) find_places(stage, step.z);
      [[maybe_unused]] float bias[2] = {0.0f, 0.0f};
      if constexpr (Score::kAddsKeyBias && Reader::kIsListed) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          bias[i] = __int_as_float(load_word(base + Layout::kBiases +
                                             tile_groups.stage() * Layout::kBiasBytes +
                                             4 * (key_row() + 8 * i)));
        }
      } else if constexpr (Score::kAddsKeyBias) {
        if (p.key_bias.data != nullptr) {
          constexpr float kLog2E = 1.44269504088896340736f;
          const uint4 tile_group = tile_group_at(stage);
          const int key = static_cast<int>(tile_group.z) + key_row();
          const float* biases =
              p.key_bias.head(static_cast<int>(tile_group.x), static_cast<int>(tile_group.y)) + key;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (key + 8 * i < static_cast<int>(tile_group.w))
              bias[i] = __ldg(biases + 8 * i) * kLog2E;
          }
        }
      }
      // With a scale of any sign, cells can be masked only after the exponential, which costs a
      // little more.
      if (Score::kIsLinear && step.y != 0)
        apply_fragments<kQueries / 2>(s, word0, word1, -INFINITY);
      const std::uint32_t lse =
          base + Layout::kLse + stage * Layout::kRowBytes + lane_now() % 4 * 8;
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j) {
        const float2 base_of = load_pair(lse + 32 * j);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& a = s[4 * j + 2 * i];
          float& b = s[4 * j + 2 * i + 1];
          const auto logit = [&](float product, float base, int e) {
            return Score::logit(product, p.scale_log2, Score::kAddsKeyBias ? bias[i] - base : -base,
                                arguments, [&] { return cell_place(i, 8 * j + e); });
          };
          [[maybe_unused]] float slopes[2];
          if constexpr (Score::kBends) {
            a = Score::bent(a, arguments);
            b = Score::bent(b, arguments);
          }
          if constexpr (kKeepsSlopes) {
            slopes[0] = Score::slope(a, arguments);
            slopes[1] = Score::slope(b, arguments);
          }
          a = logit(a, base_of.x, 0);
          b = logit(b, base_of.y, 1);
          if constexpr (!Score::kAddsTerms) {
            a = ptx::exp2_approx(a);
            b = ptx::exp2_approx(b);
          }
          if constexpr (kKeepsSlopes) {
            a = with_slope(a, slopes[0]);
            b = with_slope(b, slopes[1]);
          }
        }
      }
      if constexpr (Score::kAddsTerms) {
        static_assert(!Score::kBends, "the slopes of the products would take registers");
        Score::template add_terms<T, true>(s, arguments, cells_of);
#pragma unroll
        for (float& x : s) x = ptx::exp2_approx(x);
      }
      if (!Score::kIsLinear && step.y != 0) apply_fragments<kQueries / 2>(s, word0, word1, 0.0f);
      if constexpr (Weight::kDrops) {
        Weight::template find_kept<true, kQueries>(p.dropout, cells_of(0), kept);
      }
      std::uint32_t probabilities[kQueries / 16][4], scores[kQueries / 16][4];
      if constexpr (kHasValues && (!kPacksLate || !kHasKeys)) {
#pragma unroll
        for (int i = 0; i < kQueries / 4; ++i) {
          probabilities[i / 4][i % 4] = ptx::pack<T>(weighted(s[2 * i], i % 2, i / 2 * 8),
                                                     weighted(s[2 * i + 1], i % 2, i / 2 * 8 + 1));
        }
      }
      // A quarter of the exponentials is computed before the wait for dP. With fewer, or with all
      // of them there, the loop is slower.
      if constexpr (kHeld > 0 && !kPacksLate) ptx::compute_before(step.z, probabilities[0]);
      if constexpr (kAddsRows) {
        ptx::wgmma_wait<0>();
        ptx::pin_registers(dp);
#pragma unroll
        for (int at = 0; at < kQueries / 2; ++at) {
          dp[at] = weighted(dp[at], at / 2 % 2, at / 4 * 8 + at % 2);
          if constexpr (Weight::kDrops) dp[at] *= p.dropout.bits.factor;
        }
        add_up_rows(stage, step.z, s, dp);
      }
      if constexpr (kHasKeys) {
        ptx::wgmma_wait<0>();
        ptx::pin_registers(dp);
        // Found anew, because keeping them would take registers.
        if constexpr (kHasPlaces) find_places(stage, step.z);
        [[maybe_unused]] float bias_sum[2] = {0.0f, 0.0f};
        const std::uint32_t deltas =
            base + Layout::kDeltas + stage * Layout::kRowBytes + lane_now() % 4 * 8;
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
          const float2 delta = load_pair(deltas + 32 * j);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int at = 2 * j + i;
            if constexpr (kHasValues && kPacksLate) {
              probabilities[at / 4][at % 4] = ptx::pack<T>(weighted(s[2 * at], i, 8 * j),
                                                           weighted(s[2 * at + 1], i, 8 * j + 1));
            }
            // A weight of 0 with a slope is subnormal.
            const auto times = [](float weight, float x) {
              return kKeepsSlopes ? ptx::multiply_ftz(weight, x) : weight * x;
            };
            const float a = times(s[2 * at], less_delta(weighted(dp[2 * at], i, 8 * j), delta.x)),
                        b = times(s[2 * at + 1],
                                  less_delta(weighted(dp[2 * at + 1], i, 8 * j + 1), delta.y));
            if constexpr (Score::kAddsKeyBias) {
              bias_sum[i] += a;
              bias_sum[i] += b;
            }
            if constexpr (Score::kAddsTerms) {
              dp[2 * at] = a;
              dp[2 * at + 1] = b;
            }
            const auto gradient = [&](float ds, float weight, int e) {
              if constexpr (kKeepsSlopes) ds *= slope_in(weight);
              return Score::gradient(ds, arguments, [&] { return cell_place(i, 8 * j + e); });
            };
            scores[at / 4][at % 4] =
                ptx::pack<T>(gradient(a, s[2 * at], 0), gradient(b, s[2 * at + 1], 1));
          }
        }
        if constexpr (Score::kAddsTerms) {
          Score::template add_gradients<T>(dp, arguments, cells_of(0));
        }
        if constexpr (Score::kAddsKeyBias) {
          const float2 before = load_pair(bias_sums());
          store_pair(bias_sums(), before.x + bias_sum[0], before.y + bias_sum[1]);
        }
        // dS^T as [key, query], panels of 64 queries.
        const std::uint32_t scores_to = scores_of(scores_at, 0);
        if constexpr (kStages == 1) {  // both have read the dS of the step before
          ptx::named_barrier_sync(kScoreBarrier, kComputeThreads);
        }
#pragma unroll
        for (int j = 0; j < kQueries / 16; ++j) {
          ptx::stmatrix_x4(kAlternates ? scores_to ^ (32 * j) : scores_of(scores_at, 16 * j),
                           scores[j][0], scores[j][1], scores[j][2], scores[j][3]);
        }
      }
      if constexpr (kHasValues) {
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kQueries / 16; ++i) {
          ptx::product<T, kDimV>::template registers<ptx::Major::mn>(
              dv, probabilities[i], o_columns + stage * kOAdvance + mn_major_advance(i), 1);
        }
        ptx::wgmma_commit();
      }
      if constexpr (kHasKeys) {
        ptx::fence_async_shared();
        float dq[kPartColumns / 2];
        const auto issue_dq = [&](int part) {
          ptx::wgmma_fence();
#pragma unroll
          for (int i = 0; i < Layout::kTileGroupKeys / 16; ++i) {
            ptx::product<T, kPartColumns>::template shared<ptx::Major::mn, ptx::Major::mn>(
                dq, scores_t + scores_at * (Layout::kScoreBytes / 16) + mn_major_advance(i),
                k_columns + part * (Layout::kPanelBytesKey / 16) + mn_major_advance(i), i != 0);
          }
          ptx::wgmma_commit();
        };
        const auto issue_dk = [&] {
#pragma unroll
          for (int i = 0; i < kQueries / 16; ++i) {
            ptx::product<T, kDimQk>::template registers<ptx::Major::mn>(
                dk, scores[i], q_columns + stage * kQAdvance + mn_major_advance(i), 1);
          }
          ptx::wgmma_commit();
        };
        if (kAlternates && scores_at != group) {
          ptx::wgmma_fence();
          issue_dk();
          // Of the step before: the other warpgroup's dQ goes to the same shared memory
          wait_until_copied();
          hand_over(kScoreBarrier + scores_at);
        } else {
          ptx::named_barrier_sync(kScoreBarrier + (kAlternates ? scores_at : 0), kComputeThreads);
          issue_dq(0);
          issue_dk();
          if constexpr (Layout::kAddsInBulk) wait_for_accum();
          ptx::wgmma_wait<1>();
          ptx::pin_registers(dq);
          if constexpr (!kAlternates) release(base + Layout::kOEmpty + 8 * stage);
          if constexpr (Score::kAddsInOrder && !Layout::kAddsInBulk) wait_for_dq_semaphore(stage);
#pragma unroll
          for (int part = 0; part < kSumParts; ++part) {
            if (part > 0) {
              issue_dq(part);
              ptx::wgmma_wait<0>();
              ptx::pin_registers(dq);
            }
            if constexpr (Layout::kAddsInBulk) {
              put_accum(base + Layout::kDqAccum + dq_accum_warp() * kWarpDqAccumBytes +
                            part * (kWarpDqAccumBytes / kSumParts),
                        dq, lane_now());
              continue;
            }
            float* sums =
                p.places.dq_accum + std::int64_t{static_cast<int>(step.z)} * (kSumRows * kDimQk) +
                sum_place<kDimQk>(thread_now(), group * kSumColumns<kDimQk> + part * kPartColumns);
#pragma unroll
            for (int i = 0; i < kPartColumns / 8; ++i) {
              ptx::reduce_add_x4(sums + i * kSumLanes, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2],
                                 dq[4 * i + 3]);
            }
          }
          if constexpr (Layout::kAddsInBulk) {
            add_sums(step);
          } else if constexpr (Score::kAddsInOrder) {
            give_dq_position(stage);
          }
        }
      }
      // With two buffers the next step is read before this one has ended.
      ring.advance();
      if constexpr (kStages > 1) step = wait_for_step();
      ptx::wgmma_wait<0>();
      if constexpr (kHasKeys) ptx::pin_registers(dk);
      if constexpr (kHasValues) ptx::pin_registers(dv);
      if constexpr (!kAddsRows) {
        if constexpr (!kHasKeys || kAlternates) release(base + Layout::kOEmpty + 8 * stage);
        release(base + Layout::kQEmpty + 8 * stage);
      }
      if constexpr (kStages == 1) step = wait_for_step();
    }

    // K and V of the next tile group may be loaded while gradients are written.
    const uint4 tile_group = tile_group_at(ring.stage);
    ptx::mbarrier_wait(base + Layout::kOFull + 8 * ring.stage, ring.phase, "compute: unit's end");
    __syncwarp();
    release(base + Layout::kQEmpty + 8 * ring.stage);
    release(base + Layout::kOEmpty + 8 * ring.stage);
    release(base + Layout::kKvEmpty);
    ring.advance();
    is_done = (step.x & kStepEndsAll) != 0;
    if constexpr (Reader::kIsListed) {
      set_worklist_row(tile_group, is_done);
    } else {
      const int lane = lane_now();
      const int batch = static_cast<int>(tile_group.x), kv_head = static_cast<int>(tile_group.y),
                key = static_cast<int>(tile_group.z) + key_row(),
                kv_len = static_cast<int>(tile_group.w);
      if constexpr (kHasKeys) {
        store_gradient_rows<T, kDimQk>(p.dk, p.dk.strides.head_offset(batch, kv_head), dk, p.scale,
                                       key, kv_len, 0, p.head_dim, lane);
      }
      if constexpr (kHasValues) {
        store_gradient_rows<T, kDimV>(p.dv, p.dv.strides.head_offset(batch, kv_head), dv,
                                      factor_of_kept<Weight>(p.dropout), key, kv_len, 0,
                                      p.head_dim_v, lane);
      }
      if constexpr (Score::kAddsKeyBias && kHasKeys) {
        const float2 sums = load_pair(bias_sums());
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float sum = i == 0 ? sums.x : sums.y;
          sum += __shfl_xor_sync(~0u, sum, 1);
          sum += __shfl_xor_sync(~0u, sum, 2);
          if (p.dkey_bias.data != nullptr && lane % 4 == 0 && key + 8 * i < kv_len) {
            p.dkey_bias.place(batch, kv_head, key)[8 * i] = sum;
          }
        }
      }
    }
  }
  if constexpr (kHasKeys && Layout::kAddsInBulk) ptx::bulk_wait<0>();
}

}  // namespace fdma::sm90
