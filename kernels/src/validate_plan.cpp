// What a plan promises to whoever runs it: after this no access of a backend leaves an array.
#include <fmt/format.h>

#include <algorithm>

#include "fdma/formats/convert.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {
namespace {

Error wrong(std::string message) { return Error{ErrorCode::internal, std::move(message)}; }

// Ascending offsets from 0 to `end`.
Result<void> check_offsets(std::string_view name, const std::vector<std::int64_t>& offsets,
                           std::size_t end) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::int64_t low = i == 0 ? 0 : offsets[i - 1];
    if (offsets[i] < low || offsets[i] > static_cast<std::int64_t>(end)) {
      return wrong(fmt::format("{}[{}]: expected {} to {}, got {}", name, i, low, end, offsets[i]));
    }
  }
  return {};
}

Result<void> check_arrays(const AttentionPlan& plan) {
  if (plan.bitmaps.size() % static_cast<std::size_t>(plan.words_per_bitmap()) != 0) {
    return wrong(fmt::format("bitmaps: {} words are no multiple of {}", plan.bitmaps.size(),
                             plan.words_per_bitmap()));
  }
  if (plan.row_offsets.empty() ||
      (plan.row_offsets.size() - 1) % static_cast<std::size_t>(plan.tile.block_q) != 0) {
    return wrong(fmt::format("row_offsets: expected a multiple of {} entries and one more, got {}",
                             plan.tile.block_q, plan.row_offsets.size()));
  }
  FDMA_TRY_VOID(check_offsets("row_offsets", plan.row_offsets, plan.row_intervals.size()));
  FDMA_TRY_VOID(check_offsets("column_offsets", plan.column_offsets, plan.column_intervals.size()));
  FDMA_TRY_VOID(check_offsets("column_tables", plan.column_tables, plan.column_offsets.size()));
  for (std::size_t i = 0; i < plan.gather_lists.size(); ++i) {
    const GatherList& list = plan.gather_lists[i];
    if (list.first_entry < 0 || list.num_entries < 0 || list.num_full < 0 ||
        list.num_full > list.num_entries ||
        list.first_entry + list.num_entries >
            static_cast<std::int64_t>(plan.gather_entries.size())) {
      return wrong(fmt::format("gather_lists[{}]: entries {} + {} ({} full) of {}", i,
                               list.first_entry, list.num_entries, list.num_full,
                               plan.gather_entries.size()));
    }
  }
  return {};
}

Result<void> check_gather(const AttentionPlan& plan, const PlanSegment& segment,
                          std::int64_t num_rows, std::int64_t kv_len) {
  const GatherList& list = plan.gather_lists[static_cast<std::size_t>(segment.payload)];
  if (segment.first_tile != 0 ||
      segment.end_tile != ceil_div(list.num_entries, plan.tile.block_kv)) {
    return wrong(fmt::format("gather list {}: {} entries, but chunks [{}, {})", segment.payload,
                             list.num_entries, segment.first_tile, segment.end_tile));
  }
  for (std::int32_t i = 0; i < list.num_entries; ++i) {
    const GatherEntry& entry = plan.gather_entries[static_cast<std::size_t>(list.first_entry + i)];
    const bool is_full = entry.row_begin == 0 && entry.row_end == num_rows;
    if (entry.key < 0 || entry.key >= kv_len || entry.row_begin >= entry.row_end ||
        entry.row_end > num_rows || is_full != (i < list.num_full)) {
      return wrong(fmt::format(
          "gather list {}, entry {}: key {} rows [{}, {}) of {} keys and {} rows", segment.payload,
          i, entry.key, entry.row_begin, entry.row_end, kv_len, num_rows));
    }
  }
  return {};
}

Result<void> check_item(const AttentionPlan& plan, std::size_t index, std::vector<bool>& checked) {
  const WorkItem& item = plan.items[index];
  const auto fail = [index](std::string message) {
    return wrong(fmt::format("items[{}]: {}", index, message));
  };
  if (item.batch < 0 || item.batch >= plan.shape.batch || item.head < 0 ||
      item.head >= plan.shape.heads_q || item.q_tile < 0 || item.step < 0 ||
      item.q_tile >= ceil_div(plan.shape.q_len(item.batch), plan.tile.block_q)) {
    return fail(fmt::format("batch {} head {} q_tile {} step {} is outside the shape", item.batch,
                            item.head, item.q_tile, item.step));
  }
  if (item.first_segment < 0 || item.num_segments < 0 ||
      std::size_t(item.first_segment) + std::size_t(item.num_segments) > plan.segments.size()) {
    return fail(fmt::format("segments {} + {} of {}", item.first_segment, item.num_segments,
                            plan.segments.size()));
  }
  const std::int64_t kv_len = plan.shape.kv_len(item.batch);
  const std::int64_t num_cols = ceil_div(kv_len, plan.tile.block_kv);
  const std::int64_t num_rows =
      std::min<std::int64_t>(plan.tile.block_q, plan.shape.q_len(item.batch) -
                                                    std::int64_t{item.q_tile} * plan.tile.block_q);
  const auto num_panels =
      (static_cast<std::int64_t>(plan.row_offsets.size()) - 1) / plan.tile.block_q;
  std::int64_t num_tiles = 0, previous_end = 0;
  for (std::int32_t s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
    const PlanSegment& segment = plan.segments[static_cast<std::size_t>(s)];
    const std::int64_t first = segment.first_tile + std::int64_t{item.step} * segment.step_first;
    const std::int64_t end = segment.end_tile + std::int64_t{item.step} * segment.step_end;
    const std::int64_t num_payloads[] = {1, plan.num_bitmaps(), num_panels,
                                         static_cast<std::int64_t>(plan.column_tables.size()),
                                         static_cast<std::int64_t>(plan.gather_lists.size())};
    const auto kind = static_cast<std::size_t>(segment.kind);
    if (kind >= std::size(num_payloads) || segment.payload < 0 ||
        segment.payload >= num_payloads[kind]) {
      return fail(fmt::format("segment {}: kind {} payload {}", s, kind, segment.payload));
    }
    num_tiles += end - first;
    if (segment.kind == PlanSegmentKind::gather) {
      if (!checked[static_cast<std::size_t>(segment.payload)]) {
        FDMA_TRY_VOID(check_gather(plan, segment, num_rows, kv_len));
        checked[static_cast<std::size_t>(segment.payload)] = true;
      }
      continue;
    }
    if (first < previous_end || end <= first || end > num_cols) {
      return fail(fmt::format("segment {}: tiles [{}, {}) after {} of {}", s, first, end,
                              previous_end, num_cols));
    }
    previous_end = end;
    if (segment.kind == PlanSegmentKind::columns &&
        plan.column_tables[static_cast<std::size_t>(segment.payload)] + kv_len + 1 >
            static_cast<std::int64_t>(plan.column_offsets.size())) {
      return fail(fmt::format("segment {}: column table {} has fewer than {} keys", s,
                              segment.payload, kv_len));
    }
  }
  if (num_tiles != item.num_tiles) {
    return fail(fmt::format("num_tiles: expected {}, got {}", num_tiles, item.num_tiles));
  }
  return {};
}

}  // namespace

Result<void> validate(const AttentionPlan& plan) {
  FDMA_TRY_VOID(validate(plan.shape));
  FDMA_TRY_VOID(validate(plan.tile));
  FDMA_TRY_VOID(check_arrays(plan));
  // Items are a permutation of all (batch, head, query tile) triples.
  std::vector<std::int64_t> first_of_batch(static_cast<std::size_t>(plan.shape.batch) + 1, 0);
  for (std::int64_t b = 0; b < plan.shape.batch; ++b) {
    const auto i = static_cast<std::size_t>(b);
    first_of_batch[i + 1] =
        first_of_batch[i] + plan.shape.heads_q * ceil_div(plan.shape.q_len(b), plan.tile.block_q);
  }
  if (static_cast<std::int64_t>(plan.items.size()) != first_of_batch.back()) {
    return wrong(
        fmt::format("items: expected {}, got {}", first_of_batch.back(), plan.items.size()));
  }
  std::vector<bool> seen(plan.items.size(), false);
  std::vector<bool> checked(plan.gather_lists.size(), false);
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    FDMA_TRY_VOID(check_item(plan, i, checked));
    const WorkItem& item = plan.items[i];
    const std::int64_t tiles = ceil_div(plan.shape.q_len(item.batch), plan.tile.block_q);
    const auto place = static_cast<std::size_t>(
        first_of_batch[static_cast<std::size_t>(item.batch)] + item.head * tiles + item.q_tile);
    if (seen[place]) {
      return wrong(fmt::format("items[{}]: batch {} head {} q_tile {} comes twice", i, item.batch,
                               item.head, item.q_tile));
    }
    seen[place] = true;
  }
  return {};
}

}  // namespace fdma
