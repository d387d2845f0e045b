// Lists of keys by lifetime for the backward pass, made on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/kv_worklist.hpp"

namespace fdma {

/// Tiles of queries of a segment: what the items of a KV head read of them stays in the cache, and
/// few keys begin and end in one; no less than a step of lifetime_shift.
std::int32_t segment_tiles(std::int32_t group_size, std::int64_t q_len);

/// The same where it is known that a query sees `w` keys at most. Keys live for about w queries
/// then, and each end of a segment cuts those that live there: segments are as long, as far as the
/// cache goes.
std::int32_t segment_tiles(const AttentionShape& shape, std::int64_t w);

/// The lists of one KV head. Items have batch and kv_head 0 and count key tiles and rows of sums
/// from 0 on.
struct HeadLists {
  std::vector<ListedKey> keys;
  std::vector<KeyItem> items;
  std::vector<std::int32_t> sum_keys;  ///< the key of each row of sums
  friend bool operator==(const HeadLists&, const HeadLists&) = default;
};

/// The lists of keys of which key k is seen by the queries of intervals[offsets[k] .. [k + 1]),
/// ascending and below q_len, at most `w` keys by one query. Intervals of pieces of keys that
/// cuts_piece says are cut at multiples of `segment` tiles of queries; then all are sorted by
/// ((q_end - 1) >> lifetime_shift, key, q_begin), and blocks of order_block_tiles by q_begin alone,
/// stably. Each tile is an item. Keys that are listed several times have a row of sums each, in
/// their order.
///
/// Cost        O(entries log entries), up to q_len / (128 * segment) entries an interval
HeadLists list_keys(std::span<const std::int64_t> offsets, std::span<const Interval> intervals,
                    std::int64_t q_len, std::int32_t segment, std::int64_t w);

/// The most keys that one query sees: `w` of these intervals.
std::int64_t most_seen(std::span<const Interval> intervals, std::int64_t q_len);

/// Appends the keys of lists that any number of KV heads use; their first tile, as append_items
/// wants it.
std::int32_t append_keys(const HeadLists& lists, KeyLists& to);

/// Appends the items of KV head `kv_head` of `batch` and what their sums are of.
void append_items(const HeadLists& lists, std::int32_t first_tile, std::int32_t batch,
                  std::int32_t kv_head, std::int32_t heads_kv, KeyLists& to);

}  // namespace fdma
