// kv worklists for the backward pass, with keys sorted by live range, made on the host.
// make_kv_worklist.hpp decides on their use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/kv_worklist.hpp"

namespace fdma {

/// Length of a segment in tiles of queries. What the work tiles of a KV head read of a segment
/// stays in the cache, and few keys begin and end in it. It is no less than a step of
/// live_range_shift.
std::int32_t segment_tiles(std::int32_t group_size, std::int64_t q_len);

/// The same where a query is known to see at most `w` keys. Keys are then live for about w queries,
/// and each end of a segment cuts the keys that are live there. Segments are therefore about as
/// long, as far as the cache allows.
std::int32_t segment_tiles(const AttentionShape& shape, std::int64_t w);

/// The worklist of one KV head. Its work tiles have batch and kv_head 0 and count key tiles and
/// accumulator rows from 0 on.
struct HeadWorklist {
  std::vector<WorklistEntry> keys;
  std::vector<KvWorkTile> work_tiles;
  std::vector<std::int32_t> accum_keys;  ///< the key of each accumulator row
  friend bool operator==(const HeadWorklist&, const HeadWorklist&) = default;
};

/// The worklist of keys of which key k is seen by the queries of intervals[offsets[k] .. [k + 1]),
/// ascending and below q_len, with at most `w` keys seen by one query. In blocks of keys for which
/// cuts_key_segment holds, intervals are cut at multiples of `segment` tiles of queries. All are
/// then sorted by ((q_end - 1) >> live_range_shift, key, q_begin), and blocks of order_block_tiles
/// by q_begin alone, stably. Each tile is a work tile. A key that is listed several times has an
/// accumulator row, which its entries share, and rows follow the permutation of keys.
///
/// Cost        O(entries log entries), with up to q_len / (128 * segment) entries per interval
HeadWorklist make_head_worklist(std::span<const std::int64_t> offsets,
                                std::span<const Interval> intervals, std::int64_t q_len,
                                std::int32_t segment, std::int64_t w);

/// The largest number of keys that one query sees: `w` of these intervals.
std::int64_t most_seen(std::span<const Interval> intervals, std::int64_t q_len);

/// Appends the keys of worklists, which any number of KV heads may use. Returns their first tile
/// for append_work_tiles.
std::int32_t append_keys(const HeadWorklist& lists, KvWorklist& to);

/// Appends the work tiles of KV head `kv_head` of `batch` and the keys of their accumulator rows.
void append_work_tiles(const HeadWorklist& lists, std::int32_t first_tile, std::int32_t batch,
                       std::int32_t kv_head, std::int32_t heads_kv, KvWorklist& to);

}  // namespace fdma
