#include "plan/closed_form_walks.hpp"

namespace fdma::testing {

std::vector<FormulaCase> plain_formulas() {
  std::vector<FormulaCase> plain;
  const auto add = [&](auto&& set) { set(plain.emplace_back()); };
  add([](FormulaCase&) {});
  add([](FormulaCase& c) { c.formula.right = 0; });
  add([](FormulaCase& c) { c.formula.right = 5; });
  add([](FormulaCase& c) { c.formula.left = 11, c.formula.right = 0; });
  add([](FormulaCase& c) { c.formula.left = 40, c.formula.right = 0; });
  add([](FormulaCase& c) { c.formula.left = c.formula.right = 9; });
  add([](FormulaCase& c) { c.formula.right = 0, c.formula.prefix = 21; });
  add([](FormulaCase& c) { c.formula.right = 0, c.formula.kv_begin = 13; });
  add([](FormulaCase& c) { c.formula.right = 0, c.formula.kv_end = 37; });
  add([](FormulaCase& c) { c.formula.left = -3, c.formula.right = 1; });  // nothing at all
  return plain;
}

FormulaCase RandomFormula::make(std::int32_t most) {
  FormulaCase each;
  const std::int32_t q_len = pick(1, most), kv_len = pick(1, most);
  each.q_len = one_in(2) ? q_len : pick(1, q_len);
  each.kv_len = one_in(2) ? kv_len : pick(0, kv_len);
  MaskFormula& formula = each.formula;
  if (one_in(3)) formula.pos_shift = pick(-most, most);
  if (one_in(2)) formula.left = pick(-most / 4, most);
  if (one_in(2)) formula.right = one_in(2) ? 0 : pick(-most / 4, most);
  if (one_in(3)) formula.prefix = pick(0, kv_len);
  if (one_in(3)) formula.sink = one_in(2) ? std::min(4, kv_len) : pick(0, kv_len);
  if (one_in(4)) formula.kv_begin = pick(0, kv_len);
  if (one_in(4)) formula.kv_end = pick(formula.kv_begin, kv_len);
  if (one_in(2)) {
    const std::int32_t num_borders = pick(2, 9);
    const std::int32_t low = one_in(3) ? -most / 2 : 0;
    for (std::int32_t i = 0; i < num_borders; ++i) {
      each.borders.push_back(i > 0 && one_in(3) ? each.borders.back()  // an empty document
                                                : pick(low, kv_len + (one_in(4) ? most : 0)));
    }
    std::sort(each.borders.begin(), each.borders.end());
    formula.num_borders = num_borders;
  }
  return each;
}

FormulaCase RandomFormula::make_documents() {
  FormulaCase each;
  each.q_len = each.kv_len = pick(1, 90);
  each.borders = {0};
  while (each.borders.back() < each.kv_len) {
    each.borders.push_back(std::min(each.kv_len, each.borders.back() + pick(0, 30)));
  }
  each.formula.num_borders = static_cast<std::int32_t>(each.borders.size());
  return each;
}

}  // namespace fdma::testing
