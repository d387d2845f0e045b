// The allowed values of the integer arguments of named masks. Undefined arguments stay undefined,
// and make the cells that use them undefined, except where a shape is computed from them.
#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bind/expand_names.hpp"

namespace fdma {
namespace {

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

}  // namespace

Result<void> NameExpander::check_numbers(ExprId id, const BoundPair& pair,
                                         const NameInstance& mask) const {
  for (const Parameter& parameter : checked_.fact(id).form->parameters) {
    const IrId* number = find_named(mask.numbers, parameter.name);
    if (number == nullptr || *number < 0 || !parameter.least) continue;
    const std::string use = fmt::format("{}: {}", quote(*checked_.expr, id), parameter.name);
    if (!builder_.is_constant(*number)) {
      if (parameter.must_be_defined) return invalid(use + " is undefined");
      continue;
    }
    const std::int64_t value = builder_.node(*number).value, least = *parameter.least;
    const bool is_bounded = parameter.is_at_most_kv_len;
    if (value >= least && (!is_bounded || value <= pair.kv_len)) continue;
    const bool may_be_infinite = parameter.kind == ParameterKind::integer_or_inf;
    const std::string expected =
        is_bounded ? fmt::format("{} to kv_len = {}", least, pair.kv_len)
                   : fmt::format("at least {}{}", least, may_be_infinite ? " or inf" : "");
    const std::string where = shape_.num_batches * shape_.num_heads == 1
                                  ? ""
                                  : fmt::format(" for batch element {}, head {}", pair.b, pair.h);
    return invalid(
        fmt::format("{}: expected {}, got {}{}{}", use, expected, value, where, parameter.remedy));
  }
  return {};
}

// Checks that the canvas of block_diffusion, natten2d and natten3d is exactly the keys.
Result<void> NameExpander::check_canvas(ExprId id, const BoundPair& pair,
                                        const NameInstance& mask) const {
  const NameForm& form = *checked_.fact(id).form;
  const std::string use = quote(*checked_.expr, id);
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < mask.numbers.size(); ++i) {
    const auto [name, number] = mask.numbers[i];
    const bool is_needed = form.form != MaskForm::block_diffusion || i == 0;
    if (is_needed && !builder_.is_constant(number))
      return invalid(fmt::format("{}: {} is undefined", use, name));
    sizes.push_back(builder_.is_constant(number) ? builder_.node(number).value : 0);
  }
  std::int64_t canvas = 0;
  if (form.form == MaskForm::block_diffusion) {
    if (__builtin_mul_overflow(sizes[0], std::int64_t{2}, &canvas) || canvas != pair.kv_len)
      return invalid(fmt::format("{}: expected kv_len = 2 * n with n = {}, got kv_len = {}", use,
                                 sizes[0], pair.kv_len));
    return {};
  }
  if (form.form == MaskForm::natten3d) {
    std::int64_t plane = 0;
    const bool fits = sizes[0] >= 0 && sizes[1] >= 0 &&
                      !__builtin_mul_overflow(sizes[1], sizes[2], &plane) &&
                      !__builtin_mul_overflow(sizes[0], plane, &canvas);
    if (!fits || canvas != pair.kv_len)
      return invalid(fmt::format(
          "{}: expected kv_len = depth * height * width = {} * {} * {}, got kv_len = {}", use,
          sizes[0], sizes[1], sizes[2], pair.kv_len));
    const std::string window = fmt::format("{} x {} x {}", sizes[3], sizes[4], sizes[5]);
    if (sizes[3] > sizes[0] || sizes[4] > sizes[1] || sizes[5] > sizes[2])
      return invalid(fmt::format("{}: the {} window is larger than the {} x {} x {} volume", use,
                                 window, sizes[0], sizes[1], sizes[2]));
    if (sizes[3] < 0 || sizes[4] < 0 || sizes[5] < 0)
      return invalid(fmt::format("{}: the {} window has a side below 0", use, window));
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
