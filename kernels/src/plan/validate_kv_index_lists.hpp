// Validates that kv index lists and kv permutations of a plan name keys that exist.
#pragma once

#include <cstdint>

#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Returns an internal error that names the first list that lies outside the arrays or out of
/// place.
Result<void> check_kv_index_arrays(const SegmentPlan& plan);

/// Returns an internal error that names the first entry of list `index` that does not fit into a
/// query tile of `num_rows` rows of an element of `kv_len` keys. The arrays have been checked.
Result<void> check_kv_index_list(const SegmentPlan& plan, std::int64_t index, std::int64_t num_rows,
                                 std::int64_t kv_len);

/// Returns an internal error that names the first wrong permutation. Each names keys of its
/// elements, none twice, and every (b, KV head) has one of the permutations or none.
Result<void> check_permutations(const PlanHeader& header, const SegmentPlan& plan);

}  // namespace fdma
