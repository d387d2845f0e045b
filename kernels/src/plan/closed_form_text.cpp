// The text form of a closed-form plan.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "plan/closed_form.hpp"
#include "plan/forms.hpp"

namespace fdma {
namespace {

std::string distance_text(std::int32_t distance) {
  return distance >= kClosedFormUnbounded ? "inf" : fmt::format("{}", distance);
}

}  // namespace

std::string closed_form_text(const ClosedFormPlan& plan, std::size_t index) {
  const ClosedFormMask& f = plan.closed_forms[index];
  std::string text =
      fmt::format("pos = q + kv_len - q_len{} left {} right {} prefix {} sink {} keys [{}, {})",
                  f.pos_shift == 0 ? "" : fmt::format(" {:+}", f.pos_shift), distance_text(f.left),
                  distance_text(f.right), f.prefix, f.sink, f.kv_begin,
                  f.kv_end == kClosedFormUnbounded ? "kv_len" : fmt::format("{}", f.kv_end));
  if (f.num_borders == 0) return text;
  constexpr std::int32_t kMostShown = 16;
  const auto begin = plan.borders.begin() + f.first_border;
  return text + fmt::format(" documents {} at {}{}", f.num_borders - 1,
                            fmt::join(begin, begin + std::min(f.num_borders, kMostShown), ","),
                            f.num_borders > kMostShown ? ",.." : "");
}

std::string to_text(const PlanHeader& header, const ClosedFormPlan& plan,
                    std::int64_t max_closed_forms) {
  const AttentionShape& shape = header.shape;
  std::string text = fmt::format(
      "plan {} tile {}x{} score {} form parametric\n"
      "shape batch {} heads {}/{} q_len {} kv_len {} head_dim {}/{} dtypes {} {} {} -> {}\n"
      "work tiles {} ({} empty), {} bytes\n"
      "tiles full {} closed form {}\n"
      "rows {} heads a tile, {} splits, {} KV heads in L2\n",
      to_string(header.backend), header.tile.block_q, header.tile.block_kv, to_string(header.score),
      shape.batch, shape.heads_q, shape.heads_kv, fmt::join(shape.q_lens, ","),
      fmt::join(shape.kv_lens, ","), shape.head_dim, shape.head_dim_v, to_string(shape.q_dtype),
      to_string(shape.k_dtype), to_string(shape.v_dtype), to_string(shape.out_dtype),
      count_work_tiles(header, plan), header.counts.empty_items, size_bytes(plan),
      header.counts.full_tiles, header.counts.formula_tiles, header.heads_per_tile, plan.num_splits,
      plan.heads_in_l2);
  text += to_text(header.report);
  const auto count = static_cast<std::int64_t>(plan.closed_forms.size());
  const std::int64_t shown = std::min(max_closed_forms, count);
  for (std::int64_t i = 0; i < shown; ++i) {
    text +=
        fmt::format("closed form {}: {}\n", i, closed_form_text(plan, static_cast<std::size_t>(i)));
  }
  if (shown < count) text += fmt::format(".. {} more closed forms\n", count - shown);
  return text;
}

}  // namespace fdma
