// The kv index lists of a mask's tile rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/regions.hpp"

namespace fdma {

/// Appends to `plan` the kv index list of each tile row of `mask` that has one (and is among
/// `rows`): the live keys of its gathered tiles. Returns the list of each tile row, -1 if there is
/// none.
///
/// `keys` maps each key of the mask to a key of the tensors where their orders differ; otherwise it
/// is empty. Lists name keys of the tensors.
///
/// Cost: O(keys), the (interval, tile row) pairs of column tables, the cells of other gathered
/// tiles / 64, and O(entries log entries) where keys do not come in order.
std::vector<std::int32_t> append_kv_index_lists(const SegmentMask& mask, const Regions& regions,
                                                const std::vector<bool>& rows,
                                                std::span<const std::int32_t> keys,
                                                SegmentPlan& plan);

/// Gives `entries` memory for `count` of them. Much memory is asked for in large pages: the first
/// touch of small ones takes longer than filling them.
void reserve_entries(std::vector<KvIndexEntry>& entries, std::int64_t count);

}  // namespace fdma
