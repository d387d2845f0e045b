// Reads what a plan computes, by the documented meaning of its arrays: its cells, and every
// invariant that ties them to the mask.
#pragma once

#include <string>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma::testing {

/// Says the first thing that is wrong with `plan` as a plan of `expected`; empty if nothing is. For
/// a backward plan all of this holds of the transposed mask. Every (batch, head, query tile) is in
/// one work tile, or in as many as its split row has partials. The cells of its tiles, found by
/// SegmentIterator, are those of the mask: none twice, none beyond the lengths, and the same for
/// all heads that share the tile. num_tiles and the counts of the header are those of the walk. The
/// tiles of a row ascend, also from one of its work tiles to the next. A kv index list begins with
/// the keys that all rows see.
std::string check_plan(const AttentionPlan& plan, const MaskCase& expected);

}  // namespace fdma::testing
