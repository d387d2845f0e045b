// Assigns accumulator rows to pairs of entries of a kv worklist, for deterministic calls.
#include "plan/entry_accumulators.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace fdma {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// The old row of each new accumulator row, for the lists that begin at one tile, counted from
// first_accum_row.
using OldRows = std::vector<std::int32_t>;

// Assigns rows to pairs of entries of tiles [first, end).
OldRows give_rows(std::int32_t first, std::int32_t end, std::vector<WorklistEntry>& keys) {
  std::vector<std::pair<std::int32_t, std::int32_t>> entries;  // old row, entry
  for (std::int32_t i = first * kWorklistTile; i < end * kWorklistTile; ++i) {
    const WorklistEntry& each = keys[at(i)];
    if (each.key >= 0 && each.accum_row != kNoAccum) entries.emplace_back(each.accum_row, i);
  }
  std::sort(entries.begin(), entries.end());
  OldRows rows;
  bool is_second = false;  // second entry of a pair
  for (const auto& [old_row, entry] : entries) {
    is_second = !is_second && !rows.empty() && rows.back() == old_row;
    if (!is_second) rows.push_back(old_row);
    keys[at(entry)].accum_row = static_cast<std::int32_t>(rows.size()) - 1;
  }
  return rows;
}

}  // namespace

KvWorklist with_accum_of_pairs(const KvWorklist& lists) {
  KvWorklist result = lists;
  result.accum_keys.clear();
  std::map<std::int32_t, OldRows> rows_of_tile;  // by the first tile of a list
  for (std::size_t i = 0; i < lists.work_tiles.size();) {
    // Work tiles of a KV head are together.
    const KvWorkTile& head = lists.work_tiles[i];
    std::size_t end = i;
    std::int32_t first_tile = head.key_tile, end_tile = first_tile;
    std::int32_t old_sum = kNoAccum;
    for (; end < lists.work_tiles.size(); ++end) {
      const KvWorkTile& work_tile = lists.work_tiles[end];
      if (work_tile.batch != head.batch || work_tile.kv_head != head.kv_head) break;
      first_tile = std::min(first_tile, work_tile.key_tile);
      end_tile = std::max(end_tile, work_tile.key_tile + 1);
      if (work_tile.first_accum_row != kNoAccum) old_sum = work_tile.first_accum_row;
    }
    const auto first_accum_row = static_cast<std::int32_t>(result.accum_keys.size());
    if (old_sum != kNoAccum) {
      auto known = rows_of_tile.find(first_tile);
      if (known == rows_of_tile.end()) {
        known =
            rows_of_tile.emplace(first_tile, give_rows(first_tile, end_tile, result.keys)).first;
      }
      for (const std::int32_t row : known->second) {
        result.accum_keys.push_back(lists.accum_keys[at(std::int64_t{old_sum} + row)]);
      }
    }
    for (; i < end; ++i) {
      if (result.work_tiles[i].first_accum_row != kNoAccum)
        result.work_tiles[i].first_accum_row = first_accum_row;
    }
  }
  return result;
}

}  // namespace fdma
