// The gather lists of a mask's tile rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/regions.hpp"

namespace fdma {

/// Appends to `plan` the list of each tile row of `mask` that has one (and is among `rows`): the
/// live keys of its gathered tiles. Returns the list of each tile row, -1 where there is none.
///
/// `keys`: what key each key of the mask is, where their order is not that of the tensors; else
/// empty. Lists name keys of the tensors.
///
/// Cost: O(keys), the (interval, tile row) pairs of column tables, the cells of other gathered
/// tiles / 64, and entries log entries where keys do not come in order.
std::vector<std::int32_t> append_gather_lists(const SegmentMask& mask, const Regions& regions,
                                              const std::vector<bool>& rows,
                                              std::span<const std::int32_t> keys,
                                              AttentionPlan& plan);

}  // namespace fdma
