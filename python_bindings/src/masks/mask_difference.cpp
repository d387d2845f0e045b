// The difference of two masks by set algebra. The cells of (a minus b) and (b minus a) are counted
// and never listed, so that comparing two closed forms of a million tokens takes the time of
// combining them. Only the first tiles and the first cell are looked up, row by row.
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/python_error.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "masks/block_mask_binding.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

struct Tile {
  std::int64_t batch, head, row, col;
};
struct DifferingCell {
  std::int64_t batch, head, q, k;
  bool is_in_a;
};
struct Difference {
  std::string shape_reason;  // not empty: counts or lengths differ, and no cell was compared
  std::int64_t only_in_a = 0, only_in_b = 0, num_tiles = 0;
  std::optional<DifferingCell> first_cell;
  std::vector<Tile> tiles;
};

std::string shape_difference(const MaskShape& a, const MaskShape& b) {
  if (a.num_batches != b.num_batches) {
    return fmt::format("{} against {} batch elements", a.num_batches, b.num_batches);
  }
  if (a.num_heads != b.num_heads) {
    return fmt::format("{} against {} heads", a.num_heads, b.num_heads);
  }
  for (std::int64_t i = 0; i < a.num_batches; ++i) {
    if (a.q_len(i) == b.q_len(i) && a.kv_len(i) == b.kv_len(i)) continue;
    return fmt::format("lengths {} x {} against {} x {} in batch element {}", a.q_len(i),
                       a.kv_len(i), b.q_len(i), b.kv_len(i), i);
  }
  return {};
}

// The tile rows of a mask that are not empty, ascending.
std::vector<std::int32_t> rows_with_tiles(const SegmentMask& mask) {
  std::vector<std::int32_t> rows;
  for (const TileRun& run : mask.runs) {
    if (run.num_segments == 0) continue;
    for (std::int32_t i = 0; i < run.num_rows; ++i)
      rows.push_back(run.first_row + i * run.row_stride);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

// The first cell of a mask that holds one; `row` is its first tile row that is not empty.
DifferingCell first_cell(const SegmentMask& mask, std::int32_t row, std::int64_t b,
                         std::int64_t h) {
  std::vector<Interval> keys;
  std::int64_t q = std::int64_t{row} * mask.block.block_q;
  for (row_intervals_of(mask, q, keys); keys.empty(); row_intervals_of(mask, q, keys)) ++q;
  return {b, h, q, keys.front().begin, false};
}

bool has_cell(const BlockMask& mask, const DifferingCell& cell) {
  const auto& groups = std::get<std::vector<SegmentMask>>(mask.groups);
  std::vector<Interval> keys;
  row_intervals_of(groups[static_cast<std::size_t>(mask.group(cell.batch, cell.head))], cell.q,
                   keys);
  return std::any_of(keys.begin(), keys.end(), [&](const Interval& interval) {
    return interval.begin <= cell.k && cell.k < interval.end;
  });
}

// Lists the first max_tiles tiles of `unequal`, whose true cells are the cells that differ.
void list_tiles(const BlockMask& unequal, std::size_t max_tiles, Difference& difference) {
  const auto& groups = std::get<std::vector<SegmentMask>>(unequal.groups);
  std::vector<std::optional<std::vector<std::int32_t>>> rows(groups.size());
  for (std::int64_t b = 0; b < unequal.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < unequal.shape.num_heads; ++h) {
      const auto g = static_cast<std::size_t>(unequal.group(b, h));
      if (!rows[g]) rows[g] = rows_with_tiles(groups[g]);
      if (rows[g]->empty()) continue;
      if (!difference.first_cell) {
        difference.first_cell = first_cell(groups[g], rows[g]->front(), b, h);
      }
      for (const std::int32_t row : *rows[g]) {
        for (const TileSegment& segment : segments_of_row(groups[g], row)) {
          for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col) {
            if (difference.tiles.size() >= max_tiles) return;
            difference.tiles.push_back({b, h, row, col});
          }
        }
      }
    }
  }
}

Difference compare(const BlockMask& a, const BlockMask& b, std::size_t max_tiles) {
  Difference difference;
  difference.shape_reason = shape_difference(a.shape, b.shape);
  if (!difference.shape_reason.empty() || equal_cells(a, b)) return difference;
  const BlockMask unequal = value_or_throw(symmetric_difference(a, b));
  const TileCounts counts = count(unequal, unequal.block).tiles;
  difference.num_tiles = counts.full + counts.partial;
  const BlockMask only_in_a = value_or_throw(intersect(unequal, a));
  difference.only_in_a = count(only_in_a, only_in_a.block).tiles.allowed_pairs;
  difference.only_in_b = counts.allowed_pairs - difference.only_in_a;
  list_tiles(unequal, max_tiles, difference);
  difference.first_cell->is_in_a = has_cell(only_in_a, *difference.first_cell);
  return difference;
}

nb::dict difference_from(const BlockMask& a, const BlockMask& b, std::int64_t max_tiles) {
  if (max_tiles < 0) {
    throw PythonError({ErrorCode::invalid_argument,
                       fmt::format("max_tiles: expected 0 or more, got {}", max_tiles)});
  }
  Difference difference;
  {
    const nb::gil_scoped_release released;
    difference = compare(a, b, static_cast<std::size_t>(max_tiles));
  }
  nb::dict result;
  result["shape_reason"] = difference.shape_reason;
  result["only_in_a"] = difference.only_in_a;
  result["only_in_b"] = difference.only_in_b;
  result["num_tiles"] = difference.num_tiles;
  result["first_cell"] = nb::none();
  if (const auto& cell = difference.first_cell) {
    result["first_cell"] = nb::make_tuple(cell->batch, cell->head, cell->q, cell->k, cell->is_in_a);
  }
  nb::list tiles;
  for (const Tile& tile : difference.tiles) {
    tiles.append(nb::make_tuple(tile.batch, tile.head, tile.row, tile.col));
  }
  result["tiles"] = tiles;
  return result;
}

}  // namespace

void bind_mask_difference(nb::module_&, BlockMaskClass& mask) {
  mask.def("difference_from", &difference_from, nb::arg("other"), nb::arg("max_tiles"),
           nb::sig("def difference_from(self, other: BlockMask, max_tiles: int) -> dict[str, Any]"),
           "Returns the difference of two masks as a dict.\n\n"
           "only_in_a and only_in_b count the cells of one mask alone, and num_tiles the\n"
           "tiles that differ, in blocks of this mask. tiles holds at most max_tiles of\n"
           "these tiles as (batch, head, row, column). first_cell is (batch, head, q, k,\n"
           "whether this mask has it), or None. shape_reason is not empty if counts or\n"
           "lengths differ; no cell is then compared.");
}

}  // namespace fdma::python
