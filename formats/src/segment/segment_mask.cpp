#include "fdma/formats/segment_mask.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "fdma/formats/segment_builder.hpp"
#include "segment/bit_transpose.hpp"
#include "segment/pattern_bounds.hpp"
#include "segment/stored_rows.hpp"
#include "segment/written_out.hpp"

namespace fdma {
namespace {

// Index of the run that holds tile row `row`.
std::size_t run_of(const SegmentMask& mask, std::int32_t row) {
  auto it = std::upper_bound(mask.runs.begin(), mask.runs.end(), row,
                             [](std::int32_t r, const TileRun& run) { return r < run.first_row; });
  while (it != mask.runs.begin()) {
    --it;
    const std::int32_t distance = row - it->first_row;
    if (distance % it->row_stride == 0 && distance / it->row_stride < it->num_rows) break;
  }
  return static_cast<std::size_t>(it - mask.runs.begin());
}

void append_segments(const SegmentMask& mask, const TileRun& run, std::int32_t row,
                     std::vector<TileSegment>& out) {
  const std::int32_t step = (row - run.first_row) / run.row_stride;
  for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
    TileSegment segment = mask.segments[static_cast<std::size_t>(s)];
    segment.first_tile += step * segment.step_first;
    segment.end_tile += step * segment.step_end;
    segment.step_first = segment.step_end = 0;
    append_written_out(mask, row, segment, out);
  }
}

void append_interval(std::vector<Interval>& out, std::int64_t begin, std::int64_t end) {
  if (!out.empty() && out.back().end == begin) {
    out.back().end = static_cast<std::int32_t>(end);
  } else {
    out.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
  }
}

}  // namespace

std::int64_t SegmentMask::size_bytes() const {
  const auto bytes = [](const auto& v) {
    return static_cast<std::int64_t>(v.size() * sizeof(v.front()));
  };
  return bytes(runs) + bytes(segments) + bytes(bitmaps) + bytes(row_offsets) +
         bytes(row_intervals) + bytes(column_offsets) + bytes(column_intervals) + bytes(patterns) +
         (patterns.empty() ? 0 : bytes(pattern_offsets)) + bytes(pattern_tiles);
}

std::int32_t row_period(BlockShape block) {
  return block.block_kv / std::gcd(block.block_q, block.block_kv);
}

void for_each_tile_row(
    const SegmentMask& mask,
    const std::function<void(std::int32_t, std::span<const TileSegment>)>& visit) {
  if (!mask.has_patterns()) {
    for_each_stored_row(mask, visit);
    return;
  }
  std::vector<TileSegment> segments;
  for_each_stored_row(mask, [&](std::int32_t row, std::span<const TileSegment> stored) {
    segments.clear();
    for (const TileSegment& segment : stored) append_written_out(mask, row, segment, segments);
    visit(row, segments);
  });
}

std::vector<TileSegment> segments_of_row(const SegmentMask& mask, std::int32_t row) {
  std::vector<TileSegment> segments;
  append_segments(mask, mask.runs[run_of(mask, row)], row, segments);
  return segments;
}

void tile_cells(const SegmentMask& mask, const TileSegment& segment, std::int32_t row,
                std::int32_t col, std::uint64_t* words) {
  const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
  const std::int64_t q_begin = row * block_q, k_begin = col * block_kv;
  const std::int64_t num_rows = std::min(block_q, mask.q_len - q_begin);
  const std::int64_t num_keys = std::min(block_kv, mask.kv_len - k_begin);
  if (segment.kind == SegmentKind::bitmap) {
    const auto bitmap = mask.bitmap(segment.data_index);
    std::copy(bitmap.begin(), bitmap.end(), words);
    return;
  }
  std::fill_n(words, mask.words_per_bitmap(), 0);
  switch (segment.kind) {
    case SegmentKind::full:
      for (std::int64_t r = 0; r < num_rows; ++r) {
        set_bits(words, r * block_kv, r * block_kv + num_keys);
      }
      break;
    case SegmentKind::rows: {
      const std::int64_t skip = (col - segment.first_tile) * block_kv;
      for (std::int64_t r = 0; r < block_q; ++r) {
        const auto panel_row = static_cast<std::size_t>(segment.data_index * block_q + r);
        for (std::int64_t i = mask.row_offsets[panel_row]; i < mask.row_offsets[panel_row + 1];
             ++i) {
          const Interval keys = mask.row_intervals[static_cast<std::size_t>(i)];
          const std::int64_t begin = std::max<std::int64_t>(keys.begin - skip, 0);
          const std::int64_t end = std::min<std::int64_t>(keys.end - skip, num_keys);
          if (begin < end) set_bits(words, r * block_kv + begin, r * block_kv + end);
        }
      }
      break;
    }
    case SegmentKind::columns: {
      ColumnTileReader reader(mask.block);
      for (std::int64_t c = 0; c < num_keys; ++c) {
        const auto key = static_cast<std::size_t>(k_begin + c);
        const auto first = mask.column_intervals.begin() + mask.column_offsets[key];
        const auto last = mask.column_intervals.begin() + mask.column_offsets[key + 1];
        auto it = std::upper_bound(first, last, q_begin,
                                   [](std::int64_t q, const Interval& i) { return q < i.end; });
        for (; it != last && it->begin < q_begin + num_rows; ++it) {
          reader.set(c, std::max<std::int64_t>(it->begin - q_begin, 0),
                     std::min<std::int64_t>(it->end - q_begin, num_rows));
        }
      }
      reader.write(words);
      break;
    }
    case SegmentKind::bitmap:
      break;
    case SegmentKind::pattern: {
      mask.pattern_row(segment.data_index, row)
          .for_each_tile(col, col + 1, [&](std::int32_t, std::int32_t bitmap) {
            const auto kind = bitmap == kFullTile ? SegmentKind::full : SegmentKind::bitmap;
            tile_cells(mask, {col, col + 1, 0, 0, kind, std::max(bitmap, 0)}, row, col, words);
          });
      break;
    }
  }
}

void row_intervals_of(const SegmentMask& mask, std::int64_t q, std::vector<Interval>& out) {
  out.clear();
  const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
  const auto row = static_cast<std::int32_t>(q / block_q);
  const std::int64_t r = q % block_q;
  const TileRun& run = mask.runs[run_of(mask, row)];
  const std::int64_t step = (row - run.first_row) / run.row_stride;
  const auto append_bitmap_row = [&](std::int64_t bitmap, std::int64_t tile) {
    const std::uint64_t* words = mask.bitmap(bitmap).data();
    for (std::int64_t c = 0; c < block_kv; c += 64) {
      const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
      std::uint64_t bits = read_bits(words, r * block_kv + c, width);
      while (bits != 0) {
        const int begin = std::countr_zero(bits);
        const int length = std::countr_one(bits >> begin);
        append_interval(out, tile * block_kv + c + begin, tile * block_kv + c + begin + length);
        if (begin + length == 64) break;
        bits = bits >> (begin + length) << (begin + length);
      }
    }
  };
  for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
    const TileSegment& segment = mask.segments[static_cast<std::size_t>(s)];
    const std::int64_t first = segment.first_tile + step * segment.step_first;
    const std::int64_t end = segment.end_tile + step * segment.step_end;
    const std::int64_t k_begin = first * block_kv;
    const std::int64_t k_end = std::min(end * block_kv, mask.kv_len);
    switch (segment.kind) {
      case SegmentKind::full:
        append_interval(out, k_begin, k_end);
        break;
      case SegmentKind::bitmap:
        for (std::int64_t tile = first; tile < end; ++tile) {
          append_bitmap_row(segment.data_index, tile);
        }
        break;
      case SegmentKind::pattern:
        mask.pattern_row(segment.data_index, row)
            .for_each_tile(static_cast<std::int32_t>(first), static_cast<std::int32_t>(end),
                           [&](std::int64_t tile, std::int32_t bitmap) {
                             if (bitmap != kFullTile) {
                               append_bitmap_row(bitmap, tile);
                               return;
                             }
                             append_interval(out, tile * block_kv,
                                             std::min((tile + 1) * block_kv, mask.kv_len));
                           });
        break;
      case SegmentKind::rows: {
        const auto panel_row = static_cast<std::size_t>(segment.data_index * block_q + r);
        for (std::int64_t i = mask.row_offsets[panel_row]; i < mask.row_offsets[panel_row + 1];
             ++i) {
          const Interval keys = mask.row_intervals[static_cast<std::size_t>(i)];
          append_interval(out, k_begin + keys.begin, k_begin + keys.end);
        }
        break;
      }
      case SegmentKind::columns:
        for (std::int64_t k = k_begin; k < k_end; ++k) {
          const auto key = static_cast<std::size_t>(k);
          const auto begin = mask.column_intervals.begin() + mask.column_offsets[key];
          const auto last = mask.column_intervals.begin() + mask.column_offsets[key + 1];
          const auto it = std::upper_bound(
              begin, last, q, [](std::int64_t x, const Interval& i) { return x < i.end; });
          if (it != last && it->begin <= q) append_interval(out, k, k + 1);
        }
        break;
    }
  }
}

namespace {

std::int64_t popcount(std::span<const std::uint64_t> words) {
  std::int64_t count = 0;
  for (const std::uint64_t word : words) count += std::popcount(word);
  return count;
}

// Cells of the full tiles of a pattern segment that lie past the last query row or the last key.
std::int64_t missing_pattern_cells(const SegmentMask& mask,
                                   const PatternRowSums<PatternTotals>& sums, const TileRun& run,
                                   const TileSegment& segment) {
  const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
  const std::int64_t num_cols = mask.num_tile_cols();
  const std::int64_t missing_keys = num_cols * block_kv - mask.kv_len;
  const TilePattern& pattern = mask.patterns[static_cast<std::size_t>(segment.data_index)];
  // Full tiles in columns [first, end) of tile row `row`.
  const auto full_tiles = [&](std::int64_t row, std::int64_t first, std::int64_t end) {
    return sum_between(sums, bound_of(mask, pattern, row, first), bound_of(mask, pattern, row, end))
        .full;
  };
  std::int64_t cells = 0;
  for (std::int64_t i = 0; missing_keys > 0 && i < run.num_rows; ++i) {
    if (segment.end_tile + i * segment.step_end < num_cols) continue;
    const std::int64_t row = run.first_row + i * run.row_stride;
    cells += full_tiles(row, num_cols - 1, num_cols) * missing_keys * block_q;
  }
  const std::int64_t last = std::int64_t{run.num_rows} - 1;
  const std::int64_t row = run.first_row + last * run.row_stride;
  const std::int64_t missing_rows = (row + 1) * block_q - mask.q_len;
  if (missing_rows > 0) {
    const std::int64_t end = segment.end_tile + last * segment.step_end;
    std::int64_t keys =
        full_tiles(row, segment.first_tile + last * segment.step_first, end) * block_kv;
    if (end == num_cols) keys -= full_tiles(row, num_cols - 1, num_cols) * missing_keys;
    cells += keys * missing_rows;
  }
  return cells;
}

// Sum over i in [0, n) of a + i * step.
std::int64_t arithmetic_sum(std::int64_t a, std::int64_t step, std::int64_t n) {
  return n * a + step * (n * (n - 1) / 2);
}

}  // namespace

TileCounts count_tiles(const SegmentMask& mask) {
  TileCounts counts;
  const std::int64_t num_rows = mask.num_tile_rows(), num_cols = mask.num_tile_cols();
  const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
  const std::int64_t missing_keys = num_cols * block_kv - mask.kv_len;
  std::vector<std::int64_t> bitmap_cells(static_cast<std::size_t>(mask.num_bitmaps()), -1);
  std::vector<std::int64_t> panel_cells(static_cast<std::size_t>(mask.num_row_panels()), -1);
  const auto cells_of_bitmap = [&](std::int32_t index) {
    std::int64_t& cells = bitmap_cells[static_cast<std::size_t>(index)];
    if (cells < 0) cells = popcount(mask.bitmap(index));
    return cells;
  };
  const PatternRowSums<PatternTotals> pattern_rows(mask, [&](const PatternTile& tile) {
    return tile.bitmap == kFullTile ? PatternTotals{1, 0, block_q * block_kv}
                                    : PatternTotals{0, 1, cells_of_bitmap(tile.bitmap)};
  });
  for (const TileRun& run : mask.runs) {
    // The last tile row may hold fewer query rows: it is counted by itself.
    const std::int64_t last_row = run.first_row + std::int64_t{run.row_stride} * (run.num_rows - 1);
    const bool is_ragged = last_row == num_rows - 1 && mask.q_len % block_q != 0;
    for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
      const TileSegment& segment = mask.segments[static_cast<std::size_t>(s)];
      const std::int64_t width_step = std::int64_t{segment.step_end} - segment.step_first;
      const std::int64_t width = std::int64_t{segment.end_tile} - segment.first_tile;
      const std::int64_t tiles = arithmetic_sum(width, width_step, run.num_rows);
      switch (segment.kind) {
        case SegmentKind::full: {
          counts.full += tiles;
          const std::int64_t whole_rows = run.num_rows - (is_ragged ? 1 : 0);
          const auto keys_of = [&](std::int64_t i) {
            const std::int64_t end = segment.end_tile + i * segment.step_end;
            return (width + i * width_step) * block_kv - (end == num_cols ? missing_keys : 0);
          };
          std::int64_t keys = arithmetic_sum(width, width_step, whole_rows) * block_kv;
          if (segment.step_end == 0) {
            if (segment.end_tile == num_cols) keys -= missing_keys * whole_rows;
          } else {
            const std::int64_t distance = num_cols - segment.end_tile;
            const std::int64_t i = distance / segment.step_end;
            if (distance % segment.step_end == 0 && i >= 0 && i < whole_rows) keys -= missing_keys;
          }
          counts.allowed_pairs += keys * block_q;
          if (is_ragged) counts.allowed_pairs += keys_of(whole_rows) * (mask.q_len % block_q);
          break;
        }
        case SegmentKind::bitmap: {
          counts.partial += tiles;
          counts.allowed_pairs += tiles * cells_of_bitmap(segment.data_index);
          break;
        }
        case SegmentKind::rows: {
          counts.partial += tiles;
          std::int64_t& cells = panel_cells[static_cast<std::size_t>(segment.data_index)];
          if (cells < 0) {
            cells = 0;
            const auto panel = static_cast<std::size_t>(segment.data_index);
            const auto rows = static_cast<std::size_t>(block_q);
            for (std::int64_t i = mask.row_offsets[panel * rows];
                 i < mask.row_offsets[(panel + 1) * rows]; ++i) {
              const Interval keys = mask.row_intervals[static_cast<std::size_t>(i)];
              cells += keys.end - keys.begin;
            }
          }
          counts.allowed_pairs += run.num_rows * cells;
          break;
        }
        case SegmentKind::columns:
          counts.partial += tiles;
          break;
        case SegmentKind::pattern: {
          const PatternTotals tiles_of_run =
              sum_of_pattern_segment(mask, pattern_rows, run, segment);
          counts.full += tiles_of_run.full;
          counts.partial += tiles_of_run.partial;
          counts.allowed_pairs +=
              tiles_of_run.cells - missing_pattern_cells(mask, pattern_rows, run, segment);
          break;
        }
      }
    }
  }
  if (!mask.column_offsets.empty()) {  // the column table holds every cell of the mask
    counts.allowed_pairs = 0;
    for (const Interval& queries : mask.column_intervals) {
      counts.allowed_pairs += queries.end - queries.begin;
    }
  }
  counts.empty = num_rows * num_cols - counts.full - counts.partial;
  return counts;
}

}  // namespace fdma
