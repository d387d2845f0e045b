// Decides which intervals of keys are cut at the ends of segments of queries, on host and device.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"
#include "fdma/kernels/kv_worklist.hpp"

namespace fdma {

/// Number of keys that are decided together: [2048 n, 2048 n + 2048).
inline constexpr std::int32_t kCutKeys = 2048;

/// An interval of more queries than this is long, where a query sees at most `w` keys. If every key
/// were live equally long, it would be live for w queries. `segment` is in tiles.
FDMA_HOST_DEVICE inline std::int64_t longest_short_life(std::int64_t w, std::int32_t segment) {
  const std::int64_t longer = w + w / 2, queries = std::int64_t{segment} * kWorklistTile;
  return longer < queries ? longer : queries;
}

/// Whether the intervals of a block of keys are cut: where keys that begin together end apart. Keys
/// that come and go one after the other share tiles, and what is in the cache, without cuts.
FDMA_HOST_DEVICE inline bool cuts_key_segment(std::int64_t num_intervals, std::int64_t num_long) {
  return num_long > 0 && num_long * 8 >= num_intervals;
}

}  // namespace fdma
