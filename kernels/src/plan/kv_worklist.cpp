// Makes kv worklists. Keys that are live together are listed together (kv_permutation.cpp says why
// blocks are sorted twice), so that of the tiles of queries that a work tile visits more than half
// are full. The other tiles are masked by the interval of each key, which is the cheapest mask
// where keys are rows.
//
// A tile is visited from its first begin to its last end. Where keys that begin together end apart,
// 128 keys are apart in one or the other. Intervals are therefore cut at the ends of segments, and
// each segment is sorted anew. Many of a segment's keys are live through all of it. Others only
// begin or only end in it and need one order, not two. Keys that do both in a segment are short. A
// key that is listed several times accumulates its gradients in float32, row by row. Other keys
// have one work tile, which writes them. Work tiles of a segment run at the same time, and its rows
// of Q, dO and the accumulators of dQ are read from the cache.
//
// Example     learned top-k of 131,072 keys, w = 2,048, cells visited per cell of the mask, uncut
//             and cut every 4,096 queries: random scores 1.28 and 1.07, clustered 1.23 and 1.07,
//             drifting (newer keys better by 1 in 2,048) 1.53 and 1.22
// Not worth   rising scores, a sliding window: keys end in the order in which they begin, 1.06 and
//             1.09; nothing is cut (cuts_key_segment)
#include "plan/kv_worklist.hpp"

#include <algorithm>
#include <tuple>

#include "plan/kv_cuts.hpp"

namespace fdma {
namespace {

// A range of tiles of queries.
struct Tiles {
  std::int32_t begin;
  std::int32_t end;
};

// The tiles from the first to the last in which some of the keys are live.
Tiles hull_of(std::span<const WorklistEntry> keys) {
  std::int32_t begin = keys.front().q_begin, end = keys.front().q_end;
  for (const WorklistEntry& each : keys) {
    if (each.key < 0) continue;
    begin = std::min(begin, each.q_begin);
    end = std::max(end, each.q_end);
  }
  return {begin / kWorklistTile, static_cast<std::int32_t>(ceil_div(end, kWorklistTile))};
}

// The tiles of queries that all see all keys; the range may be reversed.
Tiles full_of(std::span<const WorklistEntry> keys, std::int64_t q_len) {
  Tiles full{0, static_cast<std::int32_t>(ceil_div(q_len, kWorklistTile))};
  for (const WorklistEntry& each : keys) {
    if (each.key < 0) return {0, 0};
    full.begin =
        std::max(full.begin, static_cast<std::int32_t>(ceil_div(each.q_begin, kWorklistTile)));
    if (each.q_end < q_len) full.end = std::min(full.end, each.q_end / kWorklistTile);
  }
  return full;
}

// Worklist keys without accumulator rows, with the intervals cut.
std::vector<WorklistEntry> cut_intervals(std::span<const std::int64_t> offsets,
                                         std::span<const Interval> intervals, std::int32_t segment,
                                         std::int64_t w) {
  const std::int64_t longest = longest_short_life(w, segment);
  const std::int64_t segment_queries = std::int64_t{segment} * kWorklistTile;
  const std::size_t num_keys = offsets.empty() ? 0 : offsets.size() - 1;
  std::vector<WorklistEntry> keys;
  keys.reserve(intervals.size());
  for (std::size_t first = 0; first < num_keys; first += kCutKeys) {
    const std::size_t last = std::min(first + kCutKeys, num_keys);
    const auto each = [&](const auto& visit) {
      for (std::size_t k = first; k < last; ++k) {
        for (std::int64_t i = offsets[k]; i < offsets[k + 1]; ++i) {
          const Interval queries = intervals[static_cast<std::size_t>(i)];
          if (queries.begin < queries.end) visit(static_cast<std::int32_t>(k), queries);
        }
      }
    };
    std::int64_t num_intervals = 0, num_long = 0;
    each([&](std::int32_t, Interval queries) {
      ++num_intervals;
      if (queries.end - queries.begin > longest) ++num_long;
    });
    const bool cuts = cuts_key_segment(num_intervals, num_long);
    each([&](std::int32_t key, Interval queries) {
      while (cuts && queries.begin / segment_queries != (queries.end - 1) / segment_queries) {
        const std::int64_t end = (queries.begin / segment_queries + 1) * segment_queries;
        keys.push_back({key, queries.begin, static_cast<std::int32_t>(end), kNoAccum});
        queries.begin = static_cast<std::int32_t>(end);
      }
      keys.push_back({key, queries.begin, queries.end, kNoAccum});
    });
  }
  return keys;
}

void sort_by_live_range(std::int64_t q_len, std::vector<WorklistEntry>& keys) {
  const std::int32_t shift = live_range_shift(q_len);
  const auto last_step = [shift](const WorklistEntry& each) { return (each.q_end - 1) >> shift; };
  std::sort(keys.begin(), keys.end(), [&](const WorklistEntry& a, const WorklistEntry& b) {
    return std::tuple(last_step(a), a.key, a.q_begin) < std::tuple(last_step(b), b.key, b.q_begin);
  });
  const std::int64_t num_tiles = ceil_div(static_cast<std::int64_t>(keys.size()), kWorklistTile);
  const auto block =
      static_cast<std::size_t>(std::int64_t{order_block_tiles(num_tiles)} * kWorklistTile);
  for (std::size_t i = 0; i < keys.size(); i += block) {
    const std::size_t end = std::min(i + block, keys.size());
    std::stable_sort(
        keys.begin() + static_cast<std::ptrdiff_t>(i),
        keys.begin() + static_cast<std::ptrdiff_t>(end),
        [](const WorklistEntry& a, const WorklistEntry& b) { return a.q_begin < b.q_begin; });
  }
  keys.resize(static_cast<std::size_t>(num_tiles * kWorklistTile), {-1, 0, 0, kNoAccum});
}

// Adds accumulator rows for keys that are listed several times.
void add_sums(std::size_t num_keys, HeadWorklist& lists) {
  std::vector<std::int32_t> num_worklist_entries(num_keys, 0), rows(num_keys, kNoAccum);
  for (const WorklistEntry& each : lists.keys) {
    if (each.key >= 0) ++num_worklist_entries[static_cast<std::size_t>(each.key)];
  }
  for (std::size_t key = 0; key < num_keys; ++key) {
    if (num_worklist_entries[key] < 2) continue;
    rows[key] = static_cast<std::int32_t>(lists.accum_keys.size());
    lists.accum_keys.push_back(static_cast<std::int32_t>(key));
  }
  for (WorklistEntry& each : lists.keys) {
    if (each.key >= 0) each.accum_row = rows[static_cast<std::size_t>(each.key)];
  }
}

}  // namespace

std::int32_t segment_tiles(std::int32_t group_size, std::int64_t q_len) {
  constexpr std::int32_t kMost = 32, kOfGroup = 64;
  const std::int32_t step = (1 << live_range_shift(q_len)) / kWorklistTile;
  return std::max({std::min(kMost, kOfGroup / group_size), step, 1});
}

std::int32_t segment_tiles(const AttentionShape& shape, std::int64_t w) {
  // With 128 columns a tile is 128 KB of Q, dO and accumulators for each query head. w / 128 work
  // tiles are live at the same time. If they are few for some hundred blocks, two segments are read
  // at a time.
  constexpr std::int32_t kMostOfTwo = 64, kMostOfOne = 128;
  constexpr std::int64_t kManyKeys = 32768;
  const std::int32_t most = w < kManyKeys ? kMostOfTwo : kMostOfOne;
  const std::int32_t width = std::max(shape.head_dim, shape.head_dim_v) > 128 ? 2 : 1;
  std::int32_t segment = segment_tiles(shape.group_size(), shape.max_q_len());
  while (2 * segment * shape.group_size() * width <= most &&
         std::int64_t{segment} * kWorklistTile * 3 / 2 <= w) {
    segment *= 2;
  }
  return segment;
}

std::int64_t most_seen(std::span<const Interval> intervals, std::int64_t q_len) {
  std::vector<std::int64_t> changes(static_cast<std::size_t>(q_len) + 1, 0);
  for (const Interval& each : intervals) {
    if (each.begin >= each.end) continue;
    ++changes[static_cast<std::size_t>(each.begin)];
    --changes[static_cast<std::size_t>(each.end)];
  }
  std::int64_t seen = 0, most = 0;
  for (const std::int64_t change : changes) most = std::max(most, seen += change);
  return most;
}

HeadWorklist make_head_worklist(std::span<const std::int64_t> offsets,
                                std::span<const Interval> intervals, std::int64_t q_len,
                                std::int32_t segment, std::int64_t w) {
  HeadWorklist lists;
  lists.keys = cut_intervals(offsets, intervals, segment, w);
  sort_by_live_range(q_len, lists.keys);
  const auto num_tiles = static_cast<std::int32_t>(lists.keys.size() / kWorklistTile);
  for (std::int32_t tile = 0; tile < num_tiles; ++tile) {
    const auto keys = std::span(lists.keys)
                          .subspan(static_cast<std::size_t>(tile) * kWorklistTile,
                                   static_cast<std::size_t>(kWorklistTile));
    const Tiles hull = hull_of(keys), full = full_of(keys, q_len);
    const bool has_full = full.begin < full.end;
    lists.work_tiles.push_back({0, 0, tile, 0, hull.begin, hull.end,
                                has_full ? full.begin : hull.begin,
                                has_full ? full.end : hull.begin});
  }
  const auto order_of = [segment](const KvWorkTile& work_tile) {
    return std::tuple(work_tile.begin_tile / segment,
                      -std::min(work_tile.end_tile - work_tile.begin_tile, segment),
                      work_tile.key_tile);
  };
  std::sort(lists.work_tiles.begin(), lists.work_tiles.end(),
            [&](const KvWorkTile& a, const KvWorkTile& b) { return order_of(a) < order_of(b); });
  add_sums(offsets.empty() ? 0 : offsets.size() - 1, lists);
  return lists;
}

std::int32_t append_keys(const HeadWorklist& lists, KvWorklist& to) {
  const auto first_tile = static_cast<std::int32_t>(to.keys.size() / kWorklistTile);
  to.keys.insert(to.keys.end(), lists.keys.begin(), lists.keys.end());
  return first_tile;
}

void append_work_tiles(const HeadWorklist& lists, std::int32_t first_tile, std::int32_t batch,
                       std::int32_t kv_head, std::int32_t heads_kv, KvWorklist& to) {
  const auto first_accum_row = static_cast<std::int32_t>(to.accum_keys.size());
  for (KvWorkTile work_tile : lists.work_tiles) {
    work_tile.batch = batch;
    work_tile.kv_head = kv_head;
    work_tile.key_tile += first_tile;
    if (work_tile.first_accum_row != kNoAccum) work_tile.first_accum_row += first_accum_row;
    to.work_tiles.push_back(work_tile);
  }
  for (const std::int32_t key : lists.accum_keys) {
    to.accum_keys.push_back({batch * heads_kv + kv_head, key});
  }
}

}  // namespace fdma
