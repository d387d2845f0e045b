// The allowed values of the integer arguments of named masks. Undefined arguments stay undefined,
// and make the cells that use them undefined, except where a shape is computed from them.
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "bind/expand_names.hpp"

namespace fdma {
namespace {

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

// The range of one integer argument of a form, and the hint for values outside it.
struct NumberRule {
  MaskForm form;
  std::size_t argument;
  std::int64_t least;
  bool is_bounded;  // at most kv_len
  std::string_view remedy;
};

constexpr std::string_view kOpenSide =
    "; write inf for a side without a bound, k and pos for a band beside the diagonal";
constexpr std::string_view kNoWindow = "; write inf for every key and false for none";
constexpr std::string_view kNoSink = "; write inf for every key";
constexpr std::string_view kCutPrefix = "; clamp(p, 0, kv_len) cuts it off";

constexpr std::array kRules = {
    NumberRule{MaskForm::window, 0, 1, false, kNoWindow},
    NumberRule{MaskForm::window_pair, 0, 0, false, kOpenSide},
    NumberRule{MaskForm::window_pair, 1, 0, false, kOpenSide},
    NumberRule{MaskForm::dilated, 0, 1, false, kNoWindow},
    NumberRule{MaskForm::dilated, 1, 1, false, {}},
    NumberRule{MaskForm::sink, 0, 0, false, kNoSink},
    NumberRule{MaskForm::global, 0, 0, false, {}},
    NumberRule{MaskForm::prefix, 0, 0, true, kCutPrefix},
    NumberRule{MaskForm::tiles, 0, 1, false, {}},
    NumberRule{MaskForm::tiles, 1, 1, false, {}},
};

}  // namespace

Result<void> NameExpander::check_numbers(ExprId id, const BoundPair& pair,
                                         const NameInstance& mask) const {
  for (const NumberRule& rule : kRules) {
    if (rule.form != mask.form || rule.argument >= mask.numbers.size()) continue;
    const IrId number = mask.numbers[rule.argument];
    if (number < 0) continue;  // inf
    // The first parameter of tiles(@t, m, n) is its table.
    const std::size_t parameter = rule.argument + (mask.form == MaskForm::tiles ? 1 : 0);
    const NameForm& form = *checked_.fact(id).form;
    const std::string use =
        fmt::format("{}: {}", quote(*checked_.expr, id), form.parameters[parameter].name);
    if (!builder_.is_constant(number)) {
      if (mask.form == MaskForm::tiles) return invalid(use + " is undefined");
      continue;
    }
    const std::int64_t value = builder_.node(number).value;
    if (value >= rule.least && (!rule.is_bounded || value <= pair.kv_len)) continue;
    const bool may_be_infinite = form.parameters[parameter].kind == ParameterKind::integer_or_inf;
    const std::string expected =
        rule.is_bounded
            ? fmt::format("{} to kv_len = {}", rule.least, pair.kv_len)
            : fmt::format("at least {}{}", rule.least, may_be_infinite ? " or inf" : "");
    const std::string where = shape_.num_batches * shape_.num_heads == 1
                                  ? ""
                                  : fmt::format(" for batch element {}, head {}", pair.b, pair.h);
    return invalid(
        fmt::format("{}: expected {}, got {}{}{}", use, expected, value, where, rule.remedy));
  }
  return {};
}

// Checks that the canvas of block_diffusion and natten2d is exactly the keys.
Result<void> NameExpander::check_canvas(ExprId id, const BoundPair& pair,
                                        const NameInstance& mask) const {
  const NameForm& form = *checked_.fact(id).form;
  const std::string use = quote(*checked_.expr, id);
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < mask.numbers.size(); ++i) {
    const bool is_needed = mask.form == MaskForm::natten2d || i == 0;
    if (is_needed && !builder_.is_constant(mask.numbers[i]))
      return invalid(fmt::format("{}: {} is undefined", use, form.parameters[i].name));
    sizes.push_back(builder_.is_constant(mask.numbers[i]) ? builder_.node(mask.numbers[i]).value
                                                          : 0);
  }
  std::int64_t canvas = 0;
  if (mask.form == MaskForm::block_diffusion) {
    if (__builtin_mul_overflow(sizes[0], std::int64_t{2}, &canvas) || canvas != pair.kv_len)
      return invalid(fmt::format("{}: expected kv_len = 2 * n with n = {}, got kv_len = {}", use,
                                 sizes[0], pair.kv_len));
    return {};
  }
  if (sizes[0] < 0 || __builtin_mul_overflow(sizes[0], sizes[1], &canvas) || canvas != pair.kv_len)
    return invalid(fmt::format("{}: expected kv_len = height * width = {} * {}, got kv_len = {}",
                               use, sizes[0], sizes[1], pair.kv_len));
  if (sizes[2] > sizes[0] || sizes[3] > sizes[1])
    return invalid(fmt::format("{}: the {} x {} window is larger than the {} x {} canvas", use,
                               sizes[2], sizes[3], sizes[0], sizes[1]));
  if (sizes[2] < 0 || sizes[3] < 0)
    return invalid(
        fmt::format("{}: the {} x {} window has a side below 0", use, sizes[2], sizes[3]));
  return {};
}

}  // namespace fdma
