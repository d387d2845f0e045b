// Keys that live together lie together (key_order.cpp says why blocks are sorted twice): of the
// tiles of queries that an item visits more than half are full. What is left is masked by the
// interval of each key, the cheapest of masks where keys are rows.
//
// Items are short in queries: those of a segment run side by side, and its rows of Q, dO and the
// sums of dQ are read from the cache. A tile of keys that live in several segments adds up its
// gradients in float32, row by row; other keys have one item, which writes them.
#include "key_lists.hpp"

#include <algorithm>
#include <tuple>

namespace fdma {
namespace {

// A stretch of tiles of queries.
struct Tiles {
  std::int32_t begin;
  std::int32_t end;
};

// Tiles in which some of the keys live, from the first to the last.
Tiles hull_of(std::span<const ListedKey> keys) {
  std::int32_t begin = keys.front().q_begin, end = keys.front().q_end;
  for (const ListedKey& each : keys) {
    if (each.key < 0) continue;
    begin = std::min(begin, each.q_begin);
    end = std::max(end, each.q_end);
  }
  return {begin / kListTile, static_cast<std::int32_t>(ceil_div(end, kListTile))};
}

// Tiles of queries that all see all keys; may be reversed.
Tiles full_of(std::span<const ListedKey> keys, std::int64_t q_len) {
  Tiles full{0, static_cast<std::int32_t>(ceil_div(q_len, kListTile))};
  for (const ListedKey& each : keys) {
    if (each.key < 0) return {0, 0};
    full.begin = std::max(full.begin, static_cast<std::int32_t>(ceil_div(each.q_begin, kListTile)));
    if (each.q_end < q_len) full.end = std::min(full.end, each.q_end / kListTile);
  }
  return full;
}

std::vector<ListedKey> keys_by_lifetime(std::span<const std::int64_t> offsets,
                                        std::span<const Interval> intervals, std::int64_t q_len) {
  std::vector<ListedKey> keys;
  keys.reserve(intervals.size());
  for (std::size_t k = 0; k + 1 < offsets.size(); ++k) {
    for (std::int64_t i = offsets[k]; i < offsets[k + 1]; ++i) {
      const Interval queries = intervals[static_cast<std::size_t>(i)];
      if (queries.begin >= queries.end) continue;
      keys.push_back({static_cast<std::int32_t>(k), queries.begin, queries.end, kNoSums});
    }
  }
  const std::int32_t shift = lifetime_shift(q_len);
  const auto last_step = [shift](const ListedKey& each) { return (each.q_end - 1) >> shift; };
  std::sort(keys.begin(), keys.end(), [&](const ListedKey& a, const ListedKey& b) {
    return std::tuple(last_step(a), a.key, a.q_begin) < std::tuple(last_step(b), b.key, b.q_begin);
  });
  const std::int64_t num_tiles = ceil_div(static_cast<std::int64_t>(keys.size()), kListTile);
  const auto block =
      static_cast<std::size_t>(std::int64_t{order_block_tiles(num_tiles)} * kListTile);
  for (std::size_t i = 0; i < keys.size(); i += block) {
    const std::size_t end = std::min(i + block, keys.size());
    std::sort(keys.begin() + static_cast<std::ptrdiff_t>(i),
              keys.begin() + static_cast<std::ptrdiff_t>(end),
              [](const ListedKey& a, const ListedKey& b) {
                return std::tie(a.q_begin, a.key) < std::tie(b.q_begin, b.key);
              });
  }
  keys.resize(static_cast<std::size_t>(num_tiles * kListTile), {-1, 0, 0, kNoSums});
  return keys;
}

// Rows of sums for tiles that are cut: as many as a tile has keys.
void add_sums_of_tiles(const std::vector<bool>& is_cut, HeadLists& lists) {
  std::vector<std::int32_t> first_sums(is_cut.size(), kNoSums);
  for (std::size_t tile = 0; tile < is_cut.size(); ++tile) {
    if (is_cut[tile]) first_sums[tile] = static_cast<std::int32_t>(lists.sum_keys.size());
    for (std::int32_t i = 0; i < kListTile; ++i) {
      ListedKey& each =
          lists.keys[tile * static_cast<std::size_t>(kListTile) + static_cast<std::size_t>(i)];
      if (each.key >= 0) each.sum_row = i;
      if (is_cut[tile]) lists.sum_keys.push_back(each.key);
    }
  }
  for (KeyItem& item : lists.items) {
    item.first_sum = first_sums[static_cast<std::size_t>(item.key_tile)];
  }
}

// Rows of sums for keys of several items, in the order of the list.
void add_sums_of_keys(const std::vector<bool>& is_cut, const std::vector<std::int32_t>& num_listed,
                      HeadLists& lists) {
  std::vector<std::int32_t> rows(num_listed.size(), kNoSums);
  for (std::size_t i = 0; i < lists.keys.size(); ++i) {
    ListedKey& each = lists.keys[i];
    if (each.key < 0) continue;
    const auto key = static_cast<std::size_t>(each.key);
    if (num_listed[key] == 1 && !is_cut[i / static_cast<std::size_t>(kListTile)]) continue;
    if (rows[key] == kNoSums) {
      rows[key] = static_cast<std::int32_t>(lists.sum_keys.size());
      lists.sum_keys.push_back(each.key);
    }
    each.sum_row = rows[key];
  }
}

void add_sums(std::size_t num_keys, const std::vector<bool>& is_cut, HeadLists& lists) {
  std::vector<std::int32_t> num_listed(num_keys, 0);
  bool has_several = false;
  for (const ListedKey& each : lists.keys) {
    if (each.key >= 0) has_several |= ++num_listed[static_cast<std::size_t>(each.key)] > 1;
  }
  if (has_several) {
    add_sums_of_keys(is_cut, num_listed, lists);
  } else {
    add_sums_of_tiles(is_cut, lists);
  }
}

}  // namespace

HeadLists list_keys(std::span<const std::int64_t> offsets, std::span<const Interval> intervals,
                    std::int64_t q_len, std::int32_t segment) {
  HeadLists lists;
  lists.keys = keys_by_lifetime(offsets, intervals, q_len);
  const auto num_tiles = static_cast<std::int32_t>(lists.keys.size() / kListTile);
  std::vector<bool> is_cut(static_cast<std::size_t>(num_tiles));
  for (std::int32_t tile = 0; tile < num_tiles; ++tile) {
    const auto keys = std::span(lists.keys)
                          .subspan(static_cast<std::size_t>(tile) * kListTile,
                                   static_cast<std::size_t>(kListTile));
    const Tiles hull = hull_of(keys), full = full_of(keys, q_len);
    for (std::int32_t begin = hull.begin; begin < hull.end;) {
      const std::int32_t end = needs_cuts(hull.begin, hull.end, segment)
                                   ? std::min((begin / segment + 1) * segment, hull.end)
                                   : hull.end;
      const std::int32_t full_begin = std::max(full.begin, begin);
      const std::int32_t full_end = std::min(full.end, end);
      const bool has_full = full_begin < full_end;
      lists.items.push_back(
          {0, 0, tile, 0, begin, end, has_full ? full_begin : begin, has_full ? full_end : begin});
      if (end < hull.end) is_cut[static_cast<std::size_t>(tile)] = true;
      begin = end;
    }
  }
  const auto order_of = [segment](const KeyItem& item) {
    return std::tuple(item.begin_tile / segment, item.begin_tile - item.end_tile, item.key_tile);
  };
  std::sort(lists.items.begin(), lists.items.end(),
            [&](const KeyItem& a, const KeyItem& b) { return order_of(a) < order_of(b); });
  add_sums(offsets.empty() ? 0 : offsets.size() - 1, is_cut, lists);
  return lists;
}

std::int32_t append_keys(const HeadLists& lists, KeyLists& to) {
  const auto first_tile = static_cast<std::int32_t>(to.keys.size() / kListTile);
  to.keys.insert(to.keys.end(), lists.keys.begin(), lists.keys.end());
  return first_tile;
}

void append_items(const HeadLists& lists, std::int32_t first_tile, std::int32_t batch,
                  std::int32_t kv_head, std::int32_t heads_kv, KeyLists& to) {
  const auto first_sum = static_cast<std::int32_t>(to.sum_keys.size());
  for (KeyItem item : lists.items) {
    item.batch = batch;
    item.kv_head = kv_head;
    item.key_tile += first_tile;
    if (item.first_sum != kNoSums) item.first_sum += first_sum;
    to.items.push_back(item);
  }
  for (const std::int32_t key : lists.sum_keys) {
    to.sum_keys.push_back({batch * heads_kv + kv_head, key});
  }
}

}  // namespace fdma
