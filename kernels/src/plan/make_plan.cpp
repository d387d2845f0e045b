// make_plan: from a mask to a plan, in four steps, and a fifth where work tiles are few:
//   1. Bring the mask of each group into tiles of the backend (one re-blocking where blocks differ).
//   2. Append its segments to the plan in closed form, with bitmaps in the backend's order. Tiles of
//      few live keys go to kv index lists or are computed in a kv permutation (regions.hpp,
//      group.hpp).
//   3. Make one work tile for each batch element, query head (or set of heads that share a tile)
//   and query
//      tile.
//   4. Order the work tiles: by groups of KV heads whose keys and values fit in L2, and inside a
//   group
//      longest first. Workers that take the next work tile when they are free then end close
//      together (R. L. Graham, Bounds on multiprocessing timing anomalies, 1969: at most 4/3 of the
//      optimum).
//   5. Where work tiles are few, split rows over several work tiles (splits.hpp).
//
// A backward plan is made the same way from the transposed mask, except that the work tiles of a
// group of query heads stay together: they are sorted by what the group computes. For sm90 it may
// be a plan of a kv worklist instead (make_kv_worklist.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <optional>

#include "fdma/base/memory.hpp"
#include "fdma/base/parallel.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/closed_form.hpp"
#include "plan/groups.hpp"
#include "plan/l2_heads.hpp"
#include "plan/make_kv_worklist.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

// Checks against what the backend's kernels compute.
Result<void> check_traits(const BackendTraits& traits, const AttentionShape& shape,
                          const PlanOptions& options) {
  if (traits.has_one_tile && options.tile != BlockShape{0, 0} && options.tile != traits.tile) {
    return Error{ErrorCode::unsupported,
                 fmt::format("tile: {} computes tiles of {} x {}, got {} x {}", traits.name,
                             traits.tile.block_q, traits.tile.block_kv, options.tile.block_q,
                             options.tile.block_kv)};
  }
  if (shape.head_dim % traits.head_dim_multiple != 0 ||
      shape.head_dim_v % traits.head_dim_multiple != 0) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("head_dim: {} computes head_dim and head_dim_v that are multiples of "
                    "{}, got {} and {}",
                    traits.name, traits.head_dim_multiple, shape.head_dim, shape.head_dim_v)};
  }
  if (options.columns == ColumnMode::gather &&
      std::max(shape.head_dim, shape.head_dim_v) > traits.max_gather_head_dim) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("columns: {} gathers with head_dim and head_dim_v up to {}, got {} "
                    "and {}; use scan",
                    traits.name, traits.max_gather_head_dim, shape.head_dim, shape.head_dim_v)};
  }
  const bool is_16_bit = shape.q_dtype == DType::bfloat16 || shape.q_dtype == DType::float16;
  if (traits.needs_16_bits &&
      (!is_16_bit || shape.k_dtype != shape.q_dtype || shape.v_dtype != shape.q_dtype ||
       shape.out_dtype != shape.q_dtype)) {
    return Error{ErrorCode::unsupported,
                 fmt::format("dtype: {} computes q, k, v and out all bfloat16 or all float16, got "
                             "{}, {}, {} and {}",
                             traits.name, to_string(shape.q_dtype), to_string(shape.k_dtype),
                             to_string(shape.v_dtype), to_string(shape.out_dtype))};
  }
  return {};
}

Result<void> check_places(const ScoreSpec& score, const AttentionShape& shape,
                          const BackendTraits& traits) {
  const ScoreSpec parts = common_parts(score, traits.place_score);
  if (parts == ScoreSpec{}) return {};
  if (score.softcap) {
    return Error{ErrorCode::unsupported,
                 fmt::format("score: {} does not compute softcap together with {}", traits.name,
                             to_string(parts))};
  }
  if (std::max(shape.head_dim, shape.head_dim_v) > traits.max_place_head_dim) {
    return Error{ErrorCode::unsupported,
                 fmt::format("score: {} computes {} with head_dim and head_dim_v up to {}, got {} "
                             "and {}",
                             traits.name, to_string(parts), traits.max_place_head_dim,
                             shape.head_dim, shape.head_dim_v)};
  }
  return {};
}

Result<void> check_backward(const BackendTraits& traits, const PlanOptions& options) {
  if (options.columns == ColumnMode::gather) {
    return Error{ErrorCode::unsupported,
                 "columns: backward plans have no kv index lists; use automatic or scan"};
  }
  if (options.columns == ColumnMode::reorder && !traits.has_kv_worklists) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("columns: backward plans for {} have no kv permutations; use automatic or scan",
                    traits.name)};
  }
  return {};
}

Result<void> check_support(const AttentionShape& shape, const ScoreSpec& score,
                           const PlanOptions& options) {
  const BackendTraits& traits = options.backend.traits();
  const bool is_backward = options.direction == Direction::backward;
  FDMA_TRY_VOID(check_computed(score, is_backward ? traits.backward_score : traits.forward_score,
                               fmt::format("{} {}", traits.name, to_string(options.direction))));
  if (is_backward) FDMA_TRY_VOID(check_backward(traits, options));
  if (options.max_kv_index_bytes < 0) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("max_kv_index_bytes: expected at least 0, got {}", options.max_kv_index_bytes)};
  }
  if (options.l2_bytes < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("l2_bytes: expected at least 0, got {}", options.l2_bytes)};
  }
  if (options.num_workers < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("num_workers: expected at least 0, got {}", options.num_workers)};
  }
  FDMA_TRY_VOID(validate(shape));
  FDMA_TRY_VOID(check_places(score, shape, traits));
  return check_traits(traits, shape, options);
}

Result<void> check_mask(const BlockMask& mask, const AttentionShape& shape) {
  const MaskShape& m = mask.shape;
  if (m.num_batches != 1 && m.num_batches != shape.batch) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("mask: expected 1 or {} (batch) batch elements, got {}", shape.batch,
                             m.num_batches)};
  }
  if (m.num_heads != 1 && m.num_heads != shape.heads_q) {
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format("mask: expected 1 or {} (heads_q) heads, got {}", shape.heads_q, m.num_heads)};
  }
  FDMA_TRY_VOID(check_serves(mask, shape.batch, shape.heads_q));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t mask_b = m.num_batches == 1 ? 0 : b;
    if (m.q_len(mask_b) != shape.q_len(b) || m.kv_len(mask_b) != shape.kv_len(b)) {
      return Error{
          ErrorCode::shape_mismatch,
          fmt::format("mask: expected lengths {} x {} of batch element {}, got {} x {}",
                      shape.q_len(b), shape.kv_len(b), b, m.q_len(mask_b), m.kv_len(mask_b))};
    }
  }
  return {};
}

void add_counts(PlanCounts& sum, const PlanCounts& counts) {
  sum.full_tiles += counts.full_tiles;
  sum.bitmap_tiles += counts.bitmap_tiles;
  sum.row_tiles += counts.row_tiles;
  sum.column_tiles += counts.column_tiles;
  sum.column_entries += counts.column_entries;
  sum.gather_chunks += counts.gather_chunks;
  sum.gather_entries += counts.gather_entries;
}

// Columns that a row computes, by which work tiles are compared.
std::int64_t columns_computed(const PlannedRow& row, std::int64_t tile_columns) {
  const PlanCounts& counts = row.counts;
  return (counts.full_tiles + counts.bitmap_tiles + counts.row_tiles) * tile_columns +
         row.num_entries;
}

struct Ranked {
  std::int64_t columns;
  WorkTile work_tile;
};

// Appends the work tiles of KV heads [begin, end), counted over batch elements, longest first. In a
// backward plan it sorts groups of query heads; their work tiles are equal in rank and so stay
// together.
void append_l2_group(const BlockMask& mask, const std::vector<PlannedGroup>& groups,
                     std::int64_t begin, std::int64_t end, PlanHeader& header, SegmentPlan& plan) {
  std::vector<Ranked> ranked;
  std::vector<std::int64_t> columns_of_group;
  const AttentionShape& shape = header.shape;
  for (std::int64_t kv = begin; kv < end; ++kv) {
    const std::int64_t b = kv / shape.heads_kv;
    const std::size_t first = ranked.size();
    columns_of_group.clear();
    for (std::int32_t i = 0; i < shape.group_size(); i += header.heads_per_tile) {
      const std::int64_t h = kv % shape.heads_kv * shape.group_size() + i;
      const std::int32_t group = group_of(mask, b, h);
      const std::vector<PlannedRow>& rows = groups[static_cast<std::size_t>(group)].rows;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        const PlannedRow& planned = rows[row];
        add_counts(header.counts, planned.counts);
        if (planned.num_tiles == 0) ++header.counts.empty_items;
        const std::int64_t columns = columns_computed(planned, header.mask_tile().block_kv);
        if (i == 0) columns_of_group.push_back(0);
        columns_of_group[row] += columns;
        ranked.push_back({columns,
                          {static_cast<std::int32_t>(b), static_cast<std::int32_t>(h),
                           static_cast<std::int32_t>(row), planned.step, planned.first_segment,
                           planned.num_segments, planned.num_tiles, planned.num_entries}});
      }
    }
    if (!header.is_backward()) continue;
    for (std::size_t i = first; i < ranked.size(); ++i) {
      ranked[i].columns = columns_of_group[static_cast<std::size_t>(ranked[i].work_tile.q_tile)];
    }
  }
  std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    if (a.columns != b.columns) return a.columns > b.columns;
    if (a.work_tile.batch != b.work_tile.batch) return a.work_tile.batch < b.work_tile.batch;
    if (a.work_tile.q_tile != b.work_tile.q_tile) return a.work_tile.q_tile < b.work_tile.q_tile;
    return a.work_tile.head < b.work_tile.head;
  });
  for (const Ranked& each : ranked) plan.work_tiles.push_back(each.work_tile);
}

// The header of a plan, without counts.
Result<PlanHeader> header_for(const BlockMask& mask, const AttentionShape& shape,
                              const ScoreSpec& score, const PlanOptions& options) {
  PlanHeader header;
  header.backend = options.backend;
  header.direction = options.direction;
  const BackendTraits& traits = header.backend.traits();
  header.tile = options.tile == BlockShape{0, 0} ? traits.tile : options.tile;
  header.shape = shape;
  header.score = score;
  if (traits.packs_heads && !header.is_backward() && options.pack == PackMode::automatic) {
    header.heads_per_tile = packed_heads(mask, shape, header.tile.block_q);
    header.tile.block_q /= header.heads_per_tile;
  }
  FDMA_TRY_VOID(validate(header.tile));
  if (traits.worker_bytes != nullptr) {
    header.worker_bytes = traits.worker_bytes(shape, header.tile, header.direction);
  }
  return header;
}

// The costs by which the choices of a plan are made.
Result<CostModel> costs_of(const PlanHeader& header, const PlanOptions& options) {
  const BlockShape tile{header.heads_per_tile * header.tile.block_q, header.tile.block_kv};
  const std::shared_ptr<const DeviceProfile> profile =
      options.profile != nullptr ? options.profile : default_profile(header.backend);
  if (profile == nullptr) return cost_model_without_profile(tile, header.direction);
  if (profile == options.profile) FDMA_TRY_VOID(validate(*profile));
  return cost_model(*profile, header.shape, header.direction, tile, header.score);
}

// The number of workers that run the header.
std::int32_t workers_of(const PlanOptions& options, const CostModel& costs) {
  if (options.num_workers > 0) return options.num_workers;
  const std::int32_t split_workers = options.backend.traits().split_workers;
  return options.profile != nullptr || split_workers == 0 ? costs.num_workers : split_workers;
}

bool may_split(const PlanOptions& options) {
  return options.backend.traits().split_workers > 0 && options.direction == Direction::forward &&
         options.split == SplitMode::automatic;
}

// Begins the report of the choices of a plan, and returns for how many workers they are made.
std::int32_t begin_report(const BlockMask& mask, const PlanOptions& options, const CostModel& costs,
                          PlanHeader& header) {
  header.report.profile = costs.profile;
  header.report.is_assumed = costs.kernel.is_assumed;
  header.report.num_workers = workers_of(options, costs);
  if (header.backend.traits().packs_heads && !header.is_backward() &&
      options.pack == PackMode::automatic) {
    header.report.decisions.push_back(
        packing_decision(mask, header, costs, header.report.num_workers));
  }
  return header.report.num_workers;
}

// A plan that stores the closed form of the mask.
Result<AttentionPlan> closed_form_plan_of(const BlockMask& mask, const AttentionShape& shape,
                                          const ScoreSpec& score, const PlanOptions& options) {
  FDMA_TRY(PlanHeader header, header_for(mask, shape, score, options));
  ClosedFormPlan plan;
  FDMA_TRY_VOID(set_closed_forms(mask, plan));
  plan.heads_in_l2 = static_cast<std::int32_t>(
      std::min<std::int64_t>(heads_in_l2(header, options.l2_bytes), shape.heads_kv));
  FDMA_TRY(const CostModel costs, costs_of(header, options));
  const std::int32_t num_workers = begin_report(mask, options, costs, header);
  if (may_split(options)) {
    header.report.decisions.push_back(split_closed_form(header, costs, num_workers, plan));
  }
  header.report.decisions.push_back(
      l2_decision(header, plan.heads_in_l2, shape.heads_kv, options.l2_bytes, costs, num_workers));
  header.counts = count_closed_form_tiles(header, plan);
  return AttentionPlan{std::move(header), std::move(plan)};
}

// A plan with the work tiles of `mask`, whose rows are those of the header.
Result<AttentionPlan> segment_plan_of(const BlockMask& mask, PlanHeader header,
                                      const PlanOptions& options, const CostModel& costs) {
  const AttentionShape& shape = header.shape;
  std::int64_t num_work_tiles = 0, most_rows = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t rows = ceil_div(header.row_len(b), header.mask_tile().block_q);
    most_rows = std::max(most_rows, rows);
    num_work_tiles += rows * shape.heads_kv * ceil_div(shape.group_size(), header.heads_per_tile);
  }
  const std::int64_t num_kv_heads = shape.batch * shape.heads_kv;
  const std::int64_t l2_group = heads_in_l2(header, options.l2_bytes);
  const std::int64_t ranked_at_once =
      num_work_tiles / num_kv_heads * std::min<std::int64_t>(l2_group, num_kv_heads);
  FDMA_TRY_VOID(check_memory(
      num_work_tiles * static_cast<std::int64_t>(sizeof(WorkTile)) +
          ranked_at_once * static_cast<std::int64_t>(sizeof(Ranked)) +
          mask.num_groups() * most_rows * static_cast<std::int64_t>(sizeof(PlannedRow)),
      "make_plan"));
  SegmentPlan plan;
  const std::int32_t num_workers = header.report.num_workers;
  FDMA_TRY(const std::vector<PlannedGroup> groups,
           plan_groups(mask, options, costs, num_workers, header, plan));
  plan.work_tiles.reserve(static_cast<std::size_t>(num_work_tiles));
  std::vector<std::size_t> l2_groups{0};
  for (std::int64_t kv = 0; kv < num_kv_heads; kv += l2_group) {
    append_l2_group(mask, groups, kv, std::min(kv + l2_group, num_kv_heads), header, plan);
    l2_groups.push_back(plan.work_tiles.size());
  }
  if (may_split(options)) {
    header.report.decisions.push_back(split_rows(header, l2_groups, costs, num_workers, plan));
  }
  header.report.decisions.push_back(l2_decision(header, std::min(l2_group, num_kv_heads),
                                                num_kv_heads, options.l2_bytes, costs,
                                                num_workers));
  return AttentionPlan{std::move(header), std::move(plan)};
}

// make_plan on the threads of the calling arena.
Result<AttentionPlan> plan_here(const BlockMask& mask, const AttentionShape& shape,
                                const ScoreSpec& score, const PlanOptions& asked) {
  FDMA_TRY_VOID(check_support(shape, score, asked));
  FDMA_TRY_VOID(check_mask(mask, shape));
  PlanOptions options = asked;
  const ScoreSpec parts = common_parts(score, asked.backend.traits().place_score);
  if (parts != ScoreSpec{}) options.columns = ColumnMode::scan;
  // Rows 8 apart in a tile are then queries 8 apart of one head.
  if (parts.dropout) options.pack = PackMode::never;
  try {
    if (options.form == PlanForm::parametric) {
      return closed_form_plan_of(mask, shape, score, options);
    }
    FDMA_TRY(PlanHeader header, header_for(mask, shape, score, options));
    FDMA_TRY(const CostModel costs, costs_of(header, options));
    begin_report(mask, options, costs, header);
    if (!header.is_backward()) return segment_plan_of(mask, std::move(header), options, costs);
    if (header.backend.traits().has_kv_worklists && options.columns != ColumnMode::scan) {
      FDMA_TRY(std::optional<KvWorklist> lists, make_kv_worklist(mask, options, costs, header));
      if (lists) {
        header.counts = count_kv_worklist(shape, *lists);
        return AttentionPlan{std::move(header), *std::move(lists)};
      }
    }
    SetAlgebraOptions rows_are_keys;
    rows_are_keys.block = header.mask_tile();
    FDMA_TRY(const BlockMask transposed, transpose(mask, rows_are_keys));
    return segment_plan_of(transposed, std::move(header), options, costs);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 "make_plan: not enough memory for the plan; larger tiles or columns = scan need "
                 "less"};
  }
}

}  // namespace

Result<AttentionPlan> make_plan(const BlockMask& mask, const AttentionShape& shape,
                                const ScoreSpec& score, const PlanOptions& options) {
  if (options.num_threads < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("num_threads: expected at least 0, got {}", options.num_threads)};
  }
  if (options.num_threads == 0) return plan_here(mask, shape, score, options);
  std::optional<Result<AttentionPlan>> made;
  in_arena(options.num_threads, [&] { made = plan_here(mask, shape, score, options); });
  return *std::move(made);
}

}  // namespace fdma
