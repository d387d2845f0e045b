#include "language/prelude.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "language/expr_interner.hpp"
#include "language/parser.hpp"

namespace fdma {
namespace {

struct Parsed {
  std::once_flag is_parsed;
  MaskExpr expr;
};

}  // namespace

const MaskExpr& prelude_expr(const NameForm& form, bool of_table) {
  static const std::unique_ptr<Parsed[]> all = std::make_unique<Parsed[]>(2 * name_forms().size());
  const auto place = static_cast<std::size_t>(&form - name_forms().data());
  Parsed& parsed = all[2 * place + (of_table ? 1 : 0)];
  std::call_once(parsed.is_parsed, [&] {
    Parser parser(of_table ? form.table_text : form.text, Parser::Names::of_prelude);
    // Equal parts become one node, so that each is evaluated once.
    ExprInterner interner;
    const ExprId root = interner.add(parser.run());
    parsed.expr = MaskExpr(std::make_shared<const std::vector<ExprNode>>(interner.nodes()), root);
  });
  return parsed.expr;
}

}  // namespace fdma
