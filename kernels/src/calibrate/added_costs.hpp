// What plans add to their work tiles: plans that differ from others in such a cost alone, and the
// fits to their times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// How much more of each added cost one call of a pair has than the other.
struct AddedWork {
  double work_tiles = 0;        ///< of a worker
  double split_work_tiles = 0;  ///< of a worker, all of them of split rows
  double combined_rows = 0;     ///< query rows of partial results, of the call
  double moved_keys = 0;        ///< of the call, over KV heads
  double us = 0;                ///< the time of the call less that of the other one
};

/// A plan, and if it is not the plain one, what it has more than plan `plain` of the same list.
struct AddedPlan {
  AttentionPlan plan;
  std::size_t plain = 0;
  std::optional<AddedWork> added;
};

/// Forward plans of full tiles in which every worker gets the same. Each exists whole. Some exist
/// with every row split into 2, 4 and 8 parts, of 16 and of 128 queries; some with the keys of all
/// KV heads permuted, of few and of many KV heads.
///
/// Errors  those of make_plan
Result<std::vector<AddedPlan>> added_plans(DType dtype, std::int32_t head_dim, int num_workers);

/// KernelCosts of the same names, and TileCosts::split_us.
struct AddedCosts {
  double combine_us = 0;
  double combine_row_us = 0;
  double split_us = 0;
  double move_us = 0;
  double moved_key_us = 0;
};

/// Two fits by non-negative least squares: splitting and combining to the calls that split rows, at
/// the known cost of a work tile, and moving keys to those that move some.
AddedCosts fit_added(const std::vector<AddedWork>& calls, double item_us);

/// Masks for calls whose sums of dq are ordered, or whose delta is corrected: all pairs, and causal,
/// where the key tiles of a query tile end at different times.
std::vector<BlockMask> share_masks();

/// kv index lists of learned top-k on the device.
struct ListsWork {
  double lists = 0;
  double entries = 0;  ///< that lists have room for
  double us = 0;       ///< of the call that makes them
};
struct ListCosts {
  double list_launch_us = 0;
  double list_us = 0;
  double list_entry_us = 0;
};
ListCosts fit_lists(const std::vector<ListsWork>& calls);

/// The lists of `heads` KV heads of causal top-k over `tokens` keys, in tiles of 128 queries.
ListsWork causal_lists(std::int64_t tokens, std::int64_t w, std::int64_t heads);

}  // namespace fdma
