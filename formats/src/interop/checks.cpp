#include "interop/checks.hpp"

#include <algorithm>

namespace fdma::interop {

Result<void> check_length(std::string_view name, std::int64_t length) {
  if (length >= 0 && length <= kMaxLength) return {};
  return wrong(fmt::format("{}: {}, expected 0 to {}", name, length, kMaxLength));
}

Result<void> check_pairs(std::int64_t num_batches, std::int64_t num_heads) {
  if (num_batches >= 1 && num_heads >= 1 && num_batches <= kMaxPairs / num_heads) return {};
  return wrong(
      fmt::format("batch elements and heads: {} x {}, expected at least 1 each and {} at most "
                  "in all",
                  num_batches, num_heads, kMaxPairs));
}

Result<void> check_extent(std::string_view array, std::size_t size, std::int64_t rows,
                          std::int64_t width) {
  const auto entries = static_cast<std::int64_t>(size);
  const bool agrees =
      rows == 0 || width == 0 ? entries == 0 : entries % width == 0 && entries / width == rows;
  if (agrees) return {};
  return mismatch(fmt::format("{}: {} entries, expected {} x {}", array, entries, rows, width));
}

Result<void> check_uniform(const MaskShape& shape, std::string_view interop) {
  for (const auto* lens : {&shape.q_lens, &shape.kv_lens}) {
    const auto [low, high] = std::minmax_element(lens->begin(), lens->end());
    if (*low == *high) continue;
    return unsupported(fmt::format(
        "{} has one length for all batch elements, but this mask has {} from {} to {}; "
        "export the elements one by one, or bind the mask to the longest with padding()",
        interop, lens == &shape.q_lens ? "query lengths" : "key lengths", *low, *high));
  }
  return {};
}

}  // namespace fdma::interop
