// MaskExpr: a mask as the user wrote it. No sizes; tables by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fdma {

/// Operators of the mask language (docs/spec-language.md): the rows of operators.def, which has
/// their spellings, types and meanings. Operands are the node's children in source order.
///
/// literal     value
/// variable    symbol: q k b h q_len kv_len pos, or the variable of an enclosing any / all
/// table       symbol: table name; children: 0 to 4 indices; type: that of the bound table
/// boolean     value 0 or 1: the literals false, true
/// where       condition, then, else; both branches are integers or both are conditions
/// any_of      symbol: bound variable; children: bound n, condition; likewise all_of
/// at          children: mask, q, k: the mask evaluated at other indices
/// named       symbol: the name of a named mask; children and arg_names: its arguments
/// A chain a < b < c is logical_and of comparisons.
enum class ExprOp : std::uint8_t {
#define FDMA_OPERATOR(name, ...) name,
#define FDMA_LANGUAGE_OPERATOR(name, ...) name,
#include "fdma/masks/operators.def"
};

using ExprId = std::int32_t;

/// A range of bytes of the source text, for diagnostics. Both are -1 for nodes that were not
/// parsed.
struct SourceSpan {
  std::int32_t begin = -1;
  std::int32_t end = -1;
};

struct ExprNode {
  ExprOp op;
  std::int64_t value = 0;
  std::string symbol;
  std::vector<ExprId>
      children;  ///< each smaller than the node's own id: nodes are in evaluation order
  /// named only: the argument names of the children, in the same order; "" for a positional
  /// argument. A symbolic argument value such as side=left or the inf of window(inf, 0) is a
  /// `variable` child of that symbol.
  std::vector<std::string> arg_names;
  SourceSpan span;
};

/// An expression of the mask language: an immutable directed acyclic graph; copies share it.
///
/// Example     parse_mask("causal & (window(1024) | sink(4))")
/// Invariants  parse_mask and the builder (mask_builder.hpp) check names, arity and types, as far
///             as they are known without tables
///             children precede parents, so that no pass needs recursion
class MaskExpr {
 public:
  MaskExpr() = default;
  MaskExpr(std::shared_ptr<const std::vector<ExprNode>> nodes, ExprId root, std::string text = {})
      : nodes_(std::move(nodes)), root_(root), text_(std::move(text)) {}

  const std::vector<ExprNode>& nodes() const { return *nodes_; }
  const ExprNode& node(ExprId id) const { return (*nodes_)[static_cast<std::size_t>(id)]; }
  ExprId root() const { return root_; }
  /// The source text, if it was parsed.
  const std::string& text() const { return text_; }
  bool empty() const { return nodes_ == nullptr; }

 private:
  std::shared_ptr<const std::vector<ExprNode>> nodes_;
  ExprId root_ = -1;
  std::string text_;
};

/// True iff both are the same operations on the same operands. Sharing of nodes, their places in a
/// text and the text itself do not matter. Cost: linear in the nodes.
bool operator==(const MaskExpr& a, const MaskExpr& b);

/// The expression in the language's own syntax, with canonical spacing and shared nodes as `let`.
/// parse_mask(to_text(e)) gives an equal expression, and equal expressions give equal texts.
///
/// Example     "(causal)and k<5" gives "causal & k < 5"
/// Cost        linear in the nodes; nodes shared inside the body of any / all, where no let can
///             stand, are written out at each use
std::string to_text(const MaskExpr& expr);

/// One node per line, for --dump expr and golden tests.
std::string dump(const MaskExpr& expr);

/// The value of an operator on known integers and conditions (0 or 1); nothing where it is
/// undefined. Not for operators without operands, at, loops and named masks.
///
/// Example     fold_operator(ExprOp::floor_div, {-7, 2}) is -4
std::optional<std::int64_t> fold_operator(ExprOp op, std::span<const std::int64_t> operands);

/// The names of all tables mentioned, sorted, without duplicates.
std::vector<std::string> table_names(const MaskExpr& expr);

/// True iff the expression names the variable `name` (q, k, b, h, q_len, kv_len, pos). Named masks
/// count as using q, k, pos and the lengths. A batch or head extent of a named mask's table is not
/// known here and does not count.
bool mentions_variable(const MaskExpr& expr, std::string_view name);

}  // namespace fdma
