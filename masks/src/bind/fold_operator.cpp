// Folds operators of the language on known values, by the operators of programs that they are written
// with.
#include <vector>

#include "bind/program_form.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "ir/range.hpp"

namespace fdma {

Folded fold_expr(ExprOp op, bool on_conditions, std::span<const Folded> operands) {
  return write_operator<Folded>(
      op, on_conditions, operands,
      [](IrOp own, auto... known) {
        const Folded listed[] = {known...};
        return fold(own, listed);
      },
      [](std::int64_t value) {
        return Folded{value, true};
      });
}

std::optional<std::int64_t> fold_operator(ExprOp op, std::span<const std::int64_t> operands) {
  std::vector<Folded> known;
  for (const std::int64_t value : operands) known.push_back({value, true});
  const Folded result = fold_expr(op, false, known);
  return result.is_defined ? std::optional(result.value) : std::nullopt;
}

}  // namespace fdma
