// Parametric plans on the host: formulas of a mask, and the items that follow from them. What the
// GPU's tile_rows does at each call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention_call.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/mask_formula.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Formula, lengths and borders of one batch element in one call.
///
/// Owner       borrows the borders of the plan or of the call
struct FormulaElement {
  std::int32_t q_len;
  std::int32_t kv_len;
  FormulaRows rows;
};

/// Of a parametric plan; `call` without lengths and documents of its own: those of the plan.
std::vector<FormulaElement> formula_elements(const AttentionPlan& plan,
                                             const AttentionCall& call = {});

/// The key tiles of a query tile of the element, which has rows there.
FormulaWalk walk_of(const FormulaElement& element, BlockShape tile, std::int64_t q_tile);

/// The items of a call, without segments: by batch element, in sections of section_heads KV heads,
/// rows with many tiles first, the query heads of a row side by side.
std::vector<WorkItem> formula_items(const AttentionPlan& plan,
                                    const std::vector<FormulaElement>& elements);

/// Items of a parametric plan at its own lengths.
std::int64_t count_formula_items(const AttentionPlan& plan);

/// PlanCounts of a parametric plan at its own lengths. Cost: O(query tiles of all batch elements).
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
