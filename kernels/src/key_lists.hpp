// Lists of keys by lifetime for the backward pass, made on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/interval.hpp"
#include "fdma/kernels/key_lists.hpp"

namespace fdma {

/// Tiles of queries of a segment: what the items of a KV head read of them stays in the cache.
inline std::int32_t segment_tiles(std::int32_t group_size) {
  return group_size < 64 ? 64 / group_size : 1;
}

/// The lists of one KV head. Items have batch and kv_head 0 and count key tiles and rows of sums
/// from 0.
struct HeadLists {
  std::vector<ListedKey> keys;
  std::vector<KeyItem> items;
  std::vector<std::int32_t> sum_keys;  ///< the key of each row of sums
  friend bool operator==(const HeadLists&, const HeadLists&) = default;
};

/// The lists of keys of which key k is seen by the queries of intervals[offsets[k] .. [k + 1]),
/// ascending and below q_len. Sorted by ((q_end - 1) >> lifetime_shift, key, q_begin), then blocks
/// of order_block_tiles by (q_begin, key); the tiles of queries that keys of a tile live in, from
/// the first to the last, are cut at multiples of `segment` of them where they are more. A tile of
/// keys that is cut has 128 rows of sums; but where keys have several intervals rows are given to
/// keys.
///
/// Cost        O(intervals log intervals)
HeadLists list_keys(std::span<const std::int64_t> offsets, std::span<const Interval> intervals,
                    std::int64_t q_len, std::int32_t segment);

/// Appends the keys of lists that any number of KV heads use; their first tile, as append_items
/// wants it.
std::int32_t append_keys(const HeadLists& lists, KeyLists& to);

/// Appends the items of KV head `kv_head` of `batch` and what their sums are of.
void append_items(const HeadLists& lists, std::int32_t first_tile, std::int32_t batch,
                  std::int32_t kv_head, std::int32_t heads_kv, KeyLists& to);

}  // namespace fdma
