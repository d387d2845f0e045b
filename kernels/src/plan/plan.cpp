// What is asked of a plan whatever its form. Each question goes to the form (forms.hpp).
#include "fdma/kernels/plan.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "fdma/base/overloads.hpp"
#include "plan/forms.hpp"

namespace fdma {
namespace {

template <class... Arrays>
std::int64_t bytes_of(const Arrays&... arrays) {
  return (static_cast<std::int64_t>(arrays.size() * sizeof(arrays.front())) + ...);
}

Result<void> check_heads_per_tile(const PlanHeader& header) {
  const BackendTraits& traits = header.backend.traits();
  const std::int32_t heads = header.heads_per_tile;
  const bool is_packing = traits.packs_heads && !header.is_backward();
  const bool has_its_tile =
      !traits.has_one_tile || (heads * header.tile.block_q == traits.tile.block_q &&
                               header.tile.block_kv == traits.tile.block_kv);
  const bool is_right = heads > 0 && std::has_single_bit(static_cast<unsigned>(heads)) &&
                        (heads == 1 || is_packing) && has_its_tile;
  if (is_right) return {};
  return Error{ErrorCode::internal,
               fmt::format("heads_per_tile: {} with tiles of {} x {} of {}", heads,
                           header.tile.block_q, header.tile.block_kv, to_string(header.backend))};
}

}  // namespace

std::int64_t size_bytes(const SegmentPlan& plan) {
  return bytes_of(plan.work_tiles, plan.split_rows, plan.segments, plan.patterns,
                  plan.pattern_entries, plan.bitmaps, plan.row_offsets, plan.row_intervals,
                  plan.column_tables, plan.column_offsets, plan.column_intervals,
                  plan.kv_index_lists, plan.kv_index_entries, plan.kv_permutations,
                  plan.permuted_keys, plan.permutation_of);
}

std::int64_t size_bytes(const ClosedFormPlan& plan) {
  return bytes_of(plan.closed_forms, plan.borders) +
         static_cast<std::int64_t>(sizeof(plan.num_splits) + sizeof(plan.heads_in_l2));
}

std::int64_t size_bytes(const KvWorklist& lists) {
  return bytes_of(lists.keys, lists.work_tiles, lists.accum_keys);
}

std::int64_t count_work_tiles(const PlanHeader& /*header*/, const SegmentPlan& plan) {
  return static_cast<std::int64_t>(plan.work_tiles.size());
}

std::int64_t count_work_tiles(const PlanHeader& /*header*/, const KvWorklist& lists) {
  return static_cast<std::int64_t>(lists.work_tiles.size());
}

std::int64_t AttentionPlan::num_work_tiles() const {
  return std::visit([this](const auto& of_form) { return count_work_tiles(*this, of_form); }, form);
}

std::int64_t AttentionPlan::size_bytes() const {
  return std::visit([](const auto& of_form) { return fdma::size_bytes(of_form); }, form);
}

PlanForm AttentionPlan::planned_form() const {
  return std::visit(Overloads{[](const SegmentPlan&) { return PlanForm::segments; },
                              [](const ClosedFormPlan&) { return PlanForm::parametric; },
                              [](const KvWorklist&) { return PlanForm::segments; }},
                    form);
}

Result<void> validate(const AttentionPlan& plan) {
  FDMA_TRY_VOID(validate(plan.shape));
  FDMA_TRY_VOID(validate(plan.tile));
  FDMA_TRY_VOID(check_heads_per_tile(plan));
  return std::visit([&](const auto& of_form) { return validate(plan, of_form); }, plan.form);
}

}  // namespace fdma
