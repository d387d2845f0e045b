#include "stored/cell_sum.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "encodings/parametric_rows.hpp"
#include "fdma/base/parallel.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "segment/pattern_bounds.hpp"

namespace fdma {
namespace {

// Rows whose corners are added one by one where a step is negative, rather than as a geometric sum,
// whose ratio then takes an inverse.
constexpr std::int64_t kFewRows = 8;

// (y - 1) times the sum over keys [begin, end), and (x - 1) times the sum over queries.
Residues span_of_keys(std::int64_t begin, std::int64_t end) {
  return power_of_y(end) - power_of_y(begin);
}
Residues span_of_queries(const Interval& queries) {
  return power_of_x(queries.end) - power_of_x(queries.begin);
}

Residues sum_of_keys(std::int64_t begin, std::int64_t end) {
  return span_of_keys(begin, end) * kInverseOfY1;
}
Residues sum_of_rows(std::int64_t num_rows) {
  return (power_of_x(num_rows) - kResiduesOne) * kInverseOfX1;
}

// y^exponent for any exponent, a step of keys from row to row.
Residues step_of_y(std::int64_t exponent) {
  return exponent >= 0 ? power_of_y(exponent) : inverse(power_of_y(-exponent));
}

// The sums of single tiles, each at row 0 and key 0.
std::vector<Residues> sums_of_bitmaps(std::span<const std::uint64_t> words, BlockShape block) {
  const std::int64_t block_q = block.block_q, block_kv = block.block_kv;
  const std::int64_t words_per_bitmap = block_q * block_kv / 64;
  std::vector<Residues> sums(words.size() / static_cast<std::size_t>(words_per_bitmap));
  const std::uint64_t* bitmap = words.data();
  for (Residues& sum : sums) {
    for (std::int64_t r = 0; r < block_q; ++r) {
      Residues row{};
      for (std::int64_t c = 0; c < block_kv; c += 64) {
        const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
        const std::uint64_t bits = read_bits(bitmap, r * block_kv + c, width);
        if (bits != 0) row += sum_of_bits(bits) * power_of_y(c);
      }
      sum += row * power_of_x(r);
    }
    bitmap += words_per_bitmap;
  }
  return sums;
}

// Tiles by row and column of a mask: where they lie, and the sums of full ones.
class Tiles {
 public:
  Tiles(std::int64_t q_len, std::int64_t kv_len, BlockShape block)
      : q_len_(q_len),
        kv_len_(kv_len),
        block_q_(block.block_q),
        block_kv_(block.block_kv),
        whole_rows_(sum_of_rows(block_q_)),
        last_rows_(sum_of_rows(q_len % block_q_)) {}

  /// The cell at the corner of tile row `row`, and at that of tile column `col`.
  Residues row_power(std::int64_t row) const { return power_of_x(row * block_q_); }
  Residues col_power(std::int64_t col) const { return power_of_y(col * block_kv_); }

  /// The existing cells of full tiles [first, end) of tile row `row`, as if it were tile row 0.
  Residues full(std::int64_t row, std::int64_t first, std::int64_t end) const {
    return rows_of(row) * sum_of_keys(first * block_kv_, std::min(end * block_kv_, kv_len_));
  }

 private:
  const Residues& rows_of(std::int64_t row) const {
    return (row + 1) * block_q_ <= q_len_ ? whole_rows_ : last_rows_;
  }

  std::int64_t q_len_, kv_len_, block_q_, block_kv_;
  Residues whole_rows_, last_rows_;
};

// The segments of a mask. A full segment counts as tiles of one bitmap that has all cells; those
// that do not exist are taken off.
class SegmentSum {
 public:
  explicit SegmentSum(const SegmentMask& mask)
      : mask_(mask),
        block_q_(mask.block.block_q),
        block_kv_(mask.block.block_kv),
        whole_rows_(sum_of_rows(block_q_)),
        inverse_of_block_(inverse(power_of_y(block_kv_) - kResiduesOne)),
        full_tile_(whole_rows_ * sum_of_keys(0, block_kv_)),
        bitmaps_(sums_of_bitmaps(mask.bitmaps, mask.block)),
        pattern_rows_(mask, [&](const PatternTile& tile) {
          return tile_sum(tile) * power_of_y(tile.column * block_kv_);
        }) {
    sum_panels();
    if (std::ssize(mask.segments) > mask.num_tile_cols()) {  // many segments share a column
      const Residues step = power_of_y(block_kv_);
      column_powers_.reserve(static_cast<std::size_t>(mask.num_tile_cols()) + 1);
      column_powers_.push_back(kResiduesOne);
      for (std::int32_t col = 0; col < mask.num_tile_cols(); ++col) {
        column_powers_.push_back(column_powers_.back() * step);
      }
    }
    for (const TilePattern& pattern : mask.patterns) {
      const Residues turn = power_of_y(pattern.num_cols * block_kv_);
      turns_.push_back({inverse(turn), inverse(turn - kResiduesOne)});
    }
  }

  Residues run() const {
    Residues sum{};
    for (const TileRun& run : mask_.runs) {
      if (run.num_rows == 1) {
        sum += single_row(run);
        continue;
      }
      for (std::int64_t s = 0; s < run.num_segments; ++s) {
        const TileSegment& segment =
            mask_.segments[static_cast<std::size_t>(run.first_segment + s)];
        const auto data_index = static_cast<std::size_t>(segment.data_index);
        switch (segment.kind) {
          case SegmentKind::full:
            sum += tiles(run, segment) * full_tile_;
            sum -= missing_keys(run, segment) + missing_rows(run, segment);
            break;
          case SegmentKind::bitmap:
            sum += tiles(run, segment) * bitmaps_[data_index];
            break;
          case SegmentKind::rows:
            sum += corners(run, segment.first_tile, segment.step_first, run.num_rows) *
                   panels_[data_index];
            break;
          case SegmentKind::pattern:
            sum += pattern(run, segment);
            break;
          case SegmentKind::columns:
            break;  // such masks do not come here
        }
      }
    }
    return sum;
  }

 private:
  // A run of one tile row, whose segments share its power of x.
  Residues single_row(const TileRun& run) const {
    Residues in_row{}, sum{};
    for (std::int64_t s = 0; s < run.num_segments; ++s) {
      const TileSegment& segment = mask_.segments[static_cast<std::size_t>(run.first_segment + s)];
      const auto data_index = static_cast<std::size_t>(segment.data_index);
      switch (segment.kind) {
        case SegmentKind::full:
          in_row += columns(segment) * full_tile_;
          sum -= missing_keys(run, segment) + missing_rows(run, segment);
          break;
        case SegmentKind::bitmap:
          in_row += columns(segment) * bitmaps_[data_index];
          break;
        case SegmentKind::rows:
          in_row += column_power(segment.first_tile) * panels_[data_index];
          break;
        case SegmentKind::pattern:
          sum += pattern(run, segment);
          break;
        case SegmentKind::columns:
          break;  // such masks do not come here
      }
    }
    return sum + in_row * power_of_x(run.first_row * block_q_);
  }

  // The corner of a tile in tile column `tile` of tile row 0, and those of all tiles of a segment.
  Residues column_power(std::int64_t tile) const {
    return column_powers_.empty() ? power_of_y(tile * block_kv_)
                                  : column_powers_[static_cast<std::size_t>(tile)];
  }
  Residues columns(const TileSegment& segment) const {
    const Residues first = column_power(segment.first_tile);
    if (segment.end_tile - segment.first_tile == 1) return first;
    return (column_power(segment.end_tile) - first) * inverse_of_block_;
  }

  void sum_panels() {
    const std::int64_t num_panels = mask_.num_row_panels();
    panels_.reserve(static_cast<std::size_t>(num_panels));
    for (std::int64_t panel = 0; panel < num_panels; ++panel) {
      Residues sum{};
      for (std::int64_t r = 0; r < block_q_; ++r) {
        const auto row = static_cast<std::size_t>(panel * block_q_ + r);
        Residues keys{};
        for (std::int64_t i = mask_.row_offsets[row]; i < mask_.row_offsets[row + 1]; ++i) {
          const Interval& interval = mask_.row_intervals[static_cast<std::size_t>(i)];
          keys += span_of_keys(interval.begin, interval.end);
        }
        sum += keys * power_of_x(r);
      }
      panels_.push_back(sum * kInverseOfY1);
    }
  }

  // The corners of one tile in each of the first num_rows rows of a run; the tile moves by `step`.
  Residues corners(const TileRun& run, std::int64_t tile, std::int64_t step,
                   std::int64_t num_rows) const {
    const Residues first = power_of_x(run.first_row * block_q_) * power_of_y(tile * block_kv_);
    if (num_rows == 1) return first;
    if (step < 0 && num_rows <= kFewRows) {
      Residues sum = first;
      for (std::int64_t i = 1; i < num_rows; ++i) {
        sum += power_of_x((run.first_row + i * run.row_stride) * block_q_) *
               power_of_y((tile + i * step) * block_kv_);
      }
      return sum;
    }
    const Residues ratio = power_of_x(run.row_stride * block_q_) * step_of_y(step * block_kv_);
    return first * geometric_sum(ratio, static_cast<std::uint64_t>(num_rows));
  }

  // The corners of all tiles of a segment.
  Residues tiles(const TileRun& run, const TileSegment& segment) const {
    const Residues first = corners(run, segment.first_tile, segment.step_first, run.num_rows);
    const std::int64_t width = std::int64_t{segment.end_tile} - segment.first_tile;
    if (segment.step_first == segment.step_end) {
      if (width == 1) return first;
      return first * (power_of_y(width * block_kv_) - kResiduesOne) * inverse_of_block_;
    }
    return (corners(run, segment.end_tile, segment.step_end, run.num_rows) - first) *
           inverse_of_block_;
  }

  // Cells past the last key, of a full segment whose tile rows have block_q rows each.
  Residues missing_keys(const TileRun& run, const TileSegment& segment) const {
    const std::int64_t num_cols = mask_.num_tile_cols();
    const std::int64_t distance = num_cols - segment.end_tile;
    if (num_cols * block_kv_ == mask_.kv_len) return {};
    Residues rows{};  // the corners of the tile rows that reach the last tile column
    if (segment.step_end == 0) {
      if (distance == 0) rows = corners(run, 0, 0, run.num_rows);
    } else if (distance % segment.step_end == 0) {
      const std::int64_t i = distance / segment.step_end;
      if (i >= 0 && i < run.num_rows) {
        rows = power_of_x((run.first_row + i * run.row_stride) * block_q_);
      }
    }
    return rows * whole_rows_ * sum_of_keys(mask_.kv_len, num_cols * block_kv_);
  }

  // Cells below the last query row, at keys that exist.
  Residues missing_rows(const TileRun& run, const TileSegment& segment) const {
    const std::int64_t i = std::int64_t{run.num_rows} - 1;
    const std::int64_t q_begin = (run.first_row + i * run.row_stride) * block_q_;
    if (q_begin + block_q_ <= mask_.q_len) return {};
    const std::int64_t first = segment.first_tile + i * segment.step_first;
    const std::int64_t end = segment.end_tile + i * segment.step_end;
    return power_of_x(q_begin) * (whole_rows_ - sum_of_rows(mask_.q_len - q_begin)) *
           sum_of_keys(first * block_kv_, std::min(end * block_kv_, mask_.kv_len));
  }

  // Patterns. All tiles of a pattern row before a border, those of endlessly many turns before it
  // included, add up to y^start * (sum of a turn / (y^turn - 1) + tiles of the turn before the
  // border); the tiles between two borders are a difference of two such sums.

  // The sum of a tile of a pattern at row 0 and key 0.
  const Residues& tile_sum(const PatternTile& tile) const {
    return tile.bitmap == kFullTile ? full_tile_ : bitmaps_[static_cast<std::size_t>(tile.bitmap)];
  }

  struct Turn {  // of a pattern row: y^turn is the power of y for its keys
    Residues inverse;
    Residues inverse_less_1;
  };

  // The tiles before the border at tile column `col`, as if `row` were tile row 0.
  Residues before_bound(std::size_t index, std::int64_t row, std::int64_t col) const {
    const TilePattern& pattern = mask_.patterns[index];
    const Turn& turn = turns_[index];
    const PatternBound bound = bound_of(mask_, pattern, row, col);
    const Residues tiles = pattern_rows_.before(bound.whole_turn) * turn.inverse_less_1 +
                           pattern_rows_.before(bound.at);
    if (bound.start >= 0) return tiles * power_of_y(bound.start * block_kv_);
    return tiles * power_of_y((bound.start + pattern.num_cols) * block_kv_) * turn.inverse;
  }

  // The tiles before a border that moves, in all tile rows of a run.
  Residues before_bounds(const TileRun& run, std::size_t index, std::int64_t col,
                         std::int64_t step) const {
    const std::int64_t period = bound_period(mask_.patterns[index], run.row_stride, step);
    const std::int64_t num_rows = run.num_rows;
    // Rows a period apart are a geometric series. The first rows may have one more of them.
    const std::int64_t num_first = std::min(period, num_rows), more = num_rows % num_first;
    Residues series = kResiduesOne, longer_series = kResiduesOne;
    if (num_first < num_rows) {
      const Residues ratio =
          power_of_x(period * run.row_stride * block_q_) * step_of_y(period * step * block_kv_);
      const auto terms = static_cast<std::uint64_t>(num_rows / num_first);
      series = geometric_sum(ratio, terms);
      longer_series = geometric_sum(ratio, terms + 1);
    }
    Residues sum{};
    for (std::int64_t i = 0; i < num_first; ++i) {
      const std::int64_t row = run.first_row + i * run.row_stride;
      sum += before_bound(index, row, col + i * step) * power_of_x(row * block_q_) *
             (i < more ? longer_series : series);
    }
    return sum;
  }

  Residues pattern(const TileRun& run, const TileSegment& segment) const {
    const auto index = static_cast<std::size_t>(segment.data_index);
    const Residues tiles = before_bounds(run, index, segment.end_tile, segment.step_end) -
                           before_bounds(run, index, segment.first_tile, segment.step_first);
    return tiles - missing_pattern_keys(run, segment) - missing_pattern_rows(run, segment);
  }

  // Cells past the last key, of full tiles of a pattern whose tile rows have block_q rows each.
  Residues missing_pattern_keys(const TileRun& run, const TileSegment& segment) const {
    const std::int64_t last_col = std::int64_t{mask_.num_tile_cols()} - 1;
    if ((last_col + 1) * block_kv_ == mask_.kv_len) return {};
    Residues rows{};  // the corners of the tile rows whose last tile is a full one of the pattern
    for (std::int64_t i = 0; i < run.num_rows; ++i) {
      if (segment.end_tile + i * segment.step_end <= last_col) continue;
      const std::int64_t row = run.first_row + i * run.row_stride;
      mask_.pattern_row(segment.data_index, static_cast<std::int32_t>(row))
          .for_each_tile(static_cast<std::int32_t>(last_col),
                         static_cast<std::int32_t>(last_col + 1),
                         [&](std::int32_t, std::int32_t bitmap) {
                           if (bitmap == kFullTile) rows += power_of_x(row * block_q_);
                         });
    }
    return rows * whole_rows_ * sum_of_keys(mask_.kv_len, (last_col + 1) * block_kv_);
  }

  // Cells below the last query row, at keys that exist, of full tiles of a pattern.
  Residues missing_pattern_rows(const TileRun& run, const TileSegment& segment) const {
    const std::int64_t i = std::int64_t{run.num_rows} - 1;
    const std::int64_t row = run.first_row + i * run.row_stride;
    if ((row + 1) * block_q_ <= mask_.q_len) return {};
    Residues keys{};
    mask_.pattern_row(segment.data_index, static_cast<std::int32_t>(row))
        .for_each_tile(static_cast<std::int32_t>(segment.first_tile + i * segment.step_first),
                       static_cast<std::int32_t>(segment.end_tile + i * segment.step_end),
                       [&](std::int64_t col, std::int32_t bitmap) {
                         if (bitmap != kFullTile) return;
                         keys += sum_of_keys(col * block_kv_,
                                             std::min((col + 1) * block_kv_, mask_.kv_len));
                       });
    return keys * power_of_x(row * block_q_) *
           (whole_rows_ - sum_of_rows(mask_.q_len - row * block_q_));
  }

  const SegmentMask& mask_;
  const std::int64_t block_q_, block_kv_;
  const Residues whole_rows_;        // the rows of a tile, without keys
  const Residues inverse_of_block_;  // 1 / (y^block_kv - 1)
  const Residues full_tile_;
  const std::vector<Residues> bitmaps_;
  const PatternRowSums<Residues> pattern_rows_;
  std::vector<Residues> panels_;
  std::vector<Residues> column_powers_;  // by tile column, one more than there are; or empty
  std::vector<Turn> turns_;              // by pattern
};

Residues sum_of_columns(std::span<const std::int64_t> offsets,
                        std::span<const Interval> intervals) {
  Residues sum{};
  for (std::size_t k = 0; k + 1 < offsets.size(); ++k) {
    if (offsets[k] == offsets[k + 1]) continue;
    Residues queries{};
    for (std::int64_t i = offsets[k]; i < offsets[k + 1]; ++i) {
      queries += span_of_queries(intervals[static_cast<std::size_t>(i)]);
    }
    sum += queries * power_of_y(static_cast<std::int64_t>(k));
  }
  return sum * kInverseOfX1;
}

}  // namespace

Residues cell_sum(const SegmentMask& mask) {
  if (!mask.column_offsets.empty()) {
    return sum_of_columns(mask.column_offsets, mask.column_intervals);  // it holds every cell
  }
  return SegmentSum(mask).run();
}

Residues cell_sum(const RowBands& bands) {
  Residues sum{};
  for (const RowBand& band : bands.bands) {
    Residues rows{};
    for (std::int64_t i = 0; i < band.num_intervals; ++i) {
      const AffineInterval& keys =
          bands.intervals[static_cast<std::size_t>(band.first_interval + i)];
      const auto series = [&](std::int64_t base, std::int64_t slope) {
        return geometric_sum(kPointX * step_of_y(slope),
                             static_cast<std::uint64_t>(band.q_end - band.q_begin)) *
               power_of_y(base + slope * band.q_begin);
      };
      rows += series(keys.hi_base, keys.hi_slope) - series(keys.lo_base, keys.lo_slope);
    }
    sum += rows * power_of_x(band.q_begin);
  }
  return sum * kInverseOfY1;
}

Residues cell_sum(const ParametricMask& mask) { return cell_sum(bands_from_parametric(mask)); }

Residues cell_sum(const BlockBitset& mask) {
  const Tiles tiles(mask.q_len, mask.kv_len, mask.block);
  const std::vector<Residues> bitmaps = sums_of_bitmaps(mask.bitmaps, mask.block);
  const std::int64_t words_per_row = mask.words_per_row();
  Residues sum{};
  std::size_t next = 0;  // partial tile
  for (std::int64_t row = 0; row < mask.num_tile_rows(); ++row) {
    Residues in_row{};
    for (std::int64_t w = 0; w < words_per_row; ++w) {
      const auto i = static_cast<std::size_t>(row * words_per_row + w);
      for (std::uint64_t full = mask.full[i]; full != 0;) {
        const int begin = std::countr_zero(full);
        const int end = begin + std::countr_one(full >> begin);
        in_row += tiles.full(row, 64 * w + begin, 64 * w + end);
        full = end == 64 ? 0 : full >> end << end;
      }
      for (std::uint64_t partial = mask.active[i] & ~mask.full[i]; partial != 0;
           partial &= partial - 1) {
        in_row += tiles.col_power(64 * w + std::countr_zero(partial)) *
                  bitmaps[static_cast<std::size_t>(mask.bitmap_index[next++])];
      }
    }
    if (in_row != Residues{}) sum += in_row * tiles.row_power(row);
  }
  return sum;
}

Residues cell_sum(const BcsrMask& mask) {
  const Tiles tiles(mask.q_len, mask.kv_len, mask.block);
  const std::vector<Residues> bitmaps = sums_of_bitmaps(mask.bitmaps, mask.block);
  Residues sum{};
  for (std::int64_t row = 0; row < mask.num_tile_rows(); ++row) {
    Residues in_row{};
    const auto end = static_cast<std::size_t>(mask.row_offsets[static_cast<std::size_t>(row) + 1]);
    for (auto i = static_cast<std::size_t>(mask.row_offsets[static_cast<std::size_t>(row)]);
         i < end;) {
      const std::int32_t index = mask.bitmap_index[i], col = mask.col_indices[i];
      if (index != BcsrMask::kFullBlock) {
        in_row += tiles.col_power(col) * bitmaps[static_cast<std::size_t>(index)];
        ++i;
        continue;
      }
      std::int32_t full_end = col;  // of full blocks side by side
      while (i < end && mask.bitmap_index[i] == BcsrMask::kFullBlock &&
             mask.col_indices[i] == full_end) {
        ++i, ++full_end;
      }
      in_row += tiles.full(row, col, full_end);
    }
    if (in_row != Residues{}) sum += in_row * tiles.row_power(row);
  }
  return sum;
}

Residues cell_sum(const ColumnIntervals& mask) {
  return sum_of_columns(mask.offsets, mask.intervals);
}

Residues cell_sum(const DenseBits& mask) {
  const auto words_per_row = static_cast<std::size_t>(mask.words_per_row());
  std::vector<Residues> word_powers(words_per_row);
  for (std::size_t w = 0; w < words_per_row; ++w) {
    word_powers[w] = power_of_y(64 * static_cast<std::int64_t>(w));
  }
  // Sums of parts of the rows do not depend on which thread makes them.
  constexpr std::int64_t kRowsPerPart = 64;
  std::vector<Residues> parts(static_cast<std::size_t>(ceil_div(mask.q_len, kRowsPerPart)));
  parallel_for(std::size_t{0}, parts.size(), [&](std::size_t part) {
    const std::int64_t begin = static_cast<std::int64_t>(part) * kRowsPerPart;
    for (std::int64_t q = begin; q < std::min(begin + kRowsPerPart, mask.q_len); ++q) {
      const std::uint64_t* words = mask.words.data() + static_cast<std::size_t>(q) * words_per_row;
      Residues row{};
      for (std::size_t w = 0; w < words_per_row; ++w) {
        if (words[w] != 0) row += sum_of_bits(words[w]) * word_powers[w];
      }
      if (row != Residues{}) parts[part] += row * power_of_x(q);
    }
  });
  Residues sum{};
  for (const Residues& part : parts) sum += part;
  return sum;
}

}  // namespace fdma
