// Key-major lists on the GPU: from the queries that keep each key to what the backward pass
// computes block by block (plan/kv_worklist.hpp), without the host.
#pragma once

#include <cstdint>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/kv_worklist.hpp"

namespace fdma::dynamic_mask {

/// What lists may take, known before any score is. A row is a (batch element, KV head).
///
/// A key is listed once, and once more for each end of a segment at which it is cut. There no more
/// than w keys live, so that their number is known.
struct KeyListsRoom {
  std::int64_t num_rows = 0;
  std::int64_t kv_len = 0;         ///< of the longest element
  std::int64_t q_len = 0;          ///< of the longest element
  std::int64_t w = 0;              ///< keys that a query keeps at most
  std::int32_t segment_tiles = 0;  ///< tiles of 128 queries: a step of lifetime_shift or more of
                                   ///< them, at most kMaxSegmentTiles
  bool has_order = false;          ///< of additions, so that gradients have the same bits every run

  std::int64_t cuts_of_row() const;   ///< at most
  std::int64_t tiles_of_row() const;  ///< of listed keys
  std::int64_t num_segments() const;
  std::int64_t keys_capacity() const;  ///< listed keys of all rows
  std::int64_t items_capacity() const;
  /// Of a row: keys that are listed several times. In order two entries of a key share one, for
  /// where two numbers are added to 0 it does not matter which is first.
  std::int64_t sum_rows() const;
  std::int64_t sums_capacity() const;   ///< rows of sums of all rows
  std::int64_t ranks_capacity() const;  ///< each item may visit every tile of queries; 0: no order
  std::int64_t workspace_bytes() const;
};
/// Of rows of up to 64 million queries.
inline constexpr std::int32_t kMaxSegmentTiles = 512;

/// Rows whose items are computed side by side where they are in order: 132 blocks wait least by
/// simulation (accumulation_order.cpp).
inline constexpr std::int32_t kRowsTogether = 8;

/// Room for a selection of w keys out of masks of the one-interval class. `group_size`: query heads
/// of a KV head, which share the segments' memory.
///
/// Example     131,072 tokens, w = 2,048, one head in a group: 32 segments of 32 tiles, 63,488 rows
///             of sums for each row of scores; drifting scores need 59,125, random ones 8,174
KeyListsRoom key_lists_room(std::int64_t num_rows, std::int64_t q_len, std::int64_t kv_len,
                            std::int64_t w, std::int32_t group_size);

/// Arguments; all pointers are to device memory.
struct KeyListsCall {
  KeyListsRoom room;
  const Interval* kept = nullptr;  ///< [num_rows, kv_len], in each row begins of the keys that
                                   ///< are kept do not decrease; 8-aligned
  const std::int32_t* q_lens = nullptr;  ///< [num_rows]
  std::int32_t heads_kv = 1;
  void* workspace = nullptr;  ///< workspace_bytes, 16-aligned

  ListedKey* keys = nullptr;          ///< [keys_capacity]: of each row tiles_of_row tiles
  KeyItem* items = nullptr;           ///< [keys_capacity / 128]
  std::int32_t* num_items = nullptr;  ///< one word
  SumKey* sum_keys = nullptr;         ///< [sums_capacity]: those of a row from row * sum_rows on
  std::int32_t* num_sums = nullptr;   ///< [num_rows]: rows of sums in use
  /// With room.has_order, as KeyListArrays has them (sm90/backward/params.hpp).
  std::int32_t* first_ranks = nullptr;  ///< [items_capacity]
  std::int32_t* ranks = nullptr;        ///< [ranks_capacity]
};

/// Makes the lists that list_keys (plan/kv_worklist.hpp) makes; the same every run. Five launches, six
/// with an order; nothing is waited for. Where more than w keys live at the end of a segment,
/// entries beyond the room are left out.
///
/// With an order: items of kRowsTogether rows lie side by side, segment by segment, the first of
/// each row, the second of each row and so on (device_accumulation_order.cuh), and of each visit it is said how
/// many items of the row visit the tile before. Rows of sums are those of pairs of entries.
///
/// Errors  unsupported: room for more than 2^31 - 1 listed keys, sums or ranks; cuda
/// Cost    8 B read a key, twice; 16 B written and read again for a listed key; with an order 4 B a
///         visit, and a look at each pair of items of a segment
Result<void> make_key_lists_on_device(const KeyListsCall& call, Stream stream);

}  // namespace fdma::dynamic_mask
