// Closed-form plans on the host: the closed-form masks of a mask's groups, and the work tiles that
// follow from them. On the GPU cuda/tile_rows.cu makes the work tiles at each call.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "call/checked_inputs.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/closed_form_columns.hpp"
#include "fdma/kernels/closed_form_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The closed-form mask, lengths and borders of one batch element in one call, read as its plan is:
/// rows are queries and columns are keys, in a backward plan the other way round.
///
/// Owner       borrows the borders of the plan or of the call
struct ClosedFormElement {
  std::int32_t num_rows;
  std::int32_t num_columns;
  ClosedFormRows by_query;
  ClosedFormColumns by_key;
  bool is_backward;

  /// The columns that `row` sees: the union of both, each of which may be empty.
  std::array<ClosedFormRange, 2> intervals(std::int32_t row) const;
};

/// The elements of a closed-form plan. If `call` has no lengths and documents of its own, those of
/// the plan apply.
std::vector<ClosedFormElement> closed_form_elements(const PlanHeader& header,
                                                    const ClosedFormPlan& plan,
                                                    const CallLengths& call = {});

/// The tiles of a tile row of the element, which has rows there. `tile` is the plan's mask_tile.
ClosedFormWalk walk_of(const ClosedFormElement& element, BlockShape tile, std::int64_t tile_row);

/// The work tiles of a call, without segments. They are sorted by batch element, then by groups of
/// heads_in_l2 KV heads, then rows with many tiles first. The query heads of a row are adjacent.
std::vector<WorkTile> closed_form_work_tiles(const PlanHeader& header, const ClosedFormPlan& plan,
                                             const std::vector<ClosedFormElement>& elements);

/// PlanCounts of a closed-form plan at its own lengths. Cost: O(tile rows of all batch elements).
PlanCounts count_closed_form_tiles(const PlanHeader& header, const ClosedFormPlan& plan);

/// Sets the closed-form masks and borders of `plan` from a mask whose groups are parametric or have
/// cells with a closed form. There is one closed form if all batch elements agree, otherwise one
/// for each.
///
/// Errors      unsupported: heads with masks of their own, cells without a closed form, lengths or
///             offsets above kClosedFormMaxLength
Result<void> set_closed_forms(const BlockMask& mask, ClosedFormPlan& plan);

/// invalid_argument unless lengths and documents that a call gives satisfy AttentionTensors. It
/// reads them, so they have to be in host memory.
Result<void> check_closed_form_call(const AttentionShape& shape, const CallLengths& call);

/// Closed-form mask `index` of the plan as one line of its text.
std::string closed_form_text(const ClosedFormPlan& plan, std::size_t index);

}  // namespace fdma
