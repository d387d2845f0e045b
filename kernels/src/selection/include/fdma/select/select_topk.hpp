// Exact top-k selection of keys per query, as query intervals per key.
#pragma once

#include <cstdint>
#include <span>

#include "fdma/base/result.hpp"
#include "fdma/formats/column_intervals.hpp"

namespace fdma {

/// For each query, of the keys that `among` shows to it, the `w` with the highest score; all of
/// them if they are `w` or fewer.
///
/// Example     scores 3, 1, 2 under causal, w = 1: key 0 is kept by queries [0, 3), keys 1 and 2
/// never:
///             offsets {0, 1, 1, 1}, intervals {[0, 3)}
/// Shapes      scores [kv_len]; ranked as given: ties go to the lower index, -0 equals +0,
/// infinities
///             rank at the ends
/// Invariants  `among` is valid (validate.hpp); what comes out is, and is a subset of it
/// Errors      shape_mismatch: not kv_len scores; invalid_argument: w < 1, or a NaN score (names
/// the key) Cost        O(kv_len + I) integers and O((kv_len + I) log64 kv_len) steps after one
/// sort of the
///             scores, for I intervals of `among`; at most one interval for each time that a key
///             becomes visible or stops being so. One thread; runs of heads are the caller's to
///             parallelise
/// See         DESIGN: a key that w visible keys beat comes back only when one of them leaves
Result<ColumnIntervals> select_topk(std::span<const float> scores, std::int64_t w,
                                    const ColumnIntervals& among);

}  // namespace fdma
