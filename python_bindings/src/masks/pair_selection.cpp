#include "masks/pair_selection.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "arrays/python_error.hpp"

namespace fdma::python {
namespace {

void check_range(const char* name, PairRange range, std::int64_t limit) {
  if (0 <= range.first && range.first < range.second && range.second <= limit) return;
  throw PythonError({ErrorCode::invalid_argument,
                     fmt::format("{}: [{}, {}), expected a range inside [0, {}) that is not empty",
                                 name, range.first, range.second, limit)});
}

}  // namespace

PairSelection::PairSelection(const BlockMask& mask, std::optional<PairRange> batch,
                             std::optional<PairRange> head)
    : batches(batch.value_or(PairRange(0, mask.shape.num_batches))),
      heads(head.value_or(PairRange(0, mask.shape.num_heads))) {
  check_range("batch", batches, mask.shape.num_batches);
  check_range("heads", heads, mask.shape.num_heads);
  for (std::int64_t b = batches.first; b < batches.second; ++b) {
    q_len = std::max(q_len, mask.shape.q_len(b));
    kv_len = std::max(kv_len, mask.shape.kv_len(b));
  }
}

std::array<std::size_t, 4> PairSelection::extents(const char* what, std::int64_t rows,
                                                  std::int64_t columns, std::int64_t element_bytes,
                                                  std::int64_t max_bytes) const {
  std::int64_t bytes = element_bytes;
  bool fits = true;
  for (const std::int64_t factor : {num_batches(), num_heads(), rows, columns}) {
    fits = fits && !__builtin_mul_overflow(bytes, factor, &bytes);
  }
  if (!fits || bytes > max_bytes) {
    throw PythonError(
        {ErrorCode::out_of_memory,
         fmt::format("{}: {} x {} x {} x {} take {} each, but max_bytes is {}", what, num_batches(),
                     num_heads(), rows, columns,
                     element_bytes == 1 ? "one byte" : fmt::format("{} bytes", element_bytes),
                     max_bytes)});
  }
  return {static_cast<std::size_t>(num_batches()), static_cast<std::size_t>(num_heads()),
          static_cast<std::size_t>(rows), static_cast<std::size_t>(columns)};
}

}  // namespace fdma::python
