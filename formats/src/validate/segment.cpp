// Validation of segment masks.
//
// A run is valid for all its tile rows iff it is valid for the first and the last, because every
// bound moves linearly in between. The runs must cover each tile row once. This is checked per
// residue modulo the row period: each run begins where the one before ended.
#include <algorithm>
#include <limits>

#include "fdma/formats/convert.hpp"
#include "validate/validation.hpp"

namespace fdma {
namespace {

Result<void> check_sizes(const SegmentMask& mask) {
  FDMA_TRY_VOID(check_tiled(mask.q_len, mask.kv_len, mask.block));
  FDMA_TRY_VOID(check_bitmap_words(mask.bitmaps.size(), mask.block));
  if (mask.row_offsets.empty()) {
    return corrupt("row_offsets: 0 entries, expected 1 + block_q times the number of row panels");
  }
  const std::size_t panel_rows = mask.row_offsets.size() - 1;
  const auto block_q = static_cast<std::size_t>(mask.block.block_q);
  if (panel_rows % block_q != 0 ||
      panel_rows / block_q > std::numeric_limits<std::int32_t>::max()) {
    return corrupt(fmt::format("row_offsets: {} entries, expected 1 + a multiple of block_q = {}",
                               mask.row_offsets.size(), block_q));
  }
  FDMA_TRY_VOID(check_offset_ends("row_offsets", mask.row_offsets, mask.row_intervals.size(),
                                  "row_intervals"));
  if (mask.column_offsets.empty()) {
    return check_size("column_intervals", mask.column_intervals.size(), 0,
                      "column_offsets is empty");
  }
  FDMA_TRY_VOID(
      check_size("column_offsets", mask.column_offsets.size(), mask.kv_len + 1, "kv_len + 1"));
  return check_offset_ends("column_offsets", mask.column_offsets, mask.column_intervals.size(),
                           "column_intervals");
}

class StructureCheck {
 public:
  explicit StructureCheck(const SegmentMask& mask)
      : mask_(mask),
        num_rows_(mask.num_tile_rows()),
        num_cols_(mask.num_tile_cols()),
        period_(row_period(mask.block)) {}

  Result<void> run() {
    FDMA_TRY_VOID(check_data_indices());
    FDMA_TRY_VOID(check_runs());
    for (std::size_t i = 0; i < mask_.runs.size(); ++i) {
      const TileRun& run = mask_.runs[i];
      FDMA_TRY_VOID(check_row(run, 0));
      if (run.num_rows > 1) FDMA_TRY_VOID(check_row(run, run.num_rows - 1));
    }
    return {};
  }

 private:
  Result<void> check_data_indices() {
    FDMA_TRY_VOID(check_ascending("row_offsets", mask_.row_offsets));
    FDMA_TRY_VOID(check_interval_lists("row_intervals", mask_.row_offsets, mask_.row_intervals,
                                       mask_.kv_len));
    extents_ = bitmap_extents(mask_.bitmaps, mask_.block);
    const std::int64_t block_q = mask_.block.block_q;
    panel_extents_.resize(static_cast<std::size_t>(mask_.num_row_panels()));
    for (std::size_t p = 0; p < panel_extents_.size(); ++p) {
      for (std::int64_t r = 0; r < block_q; ++r) {
        const std::size_t row = p * static_cast<std::size_t>(block_q) + static_cast<std::size_t>(r);
        const std::int64_t last = mask_.row_offsets[row + 1];
        if (last == mask_.row_offsets[row]) continue;
        panel_extents_[p].rows = static_cast<std::int32_t>(r) + 1;
        panel_extents_[p].keys = std::max(
            panel_extents_[p].keys, mask_.row_intervals[static_cast<std::size_t>(last) - 1].end);
      }
    }
    if (mask_.column_offsets.empty()) return {};
    FDMA_TRY_VOID(check_ascending("column_offsets", mask_.column_offsets));
    return check_interval_lists("column_intervals", mask_.column_offsets, mask_.column_intervals,
                                mask_.q_len);
  }

  Result<void> check_runs() {
    std::vector<std::int64_t> next_row(static_cast<std::size_t>(period_));
    for (std::size_t r = 0; r < next_row.size(); ++r) next_row[r] = static_cast<std::int64_t>(r);
    std::int64_t next_segment = 0, row_before = -1;
    for (std::size_t i = 0; i < mask_.runs.size(); ++i) {
      const TileRun& run = mask_.runs[i];
      if (run.row_stride != period_) {
        return bad_run(i, fmt::format("row_stride {}, expected {}", run.row_stride, period_));
      }
      if (run.first_row <= row_before) {
        return bad_run(i, fmt::format("first_row {}, expected more than {}, that of the run before",
                                      run.first_row, row_before));
      }
      row_before = run.first_row;
      std::int64_t& next = next_row[static_cast<std::size_t>(run.first_row % period_)];
      if (run.first_row != next) {
        return bad_run(i, fmt::format("first_row {}, but tile row {} comes next in its stride",
                                      run.first_row, next));
      }
      const std::int64_t last =
          run.first_row + (std::int64_t{run.num_rows} - 1) * std::int64_t{period_};
      if (run.num_rows < 1 || last >= num_rows_) {
        return bad_run(i, fmt::format("num_rows {} from tile row {} on, expected at least 1 and no "
                                      "row beyond {}",
                                      run.num_rows, run.first_row, num_rows_));
      }
      next = last + period_;
      if (run.num_segments < 0 || run.first_segment != next_segment ||
          run.num_segments > static_cast<std::int64_t>(mask_.segments.size()) - next_segment) {
        return bad_run(i, fmt::format("segments {} + {}, expected to begin at {} and end by {}",
                                      run.first_segment, run.num_segments, next_segment,
                                      mask_.segments.size()));
      }
      next_segment += run.num_segments;
    }
    for (const std::int64_t next : next_row) {
      if (next < num_rows_) return corrupt(fmt::format("runs: none holds tile row {}", next));
    }
    return check_size("segments", mask_.segments.size(), next_segment, "the runs hold as many");
  }

  // The segments of tile row `i` of a run.
  Result<void> check_row(const TileRun& run, std::int64_t i) {
    const std::int64_t row = run.first_row + i * run.row_stride;
    std::int64_t end_before = 0;
    for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
      const TileSegment& segment = mask_.segments[static_cast<std::size_t>(s)];
      const std::int64_t first = segment.first_tile + i * segment.step_first;
      const std::int64_t end = segment.end_tile + i * segment.step_end;
      if (first < end_before || first >= end || end > num_cols_) {
        return bad_segment(s, fmt::format("tiles [{}, {}) of tile row {}, expected a range inside "
                                          "[{}, {}) that is not empty",
                                          first, end, row, end_before, num_cols_));
      }
      end_before = end;
      FDMA_TRY_VOID(check_data_index(s, segment, row, first, end));
    }
    return {};
  }

  Result<void> check_data_index(std::int64_t s, const TileSegment& segment, std::int64_t row,
                                std::int64_t first, std::int64_t end) {
    const auto data_index = static_cast<std::size_t>(segment.data_index);
    BitmapExtent existing = existing_cells(mask_.q_len, mask_.kv_len, mask_.block, row, end - 1);
    switch (segment.kind) {
      case SegmentKind::bitmap:
        if (segment.data_index < 0 || segment.data_index >= mask_.num_bitmaps()) {
          return bad_data_index(s, segment.data_index, mask_.num_bitmaps());
        }
        return check_padding(fmt::format("segments[{}]", s), extents_[data_index], existing, row,
                             end - 1);
      case SegmentKind::rows:
        if (segment.data_index < 0 || segment.data_index >= mask_.num_row_panels()) {
          return bad_data_index(s, segment.data_index, mask_.num_row_panels());
        }
        existing.keys += static_cast<std::int32_t>((end - 1 - first) * mask_.block.block_kv);
        if (panel_extents_[data_index].rows > existing.rows ||
            panel_extents_[data_index].keys > existing.keys) {
          return bad_segment(
              s,
              fmt::format("row panel {} reaches {} rows x {} keys, but the segment has {} x {} in "
                          "tile row {}",
                          data_index, panel_extents_[data_index].rows,
                          panel_extents_[data_index].keys, existing.rows, existing.keys, row));
        }
        return {};
      case SegmentKind::pattern:
        if (segment.data_index < 0 || segment.data_index >= std::ssize(mask_.patterns)) {
          return bad_data_index(s, segment.data_index, std::ssize(mask_.patterns));
        }
        return {};
      case SegmentKind::columns:
        if (mask_.column_offsets.empty()) {
          return bad_segment(s, "kind columns, but column_offsets is empty");
        }
        [[fallthrough]];
      case SegmentKind::full:
        return segment.data_index == 0 ? Result<void>{} : bad_data_index(s, segment.data_index, 1);
    }
    return bad_segment(
        s, fmt::format("kind {}, expected 0 to 4", static_cast<std::int32_t>(segment.kind)));
  }

  static Result<void> bad_run(std::size_t index, const std::string& what) {
    return corrupt(fmt::format("runs[{}]: {}", index, what));
  }
  static Result<void> bad_segment(std::int64_t index, const std::string& what) {
    return corrupt(fmt::format("segments[{}]: {}", index, what));
  }
  static Result<void> bad_data_index(std::int64_t index, std::int32_t data_index,
                                     std::int64_t limit) {
    return bad_segment(index, fmt::format("payload {}, expected less than {}", data_index, limit));
  }

  const SegmentMask& mask_;
  const std::int64_t num_rows_, num_cols_;
  const std::int32_t period_;
  std::vector<BitmapExtent> extents_;
  std::vector<BitmapExtent> panel_extents_;
};

std::string describe_run(const TileRun& run) {
  return fmt::format("{{row {}, stride {}, rows {}, segments {} + {}}}", run.first_row,
                     run.row_stride, run.num_rows, run.first_segment, run.num_segments);
}

std::string describe_segment(const TileSegment& segment) {
  return fmt::format("{{tiles [{}, {}), steps {}, {}, kind {}, payload {}}}", segment.first_tile,
                     segment.end_tile, segment.step_first, segment.step_end,
                     static_cast<std::int32_t>(segment.kind), segment.data_index);
}

}  // namespace

Result<void> validate(const SegmentMask& mask, ValidationLevel level) {
  FDMA_TRY_VOID(check_sizes(mask));
  if (level == ValidationLevel::sizes) return {};
  FDMA_TRY_VOID(StructureCheck(mask).run());
  if (level == ValidationLevel::structure) return {};
  const SegmentMask canonical = segment_from_segment(mask, mask.block);
  FDMA_TRY_VOID(check_canonical("runs", mask.runs, canonical.runs, describe_run));
  FDMA_TRY_VOID(check_canonical("segments", mask.segments, canonical.segments, describe_segment));
  FDMA_TRY_VOID(check_canonical("bitmaps", mask.bitmaps, canonical.bitmaps));
  FDMA_TRY_VOID(check_canonical("row_offsets", mask.row_offsets, canonical.row_offsets));
  FDMA_TRY_VOID(check_canonical("row_intervals", mask.row_intervals, canonical.row_intervals));
  FDMA_TRY_VOID(check_canonical("column_offsets", mask.column_offsets, canonical.column_offsets));
  return check_canonical("column_intervals", mask.column_intervals, canonical.column_intervals);
}

}  // namespace fdma
