// Validates a closed-form plan: closed forms within the bounds that arithmetic in 32 bits needs,
// documents in order, and the counts of its own tiles.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "plan/closed_form.hpp"
#include "plan/forms.hpp"

namespace fdma {
namespace {

Error wrong(std::string message) { return Error{ErrorCode::internal, std::move(message)}; }

Result<void> check_field(std::size_t index, std::string_view name, std::int64_t value,
                         std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return wrong(fmt::format("closed_forms[{}].{}: expected {} to {}, got {}", index, name, least,
                           most, value));
}

Result<void> check_closed_form(const ClosedFormPlan& plan, std::size_t index) {
  const ClosedFormMask& f = plan.closed_forms[index];
  const std::int64_t far = kClosedFormUnbounded;
  FDMA_TRY_VOID(
      check_field(index, "pos_shift", f.pos_shift, -kClosedFormMaxLength, kClosedFormMaxLength));
  FDMA_TRY_VOID(check_field(index, "left", f.left, -far, far));
  FDMA_TRY_VOID(check_field(index, "right", f.right, -far, far));
  FDMA_TRY_VOID(check_field(index, "prefix", f.prefix, 0, far));
  FDMA_TRY_VOID(check_field(index, "sink", f.sink, 0, far));
  FDMA_TRY_VOID(check_field(index, "kv_begin", f.kv_begin, 0, far));
  FDMA_TRY_VOID(check_field(index, "kv_end", f.kv_end, 0, far));
  const auto num_borders = static_cast<std::int64_t>(plan.borders.size());
  FDMA_TRY_VOID(check_field(index, "first_border", f.first_border, 0, num_borders));
  FDMA_TRY_VOID(check_field(index, "num_borders", f.num_borders, 0, num_borders - f.first_border));
  if (f.num_borders == 1) {
    return wrong(
        fmt::format("closed_forms[{}].num_borders: expected 0 or at least 2, got 1", index));
  }
  for (std::int32_t i = 0; i < f.num_borders; ++i) {
    const std::size_t at = static_cast<std::size_t>(f.first_border) + static_cast<std::size_t>(i);
    const std::int64_t least = i == 0 ? -far : plan.borders[at - 1];
    if (plan.borders[at] >= least && plan.borders[at] <= far) continue;
    return wrong(
        fmt::format("borders[{}]: expected {} to {}, got {}", at, least, far, plan.borders[at]));
  }
  return {};
}

}  // namespace

Result<void> validate(const PlanHeader& header, const ClosedFormPlan& plan) {
  const AttentionShape& shape = header.shape;
  if (plan.closed_forms.size() != 1 &&
      static_cast<std::int64_t>(plan.closed_forms.size()) != shape.batch) {
    return wrong(fmt::format("closed_forms: expected 1 or {} (batch), got {}", shape.batch,
                             plan.closed_forms.size()));
  }
  if (std::max(shape.max_q_len(), shape.max_kv_len()) > kClosedFormMaxLength) {
    return wrong(fmt::format("shape: expected lengths up to {} in a closed-form plan, got {} x {}",
                             kClosedFormMaxLength, shape.max_q_len(), shape.max_kv_len()));
  }
  for (std::size_t i = 0; i < plan.closed_forms.size(); ++i)
    FDMA_TRY_VOID(check_closed_form(plan, i));
  if (plan.num_splits < 1) {
    return wrong(fmt::format("num_splits: expected at least 1, got {}", plan.num_splits));
  }
  if (header.is_backward() && plan.num_splits > 1) {
    return wrong(fmt::format("num_splits: expected 1 in a backward plan, got {}", plan.num_splits));
  }
  if (plan.heads_in_l2 < 1 || plan.heads_in_l2 > shape.heads_kv) {
    return wrong(
        fmt::format("heads_in_l2: expected 1 to {}, got {}", shape.heads_kv, plan.heads_in_l2));
  }
  if (count_closed_form_tiles(header, plan) != header.counts) {
    return wrong("counts: they differ from those of the masks");
  }
  return {};
}

}  // namespace fdma
