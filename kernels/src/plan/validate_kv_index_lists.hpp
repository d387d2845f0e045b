// Gather lists and key orders of a plan name keys that exist.
#pragma once

#include <cstdint>

#include "fdma/kernels/plan.hpp"

namespace fdma {

/// internal, naming the first list that is not where lists may be.
Result<void> check_gather_arrays(const AttentionPlan& plan);

/// internal, naming the first entry of list `index` that does not fit into a query tile of
/// `num_rows` rows of an element of `kv_len` keys. The arrays are checked.
Result<void> check_list(const AttentionPlan& plan, std::int64_t index, std::int64_t num_rows,
                        std::int64_t kv_len);

/// internal, naming the first order that is wrong: each names keys of its elements, none twice;
/// every (b, KV head) has one of the orders or none.
Result<void> check_orders(const AttentionPlan& plan);

}  // namespace fdma
