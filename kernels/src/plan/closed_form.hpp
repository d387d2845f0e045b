// Parametric plans on the host: formulas of a mask, and the items that follow from them. What the
// GPU's tile_rows does at each call.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "call/attention_call.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/closed_form_columns.hpp"
#include "fdma/kernels/closed_form_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Formula, lengths and borders of one batch element in one call, read as its plan is: rows are
/// queries and columns keys, of a backward plan the other way round.
///
/// Owner       borrows the borders of the plan or of the call
struct FormulaElement {
  std::int32_t num_rows;
  std::int32_t num_columns;
  FormulaRows by_query;
  FormulaColumns by_key;
  bool is_backward;

  /// The columns that `row` sees: the union of both, each of which may be empty.
  std::array<FormulaRange, 2> intervals(std::int32_t row) const;
};

/// Of a parametric plan; `call` without lengths and documents of its own: those of the plan.
std::vector<FormulaElement> formula_elements(const AttentionPlan& plan,
                                             const AttentionCall& call = {});

/// The tiles of a tile row of the element, which has rows there; `tile` is the plan's mask_tile.
FormulaWalk walk_of(const FormulaElement& element, BlockShape tile, std::int64_t tile_row);

/// The items of a call, without segments: by batch element, in sections of section_heads KV heads,
/// rows with many tiles first, the query heads of a row side by side.
std::vector<WorkItem> formula_items(const AttentionPlan& plan,
                                    const std::vector<FormulaElement>& elements);

/// Items of a parametric plan at its own lengths.
std::int64_t count_formula_items(const AttentionPlan& plan);

/// PlanCounts of a parametric plan at its own lengths. Cost: O(tile rows of all batch elements).
PlanCounts count_formula_tiles(const AttentionPlan& plan);

/// Sets the formulas and borders of `plan` from a mask whose groups are parametric or have cells of
/// a closed form: one formula where all batch elements agree, else one for each.
///
/// Errors      unsupported: heads with masks of their own, cells without a closed form, lengths or
///             offsets above kFormulaMaxLength
Result<void> set_formulas(const BlockMask& mask, AttentionPlan& plan);

/// invalid_argument unless lengths and documents that a call gives are as AttentionTensors says.
/// Reads them: host memory only.
Result<void> check_formula_call(const AttentionPlan& plan, const AttentionCall& call);

/// Formula `index` of the plan in a line, as its text has it.
std::string formula_text(const AttentionPlan& plan, std::size_t index);
/// to_text of a parametric plan.
std::string parametric_text(const AttentionPlan& plan, std::int64_t max_formulas);

/// What validate(plan) says of a parametric plan: internal, naming what is wrong.
Result<void> validate_formulas(const AttentionPlan& plan);

}  // namespace fdma
