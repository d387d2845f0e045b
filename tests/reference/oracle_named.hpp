// The named masks of the oracle, each written as its row in the table of names.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/tables.hpp"
#include "three_valued.hpp"

namespace fdma::reference {

/// One named mask with its arguments, for one batch element and head.
class NamedMask {
 public:
  /// Reads the arguments. `evaluate` gives the value of an integer argument, which mentions neither
  /// q nor k. Errors: those of oracle_cells.
  static Result<NamedMask> make(const MaskExpr& expr, ExprId id, const Tables& tables,
                                const MaskShape& shape, std::int64_t b, std::int64_t h,
                                const std::function<Value(ExprId)>& evaluate);

  /// The value of the mask at query row q and key k. at(..) may have made q or k undefined or moved
  /// them outside the mask.
  Value at(Value q, Value k) const;

 private:
  struct Source;
  Result<void> check_numbers() const;
  Result<void> check_length(Value length) const;
  Result<void> read_arguments(const Source& source);
  Result<void> read_documents(const Source& source);
  Result<void> read_prefix_documents(const Source& source);
  Result<void> read_tree(const Source& source);
  Result<void> read_tiles(const Source& source);

  Value same_document(Value pos, Value k) const;
  Value tree_node(Value node, Value of) const;
  Value natten(Value pos, Value k) const;
  Value natten3d(Value pos, Value k) const;
  Value block_diffusion(Value pos, Value k) const;
  Value id(Value key) const;

  MaskForm form_ = MaskForm::none;
  Value q_len_, kv_len_;
  std::vector<Value> numbers_;  ///< integer arguments in order; is_infinite_ marks infinite ones
  std::vector<bool> is_infinite_;
  bool is_left_ = false;
  std::vector<TensorView> tables_;         ///< tables for this batch element
  std::vector<std::int64_t> ids_;          ///< document of each key of this element
  std::vector<std::int64_t> order_;        ///< prefix_documents: position of a key in its document
  Value last_id_ = kUndefined;             ///< causal_blockwise: id of the last key that has one
  std::vector<std::int64_t> parents_;      ///< tree
  mutable std::int64_t marked_node_ = -1;  ///< tree: the node whose ancestors are marked
  mutable std::vector<std::uint8_t> is_marked_;  ///< tree: that node and its ancestors
};

}  // namespace fdma::reference
