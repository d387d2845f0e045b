// SegmentIterator: the tiles of one work tile, one after the other. Host and device run the same
// code, so that the CPU backend, the counters of the estimator and the kernels cannot disagree.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"
#include "fdma/kernels/plan_arrays.hpp"

namespace fdma {

/// One tile or index tile to visit.
struct TileStep {
  PlanSegmentKind kind;
  std::int32_t data_index;  ///< index of the bitmap, row panel or kv index list
  std::int32_t tile;        ///< key tile; kind gather: index tile of its list
  std::int32_t offset;      ///< tiles of the segment before it (kind rows: within the panel)
};

/// Puts a step of kind full or bitmap in place of one over tile `step.tile` of a pattern.
FDMA_HOST_DEVICE inline void resolve_pattern(const PatternArrays& arrays, TileStep& step) {
  if (step.kind != PlanSegmentKind::pattern) return;
  const PlanPattern pattern = arrays.patterns[step.data_index];
  const std::int32_t turn = step.tile / pattern.num_entries;
  const PatternEntry entry =
      arrays.entries[pattern.first_entry + step.tile - turn * pattern.num_entries];
  step.tile = turn * pattern.num_cols + pattern.shift + entry.column;
  step.kind = entry.bitmap == kFullEntry ? PlanSegmentKind::full : PlanSegmentKind::bitmap;
  step.data_index = entry.bitmap == kFullEntry ? 0 : entry.bitmap;
}

/// Walks the segments of a work tile in their order, from its first tile on. A work tile of a split
/// row ends after num_tiles steps; its segments go on with the tiles of the next one. `patterns`
/// are those of the plan, the same at each call.
///
/// Example     SegmentIterator it(plan.segments.data(), work tile);
///             for (int i = 0; i < work_tile.num_tiles && it.next(step, plan.pattern_arrays()); ++i) {
///               visit(step);
///             }
class SegmentIterator {
 public:
  FDMA_HOST_DEVICE SegmentIterator(const PlanSegment* segments, const WorkTile& work_tile)
      : segment_(segments + work_tile.first_segment),
        last_(segment_ + work_tile.num_segments),
        step_(work_tile.step) {
    skip(work_tile.first_tile);
  }

  /// Goes on as if next had been called `count` times.
  FDMA_HOST_DEVICE void skip(std::int32_t count) {
    offset_ += count;
    while (offset_ > 0 && segment_ != last_) {
      const std::int32_t tiles = segment_->end_tile - segment_->first_tile +
                                 step_ * (segment_->step_end - segment_->step_first);
      if (offset_ < tiles) return;
      offset_ -= tiles;
      ++segment_;
    }
  }

  /// Sets `out` to the next tile; false after the last.
  FDMA_HOST_DEVICE bool next(TileStep& out, const PatternArrays& patterns) {
    if (!next(out)) return false;
    resolve_pattern(patterns, out);
    return true;
  }

  /// The same for a plan without patterns.
  FDMA_HOST_DEVICE bool next(TileStep& out) {
    while (segment_ != last_) {
      const std::int32_t first = segment_->first_tile + step_ * segment_->step_first;
      const std::int32_t end = segment_->end_tile + step_ * segment_->step_end;
      if (first + offset_ < end) {
        out = {segment_->kind, segment_->data_index, first + offset_, offset_};
        ++offset_;
        return true;
      }
      ++segment_;
      offset_ = 0;
    }
    return false;
  }

 private:
  const PlanSegment* segment_;
  const PlanSegment* last_;
  std::int32_t step_;
  std::int32_t offset_ = 0;
};

/// Walks the tiles of a work tile that is not split, from the first to the last or the other way
/// round (`is_down`, the same at each call, as `patterns` is).
///
/// Example     EitherWayIterator it(plan.segments.data(), work tile, true);
///             while (it.next(step, true, plan.pattern_arrays())) visit(step);  // the last tile first
class EitherWayIterator {
 public:
  FDMA_HOST_DEVICE EitherWayIterator(const PlanSegment* segments, const WorkTile& work_tile,
                                     bool is_down)
      : segment_(segments + work_tile.first_segment +
                 (is_down && work_tile.num_segments > 0 ? work_tile.num_segments - 1 : 0)),
        num_left_(work_tile.num_segments),
        step_(work_tile.step) {}

  /// Sets `out` to the next tile; false after the last.
  FDMA_HOST_DEVICE bool next(TileStep& out, bool is_down, const PatternArrays& patterns) {
    for (; num_left_ > 0; --num_left_) {
      const std::int32_t first = segment_->first_tile + step_ * segment_->step_first;
      const std::int32_t end = segment_->end_tile + step_ * segment_->step_end;
      if (first + num_walked_ < end) {
        const std::int32_t offset = is_down ? end - first - 1 - num_walked_ : num_walked_;
        out = {segment_->kind, segment_->data_index, first + offset, offset};
        ++num_walked_;
        resolve_pattern(patterns, out);
        return true;
      }
      segment_ += is_down ? -1 : 1;
      num_walked_ = 0;
    }
    return false;
  }

 private:
  const PlanSegment* segment_;
  std::int32_t num_left_;  ///< segments left, including this one
  std::int32_t step_;
  std::int32_t num_walked_ = 0;  ///< tiles walked of this segment
};

}  // namespace fdma
