#include "interop/cell_text.hpp"

#include <set>
#include <utility>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "interop/checks.hpp"

namespace fdma::interop {
namespace {

// The first row and key in which two masks of the same lengths differ.
std::optional<std::pair<std::int64_t, std::int64_t>> first_difference(const SegmentMask& a,
                                                                      const SegmentMask& b) {
  std::vector<Interval> rows_a, rows_b;
  for (std::int64_t q = 0; q < a.q_len; ++q) {
    row_intervals_of(a, q, rows_a);
    row_intervals_of(b, q, rows_b);
    if (rows_a == rows_b) continue;
    // The lists agree up to some interval. The first bound that differs is the first cell.
    for (std::size_t i = 0;; ++i) {
      const bool has_a = i < rows_a.size(), has_b = i < rows_b.size();
      if (has_a && has_b && rows_a[i] == rows_b[i]) continue;
      if (!has_a || !has_b) return {{q, has_a ? rows_a[i].begin : rows_b[i].begin}};
      if (rows_a[i].begin != rows_b[i].begin) {
        return {{q, std::min(rows_a[i].begin, rows_b[i].begin)}};
      }
      return {{q, std::min(rows_a[i].end, rows_b[i].end)}};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<CellPosition> first_difference(const BlockMask& a, const BlockMask& b) {
  std::set<std::pair<std::int32_t, std::int32_t>> equal;
  for (std::int64_t batch = 0; batch < a.shape.num_batches; ++batch) {
    for (std::int64_t head = 0; head < a.shape.num_heads; ++head) {
      const std::pair groups{a.group(batch, head), b.group(batch, head)};
      if (equal.count(groups) != 0) continue;
      const auto cell = first_difference(segment_of_group(a, groups.first, a.block),
                                         segment_of_group(b, groups.second, b.block));
      if (cell) return CellPosition{batch, head, cell->first, cell->second};
      equal.insert(groups);
    }
  }
  return std::nullopt;
}

Result<void> check_equal_heads(const BlockMask& mask, std::string_view interop) {
  for (std::int64_t batch = 0; batch < mask.shape.num_batches; ++batch) {
    for (std::int64_t head = 1; head < mask.shape.num_heads; ++head) {
      if (mask.group(batch, head) == mask.group(batch, 0)) continue;
      const auto cell =
          first_difference(segment_of_group(mask, mask.group(batch, 0), mask.block),
                           segment_of_group(mask, mask.group(batch, head), mask.block));
      if (!cell) continue;
      return unsupported(fmt::format("{} has one mask for all heads: {} is not as in head 0",
                                     interop, cell_text({batch, head, cell->first, cell->second})));
    }
  }
  return {};
}

}  // namespace fdma::interop
