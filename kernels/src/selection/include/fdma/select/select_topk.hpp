// Exact top-k selection of keys per query, as query intervals per key.
#pragma once

#include <cstdint>
#include <span>

#include "fdma/base/result.hpp"
#include "fdma/formats/column_intervals.hpp"

namespace fdma {

/// Keeps for each query the `w` keys with the highest scores among those that `among` shows to it,
/// or all of them if they are `w` or fewer.
///
/// Example     scores 3, 1, 2 under causal, w = 1: key 0 is kept by queries [0, 3), keys 1 and 2 by
///             none: offsets {0, 1, 1, 1}, intervals {[0, 3)}
/// Shapes      scores [kv_len]. Ties go to the lower index, -0 equals +0, infinities rank at the
///             ends
/// Invariants  `among` is valid (validate.hpp); the result is valid and a subset of it
/// Errors      shape_mismatch: not kv_len scores; invalid_argument: w < 1, or a NaN score (the
///             message names the key)
/// Cost        for I intervals of `among`: O(kv_len + I) integers, one sort of the scores, and then
///             O((kv_len + I) log64 kv_len) steps
///             the result has at most one interval for each time that a key becomes visible or
///             stops being visible
///             one thread; the caller runs heads in parallel
/// Method      a key that w visible keys beat comes back only when one of them leaves
Result<ColumnIntervals> select_topk(std::span<const float> scores, std::int64_t w,
                                    const ColumnIntervals& among);

}  // namespace fdma
