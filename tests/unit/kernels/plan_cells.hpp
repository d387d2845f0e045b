// What a plan computes, by the documented meaning of its arrays: its cells, and every invariant
// that ties them to the mask.
#pragma once

#include <string>

#include "fdma/kernels/plan.hpp"
#include "mask_cases.hpp"

namespace fdma::testing {

/// The first thing wrong with `plan` as a plan of `expected`; empty if nothing is.
///
/// Every (batch, head, query tile) is in one item; the cells of its tiles, found by
/// SegmentIterator, are those of the mask, none twice, none beyond the lengths; num_tiles and the
/// counts of the header are those of the walk; tiles of an item ascend; gather lists put the keys
/// that all rows see first.
std::string check_plan(const AttentionPlan& plan, const MaskCase& expected);

}  // namespace fdma::testing
