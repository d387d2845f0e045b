// Types of expressions, as far as they are known without tables. The parser and the builder share
// these checks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/mask_names.hpp"

namespace fdma {

enum class ExprType : std::uint8_t {
  integer,
  condition,
  table,   ///< a table entry: integer or condition, decided when the table is bound
  symbol,  ///< inf, left, right: only as arguments of named masks
  error,   ///< the type of a node whose fault was already reported
};

/// Facts of a node that the parser and the builder know.
struct ExprFacts {
  ExprType type = ExprType::error;
  bool depends_on_cell = false;  ///< on q, k or pos
  bool is_whole_table = false;   ///< @t without indices
  std::uint64_t free_loops = 0;  ///< loop variables that it mentions; the caller numbers the bits
};

/// A reason why a node is ill-typed.
struct TypeProblem {
  int child;  ///< the operand at fault, or -1 for the node itself
  std::string message;
};

/// Infers the facts of `node` from those of its children. The caller handles loop variables: it
/// sets free_loops for `variable` nodes that are not the cell's, and for the variable that any /
/// all binds. An ill-typed node has type `error` and a problem, unless a child has one.
ExprFacts infer(const ExprNode& node, std::span<const ExprFacts> children,
                std::optional<TypeProblem>& problem);

/// True iff `facts` may be used where `wanted` (integer or condition) is needed.
bool fits(const ExprFacts& facts, ExprType wanted);

}  // namespace fdma
