// The rows of operators.def as facts that the language's stages read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "fdma/masks/mask_expr.hpp"

namespace fdma {

/// From loose to tight; k <= q & q - k < 4 needs no parentheses.
enum Precedence : int {
  kNoOperator = 0,
  kOr,
  kXor,
  kAnd,
  kNot,
  kCompare,
  kAdd,
  kMul,
  kNegate,
  kAtom,  ///< numbers, names, calls, indexed tables
};

/// What the operands of an operator are and what it gives.
enum class OperandTypes : std::uint8_t {
  integers,    ///< integers give an integer
  comparison,  ///< integers give a condition
  equality,    ///< two integers or two conditions give a condition
  conditions,  ///< conditions give a condition
  count,       ///< conditions give an integer
  choice,      ///< a condition and two values of one type give that type
  quantifier,  ///< an integer and a condition give a condition
  moved,       ///< a condition and two integers give a condition
  variable,    ///< an integer without operands, or a word like inf
  entry,       ///< integers give what the bound table has
  mask,        ///< the parameters of a named mask decide; a condition
};

inline constexpr int kMany = std::numeric_limits<int>::max();

/// One row of operators.def.
struct OperatorFacts {
  ExprOp op;
  std::string_view name;
  const char* spelling;
  std::string_view word;
  Precedence binds;
  int least;
  int most;
  OperandTypes types;
  const char* signature;  ///< "shl(x, n)", of functions
  std::string_view parameters;
  std::string_view python;
  std::string_view meaning;

  constexpr bool is_infix() const { return binds < kAtom && most == 2; }
  constexpr bool is_prefix() const { return binds < kAtom && most == 1; }
  constexpr bool is_function() const { return !parameters.empty(); }
};

/// By ExprOp.
inline constexpr OperatorFacts kOperators[] = {
#define FDMA_OPERATOR(name, spelling, word, binds, least, most, types, parameters, python, \
                      meaning)                                                             \
  {ExprOp::name,                                                                           \
   #name,                                                                                  \
   spelling,                                                                               \
   word,                                                                                   \
   binds,                                                                                  \
   least,                                                                                  \
   most,                                                                                   \
   OperandTypes::types,                                                                    \
   spelling "(" parameters ")",                                                            \
   parameters,                                                                             \
   python,                                                                                 \
   meaning},
#define FDMA_LANGUAGE_OPERATOR FDMA_OPERATOR
#include "fdma/masks/operators.def"
};

constexpr const OperatorFacts& operator_facts(ExprOp op) {
  return kOperators[static_cast<std::size_t>(op)];
}
constexpr Precedence precedence_of(ExprOp op) { return operator_facts(op).binds; }
/// The operator as the language writes it and messages name it: "<=", "min", "any".
constexpr const char* spelling(ExprOp op) { return operator_facts(op).spelling; }

}  // namespace fdma
