#include "bind/written_with.hpp"

#include <cstddef>

#include "bind/check.hpp"
#include "fdma/masks/mask_names.hpp"

namespace fdma {

WrittenWith written_with(const MaskExpr& expr, const Tables& tables) {
  WrittenWith found;
  const std::vector<bool> is_reachable = reachable_nodes(expr);
  for (std::size_t id = 0; id < is_reachable.size(); ++id) {
    if (!is_reachable[id]) continue;
    const ExprNode& node = expr.nodes()[id];
    if (node.op == ExprOp::variable) {
      found.batch |= node.symbol == "b";
      found.head |= node.symbol == "h";
    }
    const NameForm* form = node.op == ExprOp::named ? form_of(node) : nullptr;
    if (form == nullptr || form->form == MaskForm::bits) continue;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const ExprNode& argument = expr.node(node.children[i]);
      if (argument.op != ExprOp::table || !argument.children.empty()) continue;
      const auto table = tables.find(argument.symbol);
      if (table == tables.end()) continue;
      found.batch |= table->second.rank > rank_of(form->parameters[i].table);
      found.head |=
          form->parameters[i].table == TableShape::flags_of_tiles && table->second.rank == 4;
    }
  }
  return found;
}

}  // namespace fdma
