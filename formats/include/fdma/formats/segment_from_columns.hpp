// segment_from_columns with cancellation: a million keys can take a minute.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fdma/formats/segment_builder.hpp"

namespace fdma {

/// As segment_from_columns of segment_builder.hpp. is_cancelled is asked before every tile row; the
/// result is empty once it says true.
std::optional<SegmentMask> segment_from_columns(std::int64_t q_len, std::int64_t kv_len,
                                                BlockShape block,
                                                std::vector<std::int64_t> column_offsets,
                                                std::vector<Interval> column_intervals,
                                                const std::function<bool()>& is_cancelled);

}  // namespace fdma
