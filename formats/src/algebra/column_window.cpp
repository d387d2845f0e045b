#include "algebra/column_window.hpp"

#include <algorithm>

namespace fdma {

ColumnIntervals column_window(std::span<const std::int64_t> offsets,
                              std::span<const Interval> intervals, const CellWindow& window) {
  ColumnIntervals result;
  result.q_len = window.q_end - window.q_begin;
  result.kv_len = window.kv_end - window.kv_begin;
  result.offsets.reserve(static_cast<std::size_t>(result.kv_len) + 1);
  result.offsets.push_back(0);
  for (std::int64_t k = window.kv_begin; k < window.kv_end; ++k) {
    const auto key = static_cast<std::size_t>(k);
    for (std::int64_t i = offsets[key]; i < offsets[key + 1]; ++i) {
      const Interval queries = intervals[static_cast<std::size_t>(i)];
      const std::int64_t begin = std::max<std::int64_t>(queries.begin, window.q_begin);
      const std::int64_t end = std::min<std::int64_t>(queries.end, window.q_end);
      if (begin >= end) continue;
      result.intervals.push_back({static_cast<std::int32_t>(begin - window.q_begin),
                                  static_cast<std::int32_t>(end - window.q_begin)});
    }
    result.offsets.push_back(static_cast<std::int64_t>(result.intervals.size()));
  }
  return result;
}

}  // namespace fdma
