// Closed forms from and to the canonical form.
//
// From the canonical form the parameters are read off the mask and then proved:
//  1. The mask is divided into bands of query rows whose key ranges move by 0 or 1 key a row (tile
//     rows that move in step are skipped). A row with more than two ranges has no closed form.
//  2. Candidates are found. Bounds that move belong to the window: left and right are their
//     distances from pos. The smallest first range is the prefix; a first range apart from the
//     window is the sink. Padding is the first and last key seen. Document borders are the
//     positions p such that no row before p sees p or later and no row from p on sees anything
//     earlier. Every border of the true mask is one of these, and none of these hides a cell, so
//     the finest division loses nothing.
//  3. A candidate whose rows agree at the ends of every band is lowered and compared, array by
//     array. Only equality counts; a wrong guess costs time, never exactness.
// Simple forms are tried first (no documents, no prefix, no bounds), so the result is a function of
// the cells.
// Example: causal over packed documents: bands [cu_d, q + 1); left unbounded, right 0.
// Counter-example: top-k, refused at the first row with three ranges.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "encodings/parametric_rows.hpp"
#include "fdma/formats/convert.hpp"

namespace fdma {
namespace {

constexpr std::size_t kMaxDistances = 4;  // candidates for left and for right beside unbounded

Error no_closed_form(std::string reason) {
  return {
      ErrorCode::unsupported,
      fmt::format("parametric: these cells have no closed form: {}; use segment, bcsr or columns",
                  reason)};
}

Error too_many_ranges(std::int64_t q, std::size_t num_ranges) {
  return no_closed_form(
      fmt::format("query row {} sees {} separate ranges of keys, and such a form has at most 2", q,
                  num_ranges));
}

// The bands of a mask with at most two key ranges in every row.
class BandReader {
 public:
  explicit BandReader(const SegmentMask& mask) : mask_(mask), writer_(mask.q_len, mask.kv_len) {}

  Result<RowBands> run() {
    const std::int64_t num_rows = mask_.num_tile_rows();
    for (std::size_t i = 0; i < mask_.runs.size(); ++i) {
      const TileRun& run = mask_.runs[i];
      if (run.row_stride != 1) {  // runs interleave: row by row
        for (std::int64_t row = 0; row < num_rows; ++row) FDMA_TRY_VOID(add_tile_row(row));
        break;
      }
      FDMA_TRY_VOID(add_run(run));
    }
    return writer_.finish();
  }

 private:
  // The bounds of a run move linearly from tile row to tile row. If one band holds the first two of
  // these rows entirely, it goes on up to the last but one, where ranges may come to touch.
  Result<void> add_run(const TileRun& run) {
    const std::int64_t first = run.first_row, last = first + run.num_rows - 1;
    const auto segments = mask_.segments.begin() + run.first_segment;
    const bool is_linear = std::none_of(
        segments, segments + run.num_segments,
        [](const TileSegment& segment) { return segment.kind == SegmentKind::columns; });
    for (std::int64_t row = first; row <= last; ++row) {
      FDMA_TRY_VOID(add_tile_row(row));
      if (!is_linear || row != first + 1 || row + 1 >= last) continue;
      const bool is_empty = run.num_segments == 0;
      if (!is_empty && !is_one_band(first * mask_.block.block_q)) continue;
      if (!is_empty) writer_.extend((last - row - 1) * mask_.block.block_q);
      row = last - 1;
    }
    return {};
  }

  bool is_one_band(std::int64_t q_begin) const {
    return writer_.num_bands() > 0 && writer_.last_band_begin() <= q_begin && is_dense_;
  }

  Result<void> add_tile_row(std::int64_t row) {
    const std::int64_t q_begin = row * mask_.block.block_q;
    const std::int64_t q_end = std::min(q_begin + mask_.block.block_q, mask_.q_len);
    is_dense_ = true;
    for (std::int64_t q = q_begin; q < q_end; ++q) {
      row_intervals_of(mask_, q, intervals_);
      if (intervals_.size() > 2) {
        return too_many_ranges(q, intervals_.size());
      }
      is_dense_ = is_dense_ && !intervals_.empty();
      RowKeys keys;
      for (const Interval& i : intervals_) {
        keys.begin[static_cast<std::size_t>(keys.count)] = i.begin;
        keys.end[static_cast<std::size_t>(keys.count)] = i.end;
        ++keys.count;
      }
      writer_.add_row(q, keys);
    }
    return {};
  }

  const SegmentMask& mask_;
  BandWriter writer_;
  std::vector<Interval> intervals_;
  bool is_dense_ = false;  // every row of the last tile row sees a key
};

// Searches the parameters that the bands allow, given pos_offset.
class ParameterSearch {
 public:
  ParameterSearch(const SegmentMask& mask, const RowBands& bands)
      : mask_(mask), bands_(bands), default_offset_(mask.kv_len - mask.q_len) {
    min_begin_ = mask.kv_len;
    for (const RowBand& band : bands_.bands) {
      min_begin_ = std::min({min_begin_, begin_at(band, band.q_begin)});
      max_end_ = std::max({max_end_, end_at(band, band.q_begin), end_at(band, band.q_end - 1)});
    }
  }

  std::optional<ParametricMask> run() {
    if (bands_.bands.empty()) {
      ParametricMask empty = base(default_offset_);
      empty.kv_begin = empty.kv_end = 0;
      return empty;
    }
    if (auto found = try_offset(default_offset_, {})) return found;
    if (auto found = try_offset(default_offset_, document_borders(default_offset_))) return found;
    if (const auto offset = offset_of_first_jump(); offset && *offset != default_offset_) {
      return try_offset(*offset, document_borders(*offset));
    }
    return std::nullopt;
  }

 private:
  const AffineInterval& interval(const RowBand& band, int i) const {
    return bands_.intervals[static_cast<std::size_t>(band.first_interval + i)];
  }
  std::int64_t begin_at(const RowBand& band, std::int64_t q) const {
    const AffineInterval& first = interval(band, 0);
    return first.lo_base + first.lo_slope * q;
  }
  std::int64_t end_at(const RowBand& band, std::int64_t q) const {
    const AffineInterval& last = interval(band, band.num_intervals - 1);
    return last.hi_base + last.hi_slope * q;
  }

  // The distance by which the end of the last range moves from one band to the next.
  std::int64_t step_of_end(const RowBand& band, const RowBand& next) const {
    return end_at(next, next.q_begin) - end_at(band, band.q_end - 1);
  }

  ParametricMask base(std::int64_t pos_offset) const {
    ParametricMask mask;
    mask.q_len = mask_.q_len;
    mask.kv_len = mask_.kv_len;
    mask.pos_offset = pos_offset;
    mask.kv_begin = min_begin_;
    mask.kv_end = max_end_;
    return mask;
  }

  // Every position that may be a border, with one before the first row and one after the last.
  std::vector<std::int64_t> document_borders(std::int64_t pos_offset) const {
    const std::vector<RowBand>& bands = bands_.bands;
    std::vector<std::int64_t> least_begin(bands.size() + 1, mask_.kv_len);  // from band i on
    for (std::size_t i = bands.size(); i-- > 0;) {
      least_begin[i] = std::min(least_begin[i + 1], begin_at(bands[i], bands[i].q_begin));
    }
    std::vector<std::int64_t> borders;
    std::int64_t most_end = 0;  // of the rows before the current one
    const std::int64_t first_row = bands.front().q_begin;
    for (std::size_t i = 0; i < bands.size(); ++i) {
      const RowBand& band = bands[i];
      const AffineInterval& keys = interval(band, 0);
      const bool is_diagonal = band.num_intervals == 1 && keys.lo_slope == 1 &&
                               keys.lo_base == pos_offset && keys.hi_slope == 1 &&
                               keys.hi_base == pos_offset + 1;
      for (std::int64_t q = band.q_begin; q < (is_diagonal ? band.q_end : band.q_begin + 1); ++q) {
        const std::int64_t pos = q + pos_offset;
        const std::int64_t before =
            std::max(most_end, q > band.q_begin ? end_at(band, q - 1) : std::int64_t{0});
        const std::int64_t after = std::min(begin_at(band, q), least_begin[i + 1]);
        if (before <= pos && after >= pos) borders.push_back(pos);
      }
      most_end = std::max({most_end, end_at(band, band.q_begin), end_at(band, band.q_end - 1)});
    }
    const std::int64_t first_pos = first_row + pos_offset;
    if (borders.empty() || borders.front() != first_pos || first_row == 0) {
      const std::int64_t first = std::min({min_begin_, first_pos});
      if (borders.empty() || borders.front() > first) borders.insert(borders.begin(), first);
    }
    borders.push_back(std::max(max_end_, bands.back().q_end + pos_offset));
    return borders;
  }

  // The pos_offset for which the first row whose keys all lie past those of the rows before is a
  // border.
  std::optional<std::int64_t> offset_of_first_jump() const {
    std::int64_t most_end = 0;
    for (const RowBand& band : bands_.bands) {
      const std::int64_t begin = begin_at(band, band.q_begin);
      if (&band != &bands_.bands.front() && begin >= most_end) return begin - band.q_begin;
      most_end = std::max({most_end, end_at(band, band.q_begin), end_at(band, band.q_end - 1)});
    }
    return std::nullopt;
  }

  // The most frequent distances of moving bounds (counted in rows), unbounded first. A bound that
  // moves once only shows where bands meet: at a step of one key, at the first row that sees a key,
  // or at the last one.
  std::vector<std::int64_t> distances(std::int64_t pos_offset, bool is_left) const {
    std::map<std::int64_t, std::int64_t> rows_of;
    const auto add = [&](const RowBand& band, std::int64_t q, std::int64_t rows) {
      const AffineInterval& window = interval(band, band.num_intervals - 1);
      const std::int64_t pos = q + pos_offset;
      rows_of[is_left ? pos - (window.lo_base + window.lo_slope * q) : end_at(band, q) - 1 - pos] +=
          rows;
    };
    for (std::size_t i = 0; i < bands_.bands.size(); ++i) {
      const RowBand& band = bands_.bands[i];
      const AffineInterval& window = interval(band, band.num_intervals - 1);
      if ((is_left ? window.lo_slope : window.hi_slope) == 1) {
        add(band, band.q_begin, band.q_end - band.q_begin);
      } else if (is_left && band.num_intervals == 2) {
        add(band, band.q_begin, 1);
      }
      const bool is_last = i + 1 == bands_.bands.size();
      const bool ends_before_gap =
          band.q_end < (is_last ? mask_.q_len : bands_.bands[i + 1].q_begin);
      const bool begins_after_gap = band.q_begin > (i == 0 ? 0 : bands_.bands[i - 1].q_end);
      if (is_left ? ends_before_gap : begins_after_gap) {
        add(band, is_left ? band.q_end - 1 : band.q_begin, 1);
      }
      if (is_last || ends_before_gap) continue;
      const RowBand& next = bands_.bands[i + 1];
      const std::int64_t step = is_left
                                    ? begin_at(next, next.q_begin) - begin_at(band, band.q_end - 1)
                                    : step_of_end(band, next);
      if (step == 1) add(next, next.q_begin, 1);
      if (is_left && step_of_end(band, next) < 0) {  // the window has left the keys, a sink remains
        rows_of[next.q_begin + pos_offset - end_at(band, band.q_end - 1)] += 1;
      }
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> ranked;  // (-rows, distance)
    for (const auto& [distance, rows] : rows_of) ranked.emplace_back(-rows, distance);
    std::sort(ranked.begin(), ranked.end());
    std::vector<std::int64_t> result{kUnbounded};
    for (std::size_t i = 0; i < std::min(ranked.size(), kMaxDistances); ++i) {
      result.push_back(ranked[i].second);
    }
    return result;
  }

  std::optional<ParametricMask> try_offset(std::int64_t pos_offset,
                                           std::vector<std::int64_t> cu_seqlens) const {
    // The end of the first range is the prefix where it is smallest, and the sink where the range
    // stands apart.
    std::int64_t least_end = mask_.kv_len, apart_end = 0;
    for (std::size_t i = 0; i < bands_.bands.size(); ++i) {
      const RowBand& band = bands_.bands[i];
      const AffineInterval& first = interval(band, 0);
      const std::int64_t end = first.hi_base + first.hi_slope * band.q_begin;
      least_end = std::min(least_end, end);
      if (i > 0 && step_of_end(bands_.bands[i - 1], band) < 0) apart_end = std::max(apart_end, end);
      if (band.num_intervals == 2) {
        apart_end = std::max({apart_end, end, first.hi_base + first.hi_slope * (band.q_end - 1)});
      }
    }
    const std::pair<std::int64_t, std::int64_t> heads[] = {
        {0, 0}, {least_end, 0}, {0, apart_end}, {apart_end, 0}, {least_end, apart_end}};
    ParametricMask mask = base(pos_offset);
    mask.cu_seqlens = std::move(cu_seqlens);
    for (const auto& [prefix, sink] : heads) {
      mask.prefix = prefix;
      mask.sink = sink;
      for (const std::int64_t right : distances(pos_offset, false)) {
        mask.right = right;
        for (const std::int64_t left : distances(pos_offset, true)) {
          mask.left = left;
          if (agrees_at_band_ends(mask) && is_exact(mask)) return simplest(mask);
        }
      }
    }
    return std::nullopt;
  }

  bool agrees_at_band_ends(const ParametricMask& mask) const {
    for (const RowBand& band : bands_.bands) {
      for (const std::int64_t q : {std::int64_t{band.q_begin}, std::int64_t{band.q_end} - 1}) {
        const RowKeys keys = row_keys(mask, q);
        if (keys.count != band.num_intervals) return false;
        for (int i = 0; i < keys.count; ++i) {
          const AffineInterval& a = interval(band, i);
          if (keys.begin[static_cast<std::size_t>(i)] != a.lo_base + a.lo_slope * q ||
              keys.end[static_cast<std::size_t>(i)] != a.hi_base + a.hi_slope * q) {
            return false;
          }
        }
      }
    }
    return true;
  }

  bool is_exact(const ParametricMask& mask) const {
    return segment_from_parametric(mask, mask_.block) == mask_;
  }

  // Drops what the cells do not need: padding bounds, then document ends beyond the keys.
  ParametricMask simplest(ParametricMask mask) const {
    const auto try_field = [&](std::int64_t ParametricMask::*field, std::int64_t value) {
      const std::int64_t kept = mask.*field;
      mask.*field = value;
      if (kept != value && !(agrees_at_band_ends(mask) && is_exact(mask))) mask.*field = kept;
    };
    try_field(&ParametricMask::kv_begin, 0);
    try_field(&ParametricMask::kv_end, mask_.kv_len);
    return mask;
  }

  const SegmentMask& mask_;
  const RowBands& bands_;
  const std::int64_t default_offset_;
  std::int64_t min_begin_ = 0;
  std::int64_t max_end_ = 0;
};

// Looks at the first and the last tile row of each run with patterns. Rows that have a closed form
// see at most two ranges, so that patterns are hardly ever written out in vain.
Result<void> check_ranges_of_patterns(const SegmentMask& mask) {
  std::vector<Interval> keys;
  for (const TileRun& run : mask.runs) {
    const auto first = mask.segments.begin() + run.first_segment;
    if (std::none_of(first, first + run.num_segments,
                     [](const TileSegment& s) { return s.kind == SegmentKind::pattern; })) {
      continue;
    }
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{run.num_rows} - 1}) {
      const std::int64_t q = (run.first_row + i * run.row_stride) * mask.block.block_q;
      row_intervals_of(mask, q, keys);
      if (keys.size() > 2) return too_many_ranges(q, keys.size());
    }
  }
  return {};
}

}  // namespace

SegmentMask segment_from_parametric(const ParametricMask& mask, BlockShape block) {
  return segment_from_bands(bands_from_parametric(mask), block);
}

Result<ParametricMask> parametric_from_segment(const SegmentMask& mask) {
  if (mask.has_patterns()) {
    FDMA_TRY_VOID(check_ranges_of_patterns(mask));
    return parametric_from_segment(expand_patterns(mask));
  }
  FDMA_TRY(const RowBands bands, BandReader(mask).run());
  if (auto found = ParameterSearch(mask, bands).run()) return *std::move(found);
  return no_closed_form(
      "no combination of a window, a prefix or sink, padding and contiguous documents gives them");
}

}  // namespace fdma
