// The warps that feed the computing warpgroups of the forward kernel (the first warpgroup). One
// thread (load_tiles) takes work tiles and issues the TMA loads of Q, K and V. Two warps
// (make_masks) make mask fragments of the tiles that need them. Loads and masks walk the same
// segments, so they agree without communication. The file is long, because both walks are read side
// by side.
#pragma once

#include <cstdint>

#include "cuda/mask_fragments.cuh"
#include "cuda/score.cuh"
#include "cuda/tile_walk.cuh"
#include "cuda/work_tiles.cuh"
#include "ptx/addresses.cuh"
#include "ptx/grid.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/forward/kv_reader.cuh"
#include "sm90/forward/params.hpp"

namespace fdma::sm90 {

constexpr int kNoTail = -1;
constexpr int kCopied = -2;  ///< in place of a mask warp: TMA does not load this step

/// The mask warps alternate over the tiles that need mask fragments.
__device__ __forceinline__ int next_mask_warp(int warp) {
  return warp == kMaskWarps - 1 ? 0 : warp + 1;
}

template <class Layout>
__device__ __forceinline__ std::uint32_t v_tail_barrier(std::uint32_t base, int stage,
                                                        int mask_warp) {
  return base + Layout::kVTail + 8 * (stage * kMaskWarps + mask_warp);
}

/// What the computing warps are told of a step: whether it is masked, and its first key where a
/// policy needs places.
template <class Score, class Weight>
__device__ __forceinline__ int step_word(int is_masked, int key_begin) {
  return kAsksForPlaces<Score, Weight> ? 2 * key_begin + is_masked : is_masked;
}

/// Takes work tiles until there are none, broadcasts each and loads its tiles in the order in which
/// they are needed: K of a step, then V of the step before, across work tiles. One thread.
template <class Layout, class Score, class Weight, class Reader>
__device__ __forceinline__ void load_tiles(const ForwardParams& p, std::uint32_t base) {
  ptx::Ring<Layout::kStages> k_ring, v_ring;
  ptx::Ring<Layout::kQBuffers> q_ring;
  ptx::Ring<Layout::kWorkTileSlots> work_tile_ring;

  // The V that is loaded next: that of the last step whose K was loaded.
  struct Pending {
    int key_begin, kv_head, batch;
    int tail_warp;  ///< the mask warp that zeroes its tail, kNoTail, or kCopied
    const CUtensorMap* map;
  } pending{};
  const auto load_pending = [&] {
    const int stage = v_ring.stage;
    const std::uint32_t full = pending.tail_warp == kNoTail
                                   ? base + Layout::kVFull + 8 * stage
                                   : v_tail_barrier<Layout>(base, stage, pending.tail_warp);
    ptx::mbarrier_wait(base + Layout::kVEmpty + 8 * stage, v_ring.phase ^ 1, "load: V empty");
    if constexpr (Reader::kExtraWarps > 0) {
      const bool is_copied = pending.tail_warp == kCopied;
      ptx::mbarrier_arrive_times(base + Layout::kVFull + 8 * stage,
                                 is_copied ? ptx::kWarpInsertions : Reader::kInsertions);
      if (is_copied) {
        v_ring.advance();
        return;
      }
    }
    if (pending.tail_warp == kNoTail) {
      // Where a tail is zeroed, the mask warp arrives in place of this thread.
      for (std::uint32_t i = 1; i < ptx::kWarpInsertions; ++i) ptx::mbarrier_arrive(full);
    }
    ptx::mbarrier_arrive_expect(full, Layout::kVBytes);
#pragma unroll
    for (int panel = 0; panel < Layout::kPanelsV; ++panel) {
      ptx::tma_load_5d(base + Layout::kV + stage * Layout::kVBytes + panel * Layout::kPanelBytesKey,
                       pending.map, full, panel * kPanelColumns, 0, pending.key_begin,
                       pending.kv_head, pending.batch, ptx::kEvictLast);
    }
    v_ring.advance();
  };

  // While many work tiles are left, the next one is taken at the first tile of this one. Near the
  // end it is taken late, in the last three tiles, so that the longest work tiles go to the blocks
  // that are free first.
  constexpr int kManyWorkTiles = 16;  // per block
  constexpr int kLateTiles = 3;
  bool is_first = true;
  int mask_warp = 0;  // the mask warp of the next tile that needs mask fragments
  // Every block takes indices until it gets none. That is num_work_tiles times in all, after which
  // the counter is 0.
  const auto take_index = [&] {
    const auto last = static_cast<unsigned>(p.plan.num_work_tiles - 1);
    auto* const counter = reinterpret_cast<unsigned*>(p.next_work_tile);
    return static_cast<std::int32_t>(gridDim.x + atomicInc(counter, last));
  };
  ptx::wait_for_grid_before();  // the grid before resets the counter and orders tile rows
  auto index = static_cast<std::int32_t>(blockIdx.x);
  WorkTile next;
  TileRowTiles row;  // of a closed-form plan
  typename Reader::Part part, next_part;
  const auto read_next = [&] {
    next = read_work<Reader::kTakesClosedForms>(p, index);
    next_part = Reader::take(p, next);
    if constexpr (Reader::kTakesClosedForms) row = read_row(p, next);
  };
  read_next();
  for (;;) {
    BroadcastTile work_tile{};
    work_tile.num_tiles = kNoWorkTile;
    const std::uint32_t slot =
        base + Layout::kItem + work_tile_ring.stage * Layout::kWorkTileSlotBytes;
    ptx::mbarrier_wait(base + Layout::kWorkTileEmpty + 8 * work_tile_ring.stage,
                       work_tile_ring.phase ^ 1, "load: work tile empty");
    if (next.num_tiles != kNoWorkTile) {
      work_tile.kv_head = next.head / p.group_size;
      work_tile.head_in_group = next.head - work_tile.kv_head * p.group_size;
      work_tile.num_heads = min(1 << p.plan.pack_shift, p.group_size - work_tile.head_in_group);
      work_tile.num_segments = next.num_segments;
      if (Reader::kTakesClosedForms && next.first_segment == kOwnSegments) {
        if (row.num_tiles == kNoRow) {
          index = take_index();
          read_next();
          continue;
        }
        if (row.num_tiles > 0) {
          store_band(slot + Layout::kWorkTileBand, row_of(p, next)->band);
          work_tile.num_segments = store_segments(slot + Layout::kWorkTileSegments, row);
        }
        set_row(p.plan, row, work_tile.head_in_group, work_tile.kv_head, next);
        work_tile.first_document = row.first_document;
        work_tile.last_document = row.last_document;
      }
      const int2 lengths = lengths_of(p.plan, p.lengths, next.batch);
      work_tile.num_tiles = max(next.num_tiles, 1);
      work_tile.q_begin = next.q_tile * p.plan.block_q;
      work_tile.head = next.head;
      work_tile.batch = next.batch;
      work_tile.q_len = lengths.x;
      work_tile.kv_len = lengths.y;
      work_tile.first_segment = next.first_segment;
      work_tile.step = next.step;
      work_tile.first_tile = next.first_tile;
      work_tile.partial = next.partial;
      if (next.num_entries != kTensorKeys) {
        work_tile.kv_len = next.num_entries;
        work_tile.first_document = kPermutedKeys;
      }
    }
    const bool is_permuted = work_tile.first_document == kPermutedKeys;
    store_work_tile(slot, work_tile);
    part = next_part;
    Reader::broadcast(slot + Layout::kWorkTileGather, part);
    ptx::mbarrier_arrive(base + Layout::kWorkTileFull + 8 * work_tile_ring.stage);
    work_tile_ring.advance();
    if (work_tile.num_tiles == kNoWorkTile) break;

    const std::uint32_t q_full = base + Layout::kQFull + 8 * q_ring.stage;
    const std::uint32_t q = base + Layout::kQ + q_ring.stage * Layout::kQBytes;
    ptx::mbarrier_wait(base + Layout::kQEmpty + 8 * q_ring.stage, q_ring.phase ^ 1,
                       "load: Q empty");
    ptx::mbarrier_arrive_expect(q_full, Layout::kQBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int panel = 0; panel < Layout::kPanelsQk; ++panel) {
        ptx::tma_load_5d(q + (half * Layout::kPanelsQk + panel) * Layout::kPanelBytesQ, &p.q,
                         q_full, panel * kPanelColumns, work_tile.head_in_group,
                         work_tile.q_begin + (half * kHalfRows >> p.plan.pack_shift),
                         work_tile.kv_head, work_tile.batch, ptx::kEvictFirst);
      }
    }
    q_ring.advance();

    TileWalk walk(segments_of<Layout>(p.plan, work_tile, slot), work_tile);
    const bool are_many =
        index < p.plan.num_work_tiles - kManyWorkTiles * static_cast<int>(gridDim.x);
    const int take_at = are_many ? 0 : max(work_tile.num_tiles - kLateTiles, 0);
    const int read_at = min(take_at + 1, work_tile.num_tiles - 1);
    for (int n = 0; n < work_tile.num_tiles; ++n) {
      if (n == take_at) index = take_index();
      if (n == read_at) read_next();
      TileStep step;
      TilePlace place;
      const bool is_listed = Reader::kHasLists && n >= part.num_tiles;
      const bool is_copied = Reader::copies(is_listed);
      if (!is_listed) walk.template next<!Reader::kHasLists>(p.plan, step, place);
      const bool is_masked =
          is_listed ? part.is_masked(n - part.num_tiles) : needs_fragments(step, place);
#pragma unroll
      for (int i = 0; i < Layout::kSteps; ++i) {
        const int key_begin = place.key_begin + i * Layout::kStepKeys;
        const int stage = k_ring.stage;
        const std::uint32_t k_full = base + Layout::kKFull + 8 * stage;
        ptx::mbarrier_wait(base + Layout::kKEmpty + 8 * stage, k_ring.phase ^ 1, "load: K empty");
        ptx::store_word(base + Layout::kStepWords + 4 * stage,
                        step_word<Score, Weight>(static_cast<int>(is_masked), key_begin));
        if constexpr (Reader::kExtraWarps > 0) {
          ptx::mbarrier_arrive_times(k_full, is_copied ? 1 : Reader::kInsertions);
        }
        if (!is_copied) {
          ptx::mbarrier_arrive_expect(k_full, Layout::kKBytes);
#pragma unroll
          for (int panel = 0; panel < Layout::kPanelsQk; ++panel) {
            ptx::tma_load_5d(
                base + Layout::kK + stage * Layout::kKBytes + panel * Layout::kPanelBytesKey,
                is_permuted ? &p.permuted_k : &p.k, k_full, panel * kPanelColumns, 0, key_begin,
                work_tile.kv_head, work_tile.batch, ptx::kEvictLast);
          }
        }
        k_ring.advance();
        if (!is_first) load_pending();
        is_first = false;
        const bool has_tail = has_foreign_tail(place, key_begin, Layout::kStepKeys, p.v_rows);
        pending = {key_begin, work_tile.kv_head, work_tile.batch,
                   is_copied  ? kCopied
                   : has_tail ? mask_warp
                              : kNoTail,
                   is_permuted ? &p.permuted_v : &p.v};
      }
      if (Score::kAddsKeyBias || is_masked) mask_warp = next_mask_warp(mask_warp);
    }
  }
  if (!is_first) load_pending();
}

/// Zeroes the keys of a step of V from `first_row` on and signals that V is full.
template <class Layout>
__device__ __forceinline__ void zero_tail(std::uint32_t base, int stage, int first_row, int lane) {
  constexpr int kPieces = kPanelRowBytes / 16;
  const std::uint32_t tile = base + Layout::kV + stage * Layout::kVBytes;
#pragma unroll
  for (int panel = 0; panel < Layout::kPanelsV; ++panel) {
    const std::uint32_t rows = tile + panel * Layout::kPanelBytesKey;
    for (int i = first_row * kPieces + lane; i < Layout::kStepKeys * kPieces; i += kWarpSize) {
      store_words(rows + 16 * i, make_uint4(0, 0, 0, 0));
    }
  }
  ptx::fence_async_shared();
  __syncwarp();
  ptx::mbarrier_arrive_warp(base + Layout::kVFull + 8 * stage, lane);
}

/// Writes the key biases of a tile, times log2(e) or as terms; 0 where there is none.
template <bool kTerms>
__device__ __forceinline__ void write_biases(std::uint32_t to, const ForwardParams& p,
                                             const BroadcastTile& work_tile, const TilePlace& place,
                                             int lane) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const bool is_permuted = work_tile.first_document == kPermutedKeys;
  const float* bias =
      is_permuted ? p.permuted_bias + (work_tile.batch * p.plan.heads_kv + work_tile.kv_head) *
                                          p.max_permuted_keys
                  : p.key_bias.head(work_tile.batch, work_tile.kv_head);
  for (int i = lane; i < kTileKeys; i += kWarpSize) {
    const int key = place.key_begin + i;
    const float value =
        p.key_bias.data != nullptr && key < place.kv_len ? __ldcg(bias + key) : 0.0f;
    if constexpr (kTerms) {
      store_words(to + 16 * i, bias_terms(value * inverse_scale(fabsf(p.scale_log2))));
    } else {
      ptx::store_float(to + 4 * i, value * kLog2E);
    }
  }
}

/// Negates the queries of a work tile; `stage` and `phase` are those of their buffer. One warp,
/// whose later fence and arrival make the result visible.
template <class Layout>
__device__ __forceinline__ void negate_queries(std::uint32_t base, int stage, std::uint32_t phase,
                                               int lane) {
  constexpr std::uint32_t kSigns = 0x80008000;  // of two elements
  ptx::mbarrier_wait(base + Layout::kQFull + 8 * stage, phase, "mask: Q full");
  const std::uint32_t q = base + Layout::kQ + stage * Layout::kQBytes;
#pragma unroll 1
  for (int i = 16 * lane; i < Layout::kQBytes; i += 16 * kWarpSize) {
    const uint4 words = load_words(q + i);
    store_words(q + i,
                make_uint4(words.x ^ kSigns, words.y ^ kSigns, words.z ^ kSigns, words.w ^ kSigns));
  }
}

/// Makes the mask fragments of every second tile that needs them, and its biases where the score
/// adds them. One of two warps.
template <class Layout, class Score, class Reader, bool kTerms>
__device__ __forceinline__ void make_masks(const ForwardParams& p, std::uint32_t base,
                                           int mask_warp, int lane) {
  ptx::Ring<Layout::kMaskSlots> slots;
  ptx::Ring<Layout::kStages> v_ring;
  ptx::Ring<Layout::kWorkTileSlots> work_tile_ring;
  int turn = 0;                   // the mask warp of the next tile
  std::uint32_t tail_phases = 0;  // phases of this warp's barriers kVTail, one bit per stage
  for (;;) {
    ptx::mbarrier_wait(base + Layout::kWorkTileFull + 8 * work_tile_ring.stage,
                       work_tile_ring.phase, "mask: work tile full");
    const std::uint32_t work_tile_slot =
        base + Layout::kItem + work_tile_ring.stage * Layout::kWorkTileSlotBytes;
    // Other members of the work tile are read anew where they are needed, because they would take
    // registers.
    const BroadcastTile work_tile = read_work_tile(work_tile_slot);
    if (work_tile.num_tiles == kNoWorkTile) return;
    TileWalk walk(segments_of<Layout>(p.plan, work_tile, work_tile_slot), work_tile);
    const typename Reader::Part part = Reader::read(work_tile_slot + Layout::kWorkTileGather);
    int index_tile = -part.num_tiles;
    for (int left = work_tile.num_tiles; left > 0; --left, ++index_tile) {
      TileStep step;
      TilePlace place;
      const bool is_listed = Reader::kHasLists && index_tile >= 0;
      if (!is_listed) walk.template next<!Reader::kHasLists>(p.plan, step, place);
      const bool is_masked = is_listed ? part.is_masked(index_tile) : needs_fragments(step, place);
      const bool has_slot = Score::kAddsKeyBias || is_masked;
      const bool is_own = has_slot && turn == mask_warp;
      if (is_own) {
        const std::uint32_t slot = base + Layout::kMask + slots.stage * Layout::kMaskBytes;
        ptx::mbarrier_wait(base + Layout::kMaskEmpty + 8 * slots.stage, slots.phase ^ 1,
                           "mask: slot empty");
        const std::uint32_t biases =
            base + (kTerms ? Layout::kTerms + slots.stage * Layout::kTermBytes
                           : Layout::kBias + slots.stage * Layout::kBiasBytes);
        // Where registers are few, values derived from the lane are not kept between tiles.
        const int own_lane = Score::kAddsKeyBias || Reader::kHasLists ? ptx::opaque(lane) : lane;
        if constexpr (kTerms) {
          // Scores use the absolute value of the scale. A work tile's first mask is waited for
          // before its first product.
          static_assert(Layout::kQBuffers == Layout::kWorkTileSlots);
          if (p.scale_log2 < 0 && left == work_tile.num_tiles) {
            negate_queries<Layout>(base, work_tile_ring.stage, work_tile_ring.phase, own_lane);
          }
        }
        if (is_listed) {
          Reader::template write_index_tile<Score, kTerms>(slot, biases, p, work_tile_slot,
                                                           work_tile_slot + Layout::kWorkTileGather,
                                                           index_tile, is_masked, own_lane);
        } else {
          if (is_masked) {
            write_mask<4, Reader::kTakesClosedForms>(slot, p, work_tile_slot,
                                                     work_tile_slot + Layout::kWorkTileBand, step,
                                                     place, own_lane);
          }
          if constexpr (Score::kAddsKeyBias) {
            write_biases<kTerms>(biases, p, read_work_tile(work_tile_slot), place,
                                 Reader::kHasLists ? own_lane : lane);
          }
        }
        if constexpr (kTerms) ptx::fence_async_shared();
        __syncwarp();
        ptx::mbarrier_arrive_warp(base + Layout::kMaskFull + 8 * slots.stage, lane);
      }
      if (has_slot) {
        turn = next_mask_warp(turn);
        slots.advance();
      }
#pragma unroll
      for (int part = 0; part < Layout::kSteps; ++part, v_ring.advance()) {
        const int key_begin = place.key_begin + part * Layout::kStepKeys;
        if (Reader::copies(is_listed) || !is_own ||
            !has_foreign_tail(place, key_begin, Layout::kStepKeys, p.v_rows)) {
          continue;
        }
        ptx::mbarrier_wait(v_tail_barrier<Layout>(base, v_ring.stage, mask_warp),
                           tail_phases >> v_ring.stage & 1, "mask: V tail");
        tail_phases ^= 1u << v_ring.stage;
        zero_tail<Layout>(base, v_ring.stage, max(place.kv_len - key_begin, 0), lane);
      }
    }
    // The work tile's segments may lie in the slot, so it is released only here.
    __syncwarp();
    ptx::mbarrier_arrive_warp(base + Layout::kWorkTileEmpty + 8 * ptx::opaque(work_tile_ring.stage),
                              lane);
    work_tile_ring.advance();
  }
}

}  // namespace fdma::sm90
