// Merges structurally equal nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "fdma/masks/mask_expr.hpp"

namespace fdma {

/// A table of distinct nodes: an expression added twice gets the same id.
///
/// Invariants  children precede parents, in the order in which they were first added
/// Cost        O(1) expected a node and operand
class ExprInterner {
 public:
  ExprInterner() : index_(0, Hash{this}, Equal{this}) {}
  ExprInterner(const ExprInterner&) = delete;
  ExprInterner& operator=(const ExprInterner&) = delete;

  /// The id of the expression's root among the distinct nodes. Follows operands in order from the
  /// root, so that equal expressions added to empty interners give equal tables.
  ExprId add(const MaskExpr& expr);

  const std::vector<ExprNode>& nodes() const { return nodes_; }

 private:
  struct Hash {
    const ExprInterner* self;
    std::size_t operator()(ExprId id) const;
  };
  struct Equal {
    const ExprInterner* self;
    bool operator()(ExprId a, ExprId b) const;
  };
  ExprId intern(ExprNode node);

  std::vector<ExprNode> nodes_;
  std::unordered_set<ExprId, Hash, Equal> index_;
};

}  // namespace fdma
