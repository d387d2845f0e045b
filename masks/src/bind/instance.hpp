// Turns an expression into the program of one (batch, head) pair.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "bind/check.hpp"
#include "bind/expand_names.hpp"
#include "fdma/base/result.hpp"
#include "ir/builder.hpp"

namespace fdma {

/// Walks a checked expression and builds programs; one object serves many pairs.
class Instantiator {
 public:
  Instantiator(const CheckedExpr& checked, const BoundTables& tables, const MaskShape& shape);

  /// Errors      those of NameExpander::prepare; unsupported: many times more nodes than the
  ///             expression
  Result<IrProgram> make(const BoundPair& pair);

 private:
  /// The place where a node is evaluated: at(..) moves q and k, loops bind variables.
  struct Place {
    IrId q, k;
    std::int32_t loops;  ///< innermost binding, -1: none
  };
  /// A loop variable and its node.
  struct Binding {
    std::int32_t outer;
    std::string_view symbol;
    IrId value;
    std::int64_t loop_depth;  ///< loops around its body
  };
  struct Work {
    ExprId node;
    std::int32_t place;
  };

  Result<void> walk(ExprId root);
  /// The value of a node at a place, or -1 after the missing operands were put on the stack.
  Result<IrId> try_evaluate(const Work& work);
  IrId need(ExprId node, std::int32_t place);
  std::int32_t place_of(ExprId node, std::int32_t place);
  std::int32_t intern_place(IrId q, IrId k, std::int32_t loops);
  std::int32_t bind_loop(std::int32_t outer, std::string_view symbol, IrId value);
  std::int64_t loop_depth(std::int32_t loops) const {
    return loops < 0 ? 0 : bindings_[static_cast<std::size_t>(loops)].loop_depth;
  }
  const IrId* find(ExprId node, std::int32_t place) const;
  void store(ExprId node, std::int32_t place, IrId value);

  Result<void> prepare_names();
  Result<IrId> variable(ExprId id, const Place& place);
  Result<IrId> quantifier(const Work& work);

  const CheckedExpr& checked_;
  const BoundTables& tables_;
  std::int64_t max_nodes_;  ///< limit of one program, before dead nodes are dropped
  TableStore store_;
  IrBuilder builder_;
  LoopIds loop_ids_;
  NameExpander names_;
  BoundPair pair_{};
  std::vector<TableRef> table_of_;     // per `table` node
  std::vector<NameInstance> name_of_;  // per `named` node
  std::vector<Place> places_;          // 0: the cell itself
  std::map<std::tuple<IrId, IrId, std::int32_t>, std::int32_t> place_ids_;
  std::vector<Binding> bindings_;
  std::map<std::tuple<std::int32_t, std::string_view, IrId>, std::int32_t> binding_ids_;
  std::vector<IrId> at_cell_;                          // values at place 0; -1: none yet
  std::unordered_map<std::uint64_t, IrId> elsewhere_;  // values at other places
  std::vector<Work> stack_;
};

}  // namespace fdma
