// Subexpressions that vary along one axis only, evaluated once for all its positions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "boxes/program.hpp"

namespace fdma::box {

/// Number of positions of an axis: q_len, kv_len, or the number of diagonals; 1 for Axis::none.
/// Diagonal i holds the cells with k - q = i - (q_len - 1), so the diagonals of a row ascend with
/// k.
std::int64_t axis_length(const BoxProgram& program, Axis axis);

/// Values of an integer node along an axis.
///
/// Shapes      values: [length + 256], zero past length
///             undefined: a bit per position (one word more than needed), or empty if all positions
///             are defined
struct IntegerVector {
  std::int64_t length = 0;
  std::vector<std::int64_t> values;
  std::vector<std::uint64_t> undefined;

  bool is_undefined(std::int64_t i) const {
    return !undefined.empty() &&
           ((undefined[static_cast<std::size_t>(i / 64)] >> (i % 64)) & 1) != 0;
  }
  /// Bounds over positions [begin, end).
  NodeRange range(std::int64_t begin, std::int64_t end) const;
};

/// Outcomes of a condition along an axis.
///
/// Shapes      is_true, is_false: a bit per position, at least kRowSlackBytes longer, zero past the
///             length; is_false is empty if every position is defined
struct ConditionVector {
  std::int64_t length = 0;
  std::vector<std::uint64_t> is_true;
  std::vector<std::uint64_t> is_false;

  Outcomes outcome(std::int64_t i) const;
  /// Outcomes over positions [begin, end).
  Outcomes range(std::int64_t begin, std::int64_t end) const;
};

/// Evaluates a node that varies along at most `axis`. Cost: O(length * nodes).
IntegerVector integer_vector(const BoxProgram& program, IrId id, Axis axis);
ConditionVector condition_vector(const BoxProgram& program, IrId id, Axis axis);

/// A node that is another one plus a number, and neither undefined nor too large at any cell. It
/// needs no vector of its own.
struct SumWithConstant {
  IrId operand;
  std::int64_t constant;
};
std::optional<SumWithConstant> sum_with_constant(const BoxProgram& program, IrId id);

/// As integer_vector along the node's own axis; users at the same time share one vector.
std::shared_ptr<const IntegerVector> shared_integer_vector(const BoxProgram& program, IrId id);

}  // namespace fdma::box
