// ClosedFormPlan: the form of a plan that keeps the closed form of the mask.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/closed_form_mask.hpp"

namespace fdma {

/// Closed forms in place of work tiles: the tiles of a tile row follow from its first and last row,
/// and the cells of a partial tile from each row. Each call may give lengths and documents. All
/// heads have the same mask.
///
/// Example     causal, one batch element: closed_forms = {one}, borders = {}, num_splits = 1
/// Shapes      closed_forms [1] or [batch]; borders: those of closed form f are
///             [f.first_border, f.first_border + f.num_borders)
/// Invariants  lengths, shifts and borders are within kClosedFormMaxLength and
///             kClosedFormUnbounded; borders of a closed form ascend
///             num_splits is at least 1, in a backward plan 1; heads_in_l2 is 1 to heads_kv
///             validate (plan.hpp) checks all of these
/// Owner       owns its arrays (host)
/// Cost        36 B a closed form, 4 B a border, 8 B
struct ClosedFormPlan {
  std::vector<ClosedFormMask> closed_forms;  ///< one, or one for each batch element
  std::vector<std::int32_t> borders;         ///< of documents (ClosedFormMask::first_border)
  std::int32_t num_splits = 1;               ///< work tiles of each tile row; keys are split evenly
  std::int32_t heads_in_l2 = 1;  ///< KV heads of a batch element that stay together in L2
  friend bool operator==(const ClosedFormPlan&, const ClosedFormPlan&) = default;
};

}  // namespace fdma
