// Converts ParametricMask to closed-form masks in 32 bits (ClosedFormMask) and derives work tiles
// from them. A position is taken relative to the last query and the last key (pos_shift), and a
// bound that only says where the keys end is dropped. Elements that differ only in their lengths
// then share one closed form, and it keeps its meaning where a call lowers the lengths.
#include "plan/closed_form.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fdma/formats/convert.hpp"
#include "plan/forms.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

// Number of sets of heads that share a tile, in a group of query heads.
std::int64_t sets_of_group(const PlanHeader& header) {
  return ceil_div(header.shape.group_size(), header.heads_per_tile);
}

std::int32_t clamped(std::int64_t value) {
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(value, -kClosedFormUnbounded, kClosedFormUnbounded));
}

// A batch element's closed-form mask and its documents.
struct ElementClosedForm {
  ClosedFormMask closed_form;
  std::vector<std::int32_t> borders;
  friend bool operator==(const ElementClosedForm&, const ElementClosedForm&) = default;
};

Result<ElementClosedForm> mask_text_of(const ParametricMask& mask) {
  const std::int64_t shift = mask.pos_offset - (mask.kv_len - mask.q_len);
  if (std::max(mask.q_len, mask.kv_len) > kClosedFormMaxLength || shift < -kClosedFormMaxLength ||
      shift > kClosedFormMaxLength) {
    return Error{ErrorCode::unsupported,
                 fmt::format("mask: a closed-form plan has lengths and offsets up to {}, got {} x "
                             "{} and pos_offset {}",
                             kClosedFormMaxLength, mask.q_len, mask.kv_len, mask.pos_offset)};
  }
  ElementClosedForm result;
  ClosedFormMask& closed_form = result.closed_form;
  closed_form.pos_shift = static_cast<std::int32_t>(shift);
  closed_form.left = clamped(mask.left);
  closed_form.right = clamped(mask.right);
  closed_form.prefix = clamped(mask.prefix);
  closed_form.sink = clamped(mask.sink);
  closed_form.kv_begin = clamped(mask.kv_begin);
  if (mask.kv_end < mask.kv_len) closed_form.kv_end = clamped(mask.kv_end);
  for (const std::int64_t border : mask.cu_seqlens) result.borders.push_back(clamped(border));
  closed_form.num_borders = static_cast<std::int32_t>(result.borders.size());
  return result;
}

// The group in closed form, as it is stored or as derived from its cells.
Result<ParametricMask> closed_form_of(const BlockMask& mask, std::int32_t group) {
  if (mask.format() == MaskFormat::parametric) {
    return std::get<std::vector<ParametricMask>>(mask.groups)[static_cast<std::size_t>(group)];
  }
  Result<ParametricMask> found = parametric_from_segment(segment_of_group(mask, group, mask.block));
  if (found) return found;
  return Error{found.error().code, fmt::format("form: {}; plans of form segments take any mask",
                                               found.error().message)};
}

Result<std::int32_t> group_of_element(const BlockMask& mask, std::int64_t b) {
  const std::int32_t group = mask.group(b, 0);
  for (std::int64_t h = 1; h < mask.shape.num_heads; ++h) {
    if (mask.group(b, h) == group) continue;
    return Error{ErrorCode::unsupported,
                 fmt::format("mask: heads 0 and {} differ, but a closed-form plan has one mask "
                             "for all heads; use form = segments",
                             h)};
  }
  return group;
}

// Checks lengths that a call gives: each in [0, the plan's].
template <class PlannedLength>
Result<void> check_given(std::string_view name, const std::int32_t* given, std::int64_t batch,
                         PlannedLength&& planned) {
  if (given == nullptr) return {};
  for (std::int64_t b = 0; b < batch; ++b) {
    if (given[b] >= 0 && given[b] <= planned(b)) continue;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}[{}]: expected 0 to {}, the length in the plan, got {}", name, b,
                             planned(b), given[b])};
  }
  return {};
}

}  // namespace

std::vector<ClosedFormElement> closed_form_elements(const PlanHeader& header,
                                                    const ClosedFormPlan& plan,
                                                    const CallLengths& call) {
  std::vector<ClosedFormElement> elements;
  elements.reserve(static_cast<std::size_t>(header.shape.batch));
  for (std::int64_t b = 0; b < header.shape.batch; ++b) {
    const auto q_len =
        call.q_lens != nullptr ? call.q_lens[b] : static_cast<std::int32_t>(header.shape.q_len(b));
    const auto kv_len = call.kv_lens != nullptr ? call.kv_lens[b]
                                                : static_cast<std::int32_t>(header.shape.kv_len(b));
    ClosedFormMask closed_form =
        plan.closed_forms[plan.closed_forms.size() == 1 ? 0 : static_cast<std::size_t>(b)];
    const std::int32_t* borders = plan.borders.data() + closed_form.first_border;
    if (call.cu_seqlens != nullptr) {
      closed_form.num_borders = call.num_borders;
      borders = call.cu_seqlens + b * call.cu_seqlens_batch_stride;
    }
    const bool is_backward = header.is_backward();
    elements.push_back({is_backward ? kv_len : q_len, is_backward ? q_len : kv_len,
                        ClosedFormRows(closed_form, borders, q_len, kv_len),
                        ClosedFormColumns(closed_form, borders, q_len, kv_len), is_backward});
  }
  return elements;
}

std::array<ClosedFormRange, 2> ClosedFormElement::intervals(std::int32_t row) const {
  if (is_backward) return {ClosedFormRange{0, 0}, by_key.queries(row)};
  const ClosedFormRange bounds = by_query.bounds(by_query.document(row));
  return {by_query.near_keys(row, bounds), by_query.band_keys(row, bounds)};
}

ClosedFormWalk walk_of(const ClosedFormElement& element, BlockShape tile, std::int64_t tile_row) {
  const auto begin = static_cast<std::int32_t>(tile_row * tile.block_q);
  const std::int32_t end = std::min(begin + tile.block_q, element.num_rows);
  if (element.is_backward) return element.by_key.walk(begin, end, tile.block_kv);
  const ClosedFormRows& rows = element.by_query;
  return {rows, begin, end, rows.document(begin), rows.document(end - 1), tile.block_kv};
}

std::vector<WorkTile> closed_form_work_tiles(const PlanHeader& header, const ClosedFormPlan& plan,
                                             const std::vector<ClosedFormElement>& elements) {
  const AttentionShape& shape = header.shape;
  const std::int32_t group_size = shape.group_size();
  struct Row {
    std::int32_t q_tile;
    std::int32_t num_tiles;
  };
  std::vector<WorkTile> work_tiles;
  std::vector<Row> rows;
  for (std::int32_t b = 0; b < shape.batch; ++b) {
    const ClosedFormElement& element = elements[static_cast<std::size_t>(b)];
    rows.clear();
    for (std::int32_t i = 0; i < ceil_div(element.num_rows, header.mask_tile().block_q); ++i) {
      rows.push_back({i, walk_of(element, header.mask_tile(), i).num_tiles()});
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Row& a, const Row& c) { return a.num_tiles > c.num_tiles; });
    for (std::int32_t kv = 0; kv < shape.heads_kv; kv += plan.heads_in_l2) {
      const std::int32_t kv_end = std::min(kv + plan.heads_in_l2, shape.heads_kv);
      for (const Row& row : rows) {
        for (std::int32_t first = kv * group_size; first < kv_end * group_size;
             first += group_size) {
          for (std::int32_t h = first; h < first + group_size; h += header.heads_per_tile) {
            for (std::int32_t i = 0; i < plan.num_splits; ++i) {
              const SplitRun split_run = split_run_of(row.num_tiles, plan.num_splits, i);
              work_tiles.push_back({b, h, row.q_tile, 0, 0, 0, split_run.num_tiles, 0,
                                    split_run.first_tile, plan.num_splits == 1 ? kWholeRow : i});
            }
          }
        }
      }
    }
  }
  return work_tiles;
}

std::int64_t count_work_tiles(const PlanHeader& header, const ClosedFormPlan& plan) {
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < header.shape.batch; ++b) {
    rows += ceil_div(header.row_len(b), header.mask_tile().block_q);
  }
  return rows * header.shape.heads_kv * sets_of_group(header) * plan.num_splits;
}

PlanCounts count_closed_form_tiles(const PlanHeader& header, const ClosedFormPlan& plan) {
  PlanCounts counts;
  for (const ClosedFormElement& element : closed_form_elements(header, plan)) {
    for (std::int64_t i = 0; i < ceil_div(element.num_rows, header.mask_tile().block_q); ++i) {
      const ClosedFormWalk walk = walk_of(element, header.mask_tile(), i);
      std::int64_t full = 0;
      for (const int index : {0, 1}) full += walk.tile_run(index).num_full();
      counts.full_tiles += full;
      counts.formula_tiles += walk.num_tiles() - full;
      counts.empty_items += std::max(plan.num_splits - walk.num_tiles(), 0);
    }
  }
  const std::int64_t sets = header.shape.heads_kv * sets_of_group(header);
  counts.full_tiles *= sets;
  counts.formula_tiles *= sets;
  counts.empty_items *= sets;
  return counts;
}

Result<void> set_closed_forms(const BlockMask& mask, ClosedFormPlan& plan) {
  std::vector<ElementClosedForm> closed_forms;
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    FDMA_TRY(const std::int32_t group, group_of_element(mask, b));
    FDMA_TRY(const ParametricMask form, closed_form_of(mask, group));
    FDMA_TRY(ElementClosedForm closed_form, mask_text_of(form));
    closed_forms.push_back(std::move(closed_form));
  }
  if (std::all_of(closed_forms.begin(), closed_forms.end(),
                  [&](const ElementClosedForm& each) { return each == closed_forms.front(); })) {
    closed_forms.resize(1);
  }
  for (ElementClosedForm& each : closed_forms) {
    each.closed_form.first_border = static_cast<std::int32_t>(plan.borders.size());
    plan.closed_forms.push_back(each.closed_form);
    plan.borders.insert(plan.borders.end(), each.borders.begin(), each.borders.end());
    if (plan.borders.size() > kClosedFormMaxLength) {
      return Error{ErrorCode::unsupported,
                   fmt::format("mask: a closed-form plan has up to {} document borders",
                               kClosedFormMaxLength)};
    }
  }
  return {};
}

Result<void> check_closed_form_call(const AttentionShape& shape, const CallLengths& call) {
  FDMA_TRY_VOID(check_given("q_lens", call.q_lens, shape.batch,
                            [&](std::int64_t b) { return shape.q_len(b); }));
  FDMA_TRY_VOID(check_given("kv_lens", call.kv_lens, shape.batch,
                            [&](std::int64_t b) { return shape.kv_len(b); }));
  if (call.cu_seqlens == nullptr) return {};
  const bool is_shared = call.cu_seqlens_batch_stride == 0;
  for (std::int64_t b = 0; b < (is_shared ? 1 : shape.batch); ++b) {
    const std::int32_t* borders = call.cu_seqlens + b * call.cu_seqlens_batch_stride;
    for (std::int32_t i = 0; i < call.num_borders; ++i) {
      const std::int32_t least = i == 0 ? 0 : borders[i - 1];
      if (borders[i] >= least && borders[i] <= shape.max_kv_len()) continue;
      return Error{ErrorCode::invalid_argument,
                   fmt::format("cu_seqlens[{}{}]: expected {} to {}, got {}",
                               is_shared ? "" : fmt::format("{}, ", b), i, least,
                               shape.max_kv_len(), borders[i])};
    }
  }
  return {};
}

}  // namespace fdma
