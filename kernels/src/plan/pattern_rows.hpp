// Patterns of a mask as plans hold them: which tile rows of a run share segments, how tiles of a
// pattern are counted, and sums over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/segment_plan.hpp"

namespace fdma {

/// Tile rows of a run after which its pattern segments have the same tiles and all their ends have
/// moved by whole turns; num_rows of the run if that is less. 1: the run has no pattern segments.
///
/// Example     `causal & k % 640 < 128`, blocks 128 x 128: 5, because the last tile moves by 1
std::int32_t pattern_period(const SegmentMask& mask, const TileRun& run);

/// The shift of a PlanPattern whose tiles are those of `row`.
std::int32_t plan_shift(const PatternRow& row);

/// Tiles of a PlanPattern with these entries (PatternRow::tiles) and plan_shift that lie before
/// column `col` >= 0. Cost: O(log(tiles of the row)).
std::int64_t pattern_tiles_before(const PatternRow& row, std::int64_t col);

/// Calls visit(row, segments) for every tile row, with the steps of each segment applied. Pattern
/// segments stay: rows of masks with patterns come run after run, others in ascending order.
template <class Visit>
void for_each_row_with_patterns(const SegmentMask& mask, const Visit& visit) {
  if (!mask.has_patterns()) return for_each_tile_row(mask, visit);
  std::vector<TileSegment> segments;
  for (const TileRun& run : mask.runs) {
    const std::span of_run(mask.segments.data() + run.first_segment,
                           static_cast<std::size_t>(run.num_segments));
    for (std::int32_t i = 0; i < run.num_rows; ++i) {
      segments.assign(of_run.begin(), of_run.end());
      for (TileSegment& segment : segments) {
        segment.first_tile += i * segment.step_first;
        segment.end_tile += i * segment.step_end;
        segment.step_first = segment.step_end = 0;
      }
      visit(run.first_row + i * run.row_stride, std::span<const TileSegment>(segments));
    }
  }
}

/// Sums of a value over tiles of patterns. Entries are added once; then a sum costs O(1), however
/// many tiles it has. Value: `+=`, `-`, and `*` with a number of turns.
template <class Value>
class PatternSums {
 public:
  /// Adds the value of the next entry.
  void add(const Value& value) {
    Value sum = before_.back();
    sum += value;
    before_.push_back(sum);
  }
  std::int64_t num_entries() const { return static_cast<std::int64_t>(before_.size()) - 1; }

  /// Over tiles [first, end) of a pattern with entries [first_entry, first_entry + num_entries).
  Value of(std::int64_t first_entry, std::int64_t num_entries, std::int64_t first,
           std::int64_t end) const {
    if (first >= end) return Value();
    return up_to(first_entry, num_entries, end) - up_to(first_entry, num_entries, first);
  }
  Value of(const PlanPattern& pattern, std::int64_t first, std::int64_t end) const {
    return of(pattern.first_entry, pattern.num_entries, first, end);
  }

 private:
  Value between(std::int64_t first, std::int64_t end) const {
    return before_[static_cast<std::size_t>(end)] - before_[static_cast<std::size_t>(first)];
  }
  Value up_to(std::int64_t first_entry, std::int64_t num_entries, std::int64_t end) const {
    Value sum = between(first_entry, first_entry + num_entries) * (end / num_entries);
    sum += between(first_entry, first_entry + end % num_entries);
    return sum;
  }

  std::vector<Value> before_{Value()};  // entry i: the sum of the values before i
};

/// Adds value_of(entry) for the entries that `plan` has got since the last call.
template <class Value, class ValueOf>
void add_entries(const SegmentPlan& plan, PatternSums<Value>& sums, const ValueOf& value_of) {
  for (auto i = static_cast<std::size_t>(sums.num_entries()); i < plan.pattern_entries.size();
       ++i) {
    sums.add(value_of(plan.pattern_entries[i]));
  }
}

/// Adds 1 for each full entry that `plan` has got since the last call: sums are numbers of full
/// tiles.
void add_full_entries(const SegmentPlan& plan, PatternSums<std::int64_t>& sums);

}  // namespace fdma
