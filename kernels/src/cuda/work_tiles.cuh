// Work tiles of a plan as one thread takes them, and their broadcast through shared memory.
#pragma once

#include <cstdint>

#include "cuda/partials.hpp"
#include "cuda/tile_rows.hpp"
#include "cuda/work_tile.hpp"
#include "ptx/addresses.cuh"
#include "ptx/grid.cuh"

namespace fdma::gpu {

using ptx::load_words, ptx::store_words;

/// Reads a BroadcastTile or a TileGroup, whose words are the same.
template <class Tile>
__device__ __forceinline__ Tile read_broadcast(std::uint32_t slot) {
  const uint4 a = load_words(slot), b = load_words(slot + 16), c = load_words(slot + 32),
              d = load_words(slot + 48);
  return {
      static_cast<int>(a.x), static_cast<int>(a.y), static_cast<int>(a.z), static_cast<int>(a.w),
      static_cast<int>(b.x), static_cast<int>(b.y), static_cast<int>(b.z), static_cast<int>(b.w),
      static_cast<int>(c.x), static_cast<int>(c.y), static_cast<int>(c.z), static_cast<int>(c.w),
      static_cast<int>(d.x), static_cast<int>(d.y), static_cast<int>(d.z), static_cast<int>(d.w)};
}
__device__ __forceinline__ BroadcastTile read_work_tile(std::uint32_t slot) {
  return read_broadcast<BroadcastTile>(slot);
}
__device__ __forceinline__ TileGroup read_tile_group(std::uint32_t slot) {
  return read_broadcast<TileGroup>(slot);
}

/// Work tile `index` of the plan, with num_tiles kNoWorkTile after the last one. Without
/// kTakesClosedForms the plan holds work tiles.
///
/// In a closed-form plan work tiles are counted by batch element, groups of KV heads in L2
/// (heads_in_l2), tile rows, heads and splits of a row. q_tile is then the rank of the tile row,
/// and first_tile is the split.
template <bool kTakesClosedForms = true, class Params>
__device__ __forceinline__ WorkTile read_work(const Params& p, std::int32_t index) {
  const PlanArrays& plan = p.plan;
  WorkTile work_tile{};
  if (index >= plan.num_work_tiles) {
    work_tile.num_tiles = kNoWorkTile;
    return work_tile;
  }
  if (!kTakesClosedForms || plan.num_closed_forms == 0) return plan.work_tiles[index];
  const int per_head = plan.max_tile_rows * plan.num_splits * plan.num_sets;  // per KV head
  const int per_batch = per_head * plan.heads_kv;
  work_tile.batch = index / per_batch;
  int rest = index % per_batch;
  const int l2_group = rest / (per_head * plan.heads_in_l2);
  rest -= l2_group * per_head * plan.heads_in_l2;
  const int first_head = l2_group * plan.heads_in_l2;
  const int per_row =
      min(plan.heads_in_l2, plan.heads_kv - first_head) * plan.num_sets * plan.num_splits;
  work_tile.q_tile = rest / per_row;
  rest -= work_tile.q_tile * per_row;
  const int set = rest / plan.num_splits;
  work_tile.first_tile = rest % plan.num_splits;
  work_tile.head =
      (first_head + set / plan.num_sets) * p.group_size + (set % plan.num_sets << plan.pack_shift);
  work_tile.first_segment = kOwnSegments;
  return work_tile;
}

/// Address of the tile row of a work tile of a closed-form plan, before set_row.
template <class Params>
__device__ __forceinline__ const TileRow* row_of(const Params& p, const WorkTile& work_tile) {
  return p.tile_rows + static_cast<std::int64_t>(work_tile.batch) * p.plan.max_tile_rows +
         work_tile.q_tile;
}

/// Reads the tile row of a work tile ahead. Its band would take too many registers until the work
/// tile is broadcast, so it is only prefetched.
template <class Params>
__device__ __forceinline__ TileRowTiles read_row(const Params& p, const WorkTile& work_tile) {
  if (work_tile.num_tiles == kNoWorkTile || work_tile.first_segment != kOwnSegments)
    return TileRowTiles{};
  const TileRow* row = row_of(p, work_tile);
  ptx::prefetch_l1(&row->band);
  return row->tiles;
}

/// Sets the members of a work tile that follow from its tile row.
__device__ __forceinline__ void set_row(const PlanArrays& plan, const TileRowTiles& row,
                                        int head_in_group, int kv_head, WorkTile& work_tile) {
  const int split = work_tile.first_tile;
  work_tile.q_tile = row.q_tile;
  work_tile.num_tiles = row.num_tiles;
  work_tile.first_tile = 0;
  work_tile.partial = kWholeRow;
  if (plan.num_splits > 1) {
    const SplitGrid grid{plan.max_tile_rows, plan.heads_kv * plan.num_sets, plan.num_splits};
    const int set = kv_head * plan.num_sets + (head_in_group >> plan.pack_shift);
    work_tile.partial = grid.partial_of(work_tile.batch, work_tile.q_tile, set, split);
    work_tile.first_tile = grid.first_tile(row.num_tiles, split);
    work_tile.num_tiles = grid.first_tile(row.num_tiles, split + 1) - work_tile.first_tile;
  }
}

/// Writes the segments of a run of tiles to `to` after `count` others, and counts them.
__device__ __forceinline__ void store_tile_run(std::uint32_t to,
                                               const ClosedFormWalk::TileRun& tile_run,
                                               int& count) {
  const auto store = [&](int first, int end, PlanSegmentKind kind) {
    if (first >= end) return;
    const std::uint32_t at = to + count * static_cast<int>(sizeof(PlanSegment));
    ptx::store_words2(at, first, end);
    ptx::store_words2(at + 8, 0, 0);
    ptx::store_words2(at + 16, static_cast<int>(kind), 0);
    ++count;
  };
  const int full_first = min(max(tile_run.full_first, tile_run.first), tile_run.end);
  const int full_end = min(max(tile_run.full_end, full_first), tile_run.end);
  store(tile_run.first, full_first, PlanSegmentKind::closed_form);
  store(full_first, full_end, PlanSegmentKind::full);
  store(full_end, tile_run.end, PlanSegmentKind::closed_form);
}

/// Writes the segments of a tile row behind its work tile; returns their number.
__device__ __forceinline__ int store_segments(std::uint32_t to, const TileRowTiles& row) {
  int count = 0;
#pragma unroll
  for (const ClosedFormWalk::TileRun& tile_run : row.tile_runs) store_tile_run(to, tile_run, count);
  return count;
}

__device__ __forceinline__ void store_work_tile(std::uint32_t slot,
                                                const BroadcastTile& work_tile) {
  store_words(slot,
              make_uint4(work_tile.num_tiles, work_tile.q_begin, work_tile.head, work_tile.batch));
  store_words(slot + 16, make_uint4(work_tile.q_len, work_tile.kv_len, work_tile.first_segment,
                                    work_tile.num_segments));
  store_words(slot + 32, make_uint4(work_tile.step, work_tile.first_tile, work_tile.partial,
                                    work_tile.first_document));
  store_words(slot + 48, make_uint4(work_tile.last_document, work_tile.kv_head,
                                    work_tile.head_in_group, work_tile.num_heads));
}
__device__ __forceinline__ void store_tile_group(std::uint32_t slot, const TileGroup& group) {
  store_words(slot, make_uint4(group.num_tiles, group.key_begin, group.head, group.batch));
  store_words(slot + 16,
              make_uint4(group.kv_len, group.q_len, group.first_segment, group.num_segments));
  store_words(slot + 32, make_uint4(group.step_or_full_begin, group.full_end,
                                    group.first_work_tile_or_accum_row, group.first_document));
  store_words(slot + 48,
              make_uint4(group.last_document, group.kv_head, group.next_visit, group.position));
}

}  // namespace fdma::gpu
