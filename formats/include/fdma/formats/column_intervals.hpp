// ColumnIntervals: per key, the query intervals that see it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"

namespace fdma {

/// A list of query intervals for each key. It suits learned top-k, cache eviction, and FlashMask
/// (whose arrays hold the complement).
///
/// Example     causal, 3 tokens: offsets = {0, 1, 2, 3}, intervals = {[0, 3), [1, 3), [2, 3)}
/// Shapes      offsets    [kv_len + 1] int64
///             intervals  [num_intervals, 2] int32
/// Invariants  intervals are not empty and lie in [0, q_len)
///             the intervals of one key ascend, with at least one query between neighbours
/// Cost        8 B a key, 8 B an interval
struct ColumnIntervals {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::vector<std::int64_t> offsets;
  std::vector<Interval> intervals;

  std::int64_t size_bytes() const;
  friend bool operator==(const ColumnIntervals&, const ColumnIntervals&) = default;
};

}  // namespace fdma
