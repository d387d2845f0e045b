// Plans are made whole and then changed. Splitting cuts the tiles of every work tile into equal
// parts; permuting puts a segment that names a permutation before the others. What a worker computes
// stays the same, so the difference of two times is the added cost.
//
// Splitting costs a worker something for each part and the call something for each query row. With
// 128 queries in every tile one would be proportional to the other, so that some tiles have 16.
#include "calibrate/added_costs.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "calibrate/fit.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "plan/full_mask.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

constexpr BlockShape kTile{128, 128};
constexpr std::int64_t kSplitKeys = 4096;
constexpr std::int64_t kMovedKeys = 2048;
constexpr int kParts[] = {2, 4, 8};
constexpr std::int64_t kSplitQueries[] = {16, 128};
/// KV heads of calls whose keys and values are to stay in L2.
constexpr int kFewHeads = 4;
constexpr std::int64_t kShareTokens = 4096;

/// Every pair of `q_len` queries and `kv_len` keys, with a query head for each worker.
Result<AttentionPlan> whole_plan(DType dtype, std::int32_t head_dim, int num_workers,
                                 std::int32_t heads_kv, std::int64_t q_len, std::int64_t kv_len) {
  AttentionShape shape;
  shape.heads_q = num_workers;
  shape.heads_kv = heads_kv;
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  shape.head_dim = shape.head_dim_v = head_dim;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
  PlanOptions options;
  options.backend = Backend::sm90;
  options.num_workers = num_workers;
  options.split = SplitMode::never;
  options.pack = PackMode::never;
  options.columns = ColumnMode::scan;
  return make_plan(full_mask(shape, kTile), shape, {}, options);
}

/// `whole` with every row split into `parts` parts.
AddedPlan split_plan(const AddedPlan& whole, std::size_t index, int parts, int num_workers) {
  AddedPlan split{whole.plan, index, AddedWork{}};
  auto& segments = std::get<SegmentPlan>(split.plan.form);
  const std::vector<WorkTile> rows = std::move(segments.work_tiles);
  segments.work_tiles.clear();
  for (const WorkTile& row : rows) {
    const auto first_partial = static_cast<std::int32_t>(segments.work_tiles.size());
    segments.split_rows.push_back({row.batch, row.head, row.q_tile, first_partial, parts});
    for (int i = 0; i < parts; ++i) {
      const SplitRun run = split_run_of(row.num_tiles, parts, i);
      WorkTile part = row;
      part.first_tile = run.first_tile;
      part.num_tiles = run.num_tiles;
      part.partial = first_partial + i;
      segments.work_tiles.push_back(part);
    }
  }
  const auto num_rows = static_cast<double>(rows.size());
  split.added->work_tiles = num_rows * (parts - 1) / num_workers;
  split.added->split_work_tiles = num_rows * parts / num_workers;
  split.added->combined_rows = num_rows * parts * static_cast<double>(split.plan.shape.max_q_len());
  return split;
}

/// `whole` with the keys of every KV head in one random order.
AddedPlan moved_plan(const AddedPlan& whole, std::size_t index) {
  AddedPlan moved{whole.plan, index, AddedWork{}};
  auto& segments = std::get<SegmentPlan>(moved.plan.form);
  const AttentionShape& shape = moved.plan.shape;
  std::mt19937_64 random(20261128);
  segments.permuted_keys.resize(static_cast<std::size_t>(shape.max_kv_len()));
  std::iota(segments.permuted_keys.begin(), segments.permuted_keys.end(), 0);
  for (std::size_t i = segments.permuted_keys.size() - 1; i > 0; --i) {
    std::swap(segments.permuted_keys[i], segments.permuted_keys[random() % (i + 1)]);
  }
  segments.kv_permutations = {{0, shape.max_kv_len()}};
  segments.permutation_of.assign(static_cast<std::size_t>(shape.heads_kv), 0);
  const std::vector<PlanSegment> tiles = std::move(segments.segments);
  segments.segments.clear();
  std::vector<std::int32_t> place_of(tiles.size(), -1);  // of a work tile that begins with it
  for (WorkTile& each : segments.work_tiles) {
    std::int32_t& place = place_of[static_cast<std::size_t>(each.first_segment)];
    if (place < 0) {
      place = static_cast<std::int32_t>(segments.segments.size());
      segments.segments.push_back({0, 0, 0, 0, PlanSegmentKind::permutation, 0});
      const auto first = tiles.begin() + each.first_segment;
      segments.segments.insert(segments.segments.end(), first, first + each.num_segments);
    }
    each.first_segment = place;
    ++each.num_segments;
  }
  moved.plan.counts.moved_keys = shape.heads_kv * shape.max_kv_len();
  moved.added->moved_keys = static_cast<double>(moved.plan.counts.moved_keys);
  return moved;
}

}  // namespace

Result<std::vector<AddedPlan>> added_plans(DType dtype, std::int32_t head_dim, int num_workers) {
  std::vector<AddedPlan> plans;
  const std::int32_t few_heads = std::gcd(num_workers, kFewHeads);
  for (const std::int64_t q_len : kSplitQueries) {
    const std::size_t whole = plans.size();
    FDMA_TRY(AttentionPlan plan,
             whole_plan(dtype, head_dim, num_workers, few_heads, q_len, kSplitKeys));
    plans.push_back({std::move(plan), whole, {}});
    for (const int parts : kParts) {
      plans.push_back(split_plan(plans[whole], whole, parts, num_workers));
    }
  }
  for (const std::int32_t heads_kv : {few_heads, num_workers}) {
    const std::size_t whole = plans.size();
    FDMA_TRY(AttentionPlan plan,
             whole_plan(dtype, head_dim, num_workers, heads_kv, kTile.block_q, kMovedKeys));
    plans.push_back({std::move(plan), whole, {}});
    plans.push_back(moved_plan(plans[whole], whole));
  }
  return plans;
}

AddedCosts fit_added(const std::vector<AddedWork>& calls, double item_us) {
  std::vector<Measurement> splits, moves;
  for (const AddedWork& call : calls) {
    const double us = call.us - call.work_tiles * item_us;
    if (us <= 0) continue;
    if (call.split_work_tiles > 0) {
      splits.push_back({{1, call.combined_rows, call.split_work_tiles}, us});
    } else {
      moves.push_back({{1, call.moved_keys}, us});
    }
  }
  AddedCosts costs;
  if (!splits.empty()) {
    const std::vector<double> fitted = fit_not_negative(splits);
    costs.combine_us = fitted[0];
    costs.combine_row_us = fitted[1];
    costs.split_us = fitted[2];
  }
  if (!moves.empty()) {
    const std::vector<double> fitted = fit_not_negative(moves);
    costs.move_us = fitted[0];
    costs.moved_key_us = fitted[1];
  }
  return costs;
}

std::vector<BlockMask> share_masks() {
  AttentionShape shape;
  shape.q_lens = shape.kv_lens = {kShareTokens};
  DenseBits cells;
  cells.q_len = cells.kv_len = kShareTokens;
  cells.words.assign(static_cast<std::size_t>(cells.q_len * cells.words_per_row()), 0);
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    set_bits(cells.words.data() + q * cells.words_per_row(), 0, q + 1);
  }
  MaskShape mask_shape;
  mask_shape.q_lens = shape.q_lens;
  mask_shape.kv_lens = shape.kv_lens;
  std::vector<SegmentMask> groups;
  groups.push_back(segment_from_dense(cells, kTile));
  std::vector<BlockMask> masks{full_mask(shape, kTile)};
  masks.push_back(make_block_mask(std::move(mask_shape), kTile, std::move(groups)));
  return masks;
}

ListCosts fit_lists(const std::vector<ListsWork>& calls) {
  std::vector<Measurement> measurements;
  for (const ListsWork& call : calls) {
    measurements.push_back({{1, call.lists, call.entries}, call.us});
  }
  if (measurements.empty()) return {};
  const std::vector<double> fitted = fit_not_negative(measurements);
  return {fitted[0], fitted[1], fitted[2]};
}

// A tile's first query keeps at most w keys, and another key appears with each later query.
ListsWork causal_lists(std::int64_t tokens, std::int64_t w, std::int64_t heads) {
  ListsWork work;
  for (std::int64_t first = 0; first < tokens; first += kTile.block_q) {
    const std::int64_t later = std::min<std::int64_t>(kTile.block_q, tokens - first) - 1;
    work.lists += static_cast<double>(heads);
    work.entries += static_cast<double>(heads * (std::min(w, first + 1) + later));
  }
  return work;
}

}  // namespace fdma
