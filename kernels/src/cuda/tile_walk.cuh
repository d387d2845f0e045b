// The tiles of a work tile, one after the other, as every warp of a kernel walks them.
#pragma once

#include <cstdint>

#include "cuda/plan_arrays.hpp"
#include "cuda/work_tile.hpp"
#include "fdma/kernels/segment_iterator.hpp"

namespace fdma::gpu {

/// Position of a tile: keys [key_begin, key_begin + 128) and rows from q_begin on of an element. In
/// a backward kernel rows are keys, and what is called a key here is a query.
struct TilePlace {
  std::int32_t q_begin;
  std::int32_t key_begin;
  std::int32_t kv_len;
};

/// True iff keys of the tile lie past the end, so that even a full tile has cells that do not
/// exist.
__device__ __forceinline__ bool is_ragged(const TilePlace& place) {
  return place.kv_len - place.key_begin < kTileKeys;
}

/// The segments of a broadcast work tile or tile group: the plan's, or those that lie behind it in
/// shared memory.
template <class Layout, class Tile>
__device__ __forceinline__ const PlanSegment* segments_of(const PlanArrays& plan,
                                                          const Tile& work_tile,
                                                          std::uint32_t slot) {
  if (work_tile.first_segment != kOwnSegments) return plan.segments;
  return static_cast<const PlanSegment*>(
      __cvta_shared_to_generic(slot + Layout::kWorkTileSegments));
}

/// Walks the tiles of a broadcast work tile. A work tile without keys has one tile, which has no
/// cells.
class TileWalk {
 public:
  __device__ __forceinline__ TileWalk(const PlanSegment* segments, const BroadcastTile& work_tile)
      : iterator_(segments,
                  WorkTile{0, 0, 0, work_tile.step, max(work_tile.first_segment, 0),
                           work_tile.num_segments, 0, 0, work_tile.first_tile, kWholeRow}),
        q_begin_(work_tile.q_begin),
        kv_len_(work_tile.kv_len) {}

  /// Called num_tiles times. `kHasPatterns` is false in kernels whose plans have none.
  template <bool kHasPatterns>
  __device__ __forceinline__ void next(const PlanArrays& plan, TileStep& step, TilePlace& place) {
    place = {q_begin_, 0, kv_len_};
    const bool has_tile = kHasPatterns ? iterator_.next(step, plan.patterns) : iterator_.next(step);
    if (has_tile) {
      place.key_begin = step.tile * kTileKeys;
    } else {
      step = {PlanSegmentKind::full, 0, 0, 0};
      place.kv_len = 0;
    }
  }

 private:
  SegmentIterator iterator_;
  std::int32_t q_begin_;
  std::int32_t kv_len_;
};

__device__ __forceinline__ bool needs_fragments(const TileStep& step, const TilePlace& place) {
  return step.kind != PlanSegmentKind::full || is_ragged(place);
}

/// True iff a copy of `num_keys` keys from `key` would bring along rows of V past the element's
/// last key. These rows may hold anything, and 0 * NaN is NaN.
__device__ __forceinline__ bool has_foreign_tail(const TilePlace& place, int key, int num_keys,
                                                 int v_rows) {
  return place.kv_len - key < num_keys && v_rows > place.kv_len;
}

}  // namespace fdma::gpu
