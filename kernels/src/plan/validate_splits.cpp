// Validates that work tiles cover the tile rows of a plan exactly once.
#include "plan/validate_splits.hpp"

#include <fmt/format.h>

namespace fdma {
namespace {

constexpr std::int32_t kWhole = -1;  ///< no work tile yet
constexpr std::int32_t kSeen = -2;

Error wrong(std::string message) { return Error{ErrorCode::internal, std::move(message)}; }

}  // namespace

RowCover::RowCover(const PlanHeader& header, const SegmentPlan& plan)
    : header_(header),
      plan_(plan),
      sets_of_group_(
          static_cast<std::int32_t>(ceil_div(header.shape.group_size(), header.heads_per_tile))),
      first_of_batch_(static_cast<std::size_t>(header.shape.batch) + 1, 0) {
  for (std::int64_t b = 0; b < header.shape.batch; ++b) {
    const auto i = static_cast<std::size_t>(b);
    first_of_batch_[i + 1] =
        first_of_batch_[i] + std::int64_t{header.shape.heads_kv} * sets_of_group_ *
                                 ceil_div(header.row_len(b), header.mask_tile().block_q);
  }
}

std::size_t RowCover::place_of(std::int32_t batch, std::int32_t head, std::int32_t q_tile) const {
  const std::int32_t group = header_.shape.group_size();
  const std::int64_t set =
      std::int64_t{head / group} * sets_of_group_ + head % group / header_.heads_per_tile;
  const std::int64_t tiles = ceil_div(header_.row_len(batch), header_.mask_tile().block_q);
  return static_cast<std::size_t>(first_of_batch_[static_cast<std::size_t>(batch)] + set * tiles +
                                  q_tile);
}

bool RowCover::is_first_head(std::int32_t head) const {
  return head % header_.shape.group_size() % header_.heads_per_tile == 0;
}

Result<void> RowCover::check_split_rows() {
  // Checked before arrays of that size are made, because the plan may claim any size.
  std::int64_t num_partials = 0;
  for (std::size_t i = 0; i < plan_.split_rows.size(); ++i) {
    const SplitRow& row = plan_.split_rows[i];
    const auto fail = [i](const std::string& message) {
      return wrong(fmt::format("split_rows[{}]: {}", i, message));
    };
    if (row.batch < 0 || row.batch >= header_.shape.batch || row.head < 0 ||
        row.head >= header_.shape.heads_q || !is_first_head(row.head) || row.q_tile < 0 ||
        row.q_tile >= ceil_div(header_.shape.q_len(row.batch), header_.tile.block_q)) {
      return fail(fmt::format("batch {} head {} q_tile {} is no tile row", row.batch, row.head,
                              row.q_tile));
    }
    if (row.first_partial != num_partials || row.num_partials < 2) {
      return fail(fmt::format("expected two or more partials from {} on, got {} from {} on",
                              num_partials, row.num_partials, row.first_partial));
    }
    num_partials += row.num_partials;
  }
  const std::int64_t num_work_tiles =
      first_of_batch_.back() + num_partials - static_cast<std::int64_t>(plan_.split_rows.size());
  if (static_cast<std::int64_t>(plan_.work_tiles.size()) != num_work_tiles) {
    return wrong(
        fmt::format("work_tiles: expected {}, got {}", num_work_tiles, plan_.work_tiles.size()));
  }
  split_row_of_.assign(static_cast<std::size_t>(first_of_batch_.back()), kWhole);
  parts_.assign(static_cast<std::size_t>(num_partials), {});
  for (std::size_t i = 0; i < plan_.split_rows.size(); ++i) {
    const SplitRow& row = plan_.split_rows[i];
    std::int32_t& at = split_row_of_[place_of(row.batch, row.head, row.q_tile)];
    if (at != kWhole) return wrong(fmt::format("split_rows[{}]: comes twice", i));
    at = static_cast<std::int32_t>(i);
  }
  return {};
}

Result<void> RowCover::add(std::size_t index, std::int64_t row_tiles) {
  const WorkTile& work_tile = plan_.work_tiles[index];
  const auto fail = [&](const std::string& message) {
    return wrong(fmt::format("work_tiles[{}]: batch {} head {} q_tile {} {}", index,
                             work_tile.batch, work_tile.head, work_tile.q_tile, message));
  };
  if (!is_first_head(work_tile.head)) {
    return fail(fmt::format("is not the first head of {}", header_.heads_per_tile));
  }
  std::int32_t& at = split_row_of_[place_of(work_tile.batch, work_tile.head, work_tile.q_tile)];
  if (at < 0) {
    if (at == kSeen) return fail("comes twice");
    if (work_tile.partial != kWholeRow || work_tile.first_tile != 0 ||
        work_tile.num_tiles != row_tiles) {
      return fail(fmt::format(
          "is not split: expected {} tiles from 0 on, partial {}, got {} from {} on, partial {}",
          row_tiles, kWholeRow, work_tile.num_tiles, work_tile.first_tile, work_tile.partial));
    }
    at = kSeen;
    return {};
  }
  const SplitRow& row = plan_.split_rows[static_cast<std::size_t>(at)];
  if (work_tile.partial < row.first_partial ||
      work_tile.partial - row.first_partial >= row.num_partials) {
    return fail(fmt::format("is split: expected a partial in [{}, {}), got {}", row.first_partial,
                            row.first_partial + row.num_partials, work_tile.partial));
  }
  SplitRange& part = parts_[static_cast<std::size_t>(work_tile.partial)];
  if (part.first_tile >= 0) return fail(fmt::format("partial {} comes twice", work_tile.partial));
  if (work_tile.first_tile < 0 || work_tile.num_tiles < 1 ||
      std::int64_t{work_tile.first_tile} + work_tile.num_tiles > row_tiles) {
    return fail(fmt::format("has {} tiles, expected one or more of them, got {} from {} on",
                            row_tiles, work_tile.num_tiles, work_tile.first_tile));
  }
  part = {work_tile.first_tile,    work_tile.num_tiles,    row_tiles,
          work_tile.first_segment, work_tile.num_segments, work_tile.step,
          work_tile.num_entries};
  return {};
}

Result<void> RowCover::finish() const {
  // There are as many work tiles as rows and partials, and none occurs twice, so none is missing.
  for (std::size_t i = 0; i < plan_.split_rows.size(); ++i) {
    const SplitRow& row = plan_.split_rows[i];
    const SplitRange& first = parts_[static_cast<std::size_t>(row.first_partial)];
    std::int64_t next_tile = 0;
    for (std::int32_t p = 0; p < row.num_partials; ++p) {
      const SplitRange& part =
          parts_[static_cast<std::size_t>(row.first_partial) + static_cast<std::size_t>(p)];
      if (part.first_segment != first.first_segment || part.num_segments != first.num_segments ||
          part.step != first.step || part.num_entries != first.num_entries) {
        return wrong(fmt::format("split_rows[{}]: partial {} has other segments or entries", i,
                                 row.first_partial + p));
      }
      if (part.first_tile != next_tile) {
        return wrong(fmt::format("split_rows[{}]: expected partial {} from tile {} on, got {}", i,
                                 row.first_partial + p, next_tile, part.first_tile));
      }
      next_tile += part.num_tiles;
    }
    if (next_tile != first.row_tiles) {
      return wrong(fmt::format("split_rows[{}]: expected {} tiles in all, got {}", i,
                               first.row_tiles, next_tile));
    }
  }
  return {};
}

}  // namespace fdma
