#include "plan/closed_form_walks.hpp"

namespace fdma::testing {

std::vector<ClosedFormCase> plain_closed_forms() {
  std::vector<ClosedFormCase> plain;
  const auto add = [&](auto&& set) { set(plain.emplace_back()); };
  add([](ClosedFormCase&) {});
  add([](ClosedFormCase& c) { c.closed_form.right = 0; });
  add([](ClosedFormCase& c) { c.closed_form.right = 5; });
  add([](ClosedFormCase& c) { c.closed_form.left = 11, c.closed_form.right = 0; });
  add([](ClosedFormCase& c) { c.closed_form.left = 40, c.closed_form.right = 0; });
  add([](ClosedFormCase& c) { c.closed_form.left = c.closed_form.right = 9; });
  add([](ClosedFormCase& c) { c.closed_form.right = 0, c.closed_form.prefix = 21; });
  add([](ClosedFormCase& c) { c.closed_form.right = 0, c.closed_form.kv_begin = 13; });
  add([](ClosedFormCase& c) { c.closed_form.right = 0, c.closed_form.kv_end = 37; });
  add([](ClosedFormCase& c) {
    c.closed_form.left = -3, c.closed_form.right = 1;
  });  // nothing at all
  return plain;
}

ClosedFormCase RandomClosedForm::make(std::int32_t most) {
  ClosedFormCase each;
  const std::int32_t q_len = pick(1, most), kv_len = pick(1, most);
  each.q_len = one_in(2) ? q_len : pick(1, q_len);
  each.kv_len = one_in(2) ? kv_len : pick(0, kv_len);
  ClosedFormMask& closed_form = each.closed_form;
  if (one_in(3)) closed_form.pos_shift = pick(-most, most);
  if (one_in(2)) closed_form.left = pick(-most / 4, most);
  if (one_in(2)) closed_form.right = one_in(2) ? 0 : pick(-most / 4, most);
  if (one_in(3)) closed_form.prefix = pick(0, kv_len);
  if (one_in(3)) closed_form.sink = one_in(2) ? std::min(4, kv_len) : pick(0, kv_len);
  if (one_in(4)) closed_form.kv_begin = pick(0, kv_len);
  if (one_in(4)) closed_form.kv_end = pick(closed_form.kv_begin, kv_len);
  if (one_in(2)) {
    const std::int32_t num_borders = pick(2, 9);
    const std::int32_t low = one_in(3) ? -most / 2 : 0;
    for (std::int32_t i = 0; i < num_borders; ++i) {
      each.borders.push_back(i > 0 && one_in(3) ? each.borders.back()  // an empty document
                                                : pick(low, kv_len + (one_in(4) ? most : 0)));
    }
    std::sort(each.borders.begin(), each.borders.end());
    closed_form.num_borders = num_borders;
  }
  return each;
}

ClosedFormCase RandomClosedForm::make_documents() {
  ClosedFormCase each;
  each.q_len = each.kv_len = pick(1, 90);
  each.borders = {0};
  while (each.borders.back() < each.kv_len) {
    each.borders.push_back(std::min(each.kv_len, each.borders.back() + pick(0, 30)));
  }
  each.closed_form.num_borders = static_cast<std::int32_t>(each.borders.size());
  return each;
}

}  // namespace fdma::testing
