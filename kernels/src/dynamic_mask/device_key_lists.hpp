// Key-major lists on the GPU: from the queries that keep each key to what the backward pass
// computes block by block (key_lists.hpp), without the host.
#pragma once

#include <cstdint>

#include "fdma/formats/interval.hpp"
#include "fdma/formats/result.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/key_lists.hpp"

namespace fdma::dynamic_mask {

/// What lists may take, known before any score is. A row is a (batch element, KV head).
///
/// Key tiles that reach into several segments of queries are cut there; a cut tile has an item for
/// each of them, and its gradients are added up in rows of float32. Of a row's tiles, in their
/// order, those are cut for which there is room; the others are computed in one piece: slower, the
/// same result.
struct KeyListsRoom {
  std::int64_t num_rows = 0;
  std::int64_t kv_len = 0;         ///< of the longest element
  std::int64_t q_len = 0;          ///< of the longest element
  std::int32_t segment_tiles = 0;  ///< tiles of 128 queries, at most kMaxSegmentTiles
  std::int32_t extra_items = 0;    ///< of a row: items beyond one for each of its tiles
  std::int32_t sum_rows = 0;       ///< of a row, a multiple of 128

  std::int64_t tiles_of_row() const;  ///< of keys
  std::int64_t num_segments() const;
  std::int64_t keys_capacity() const;  ///< listed keys of all rows
  std::int64_t items_capacity() const;
  std::int64_t sums_capacity() const;  ///< rows of sums of all rows
  std::int64_t workspace_bytes() const;
};
inline constexpr std::int32_t kMaxSegmentTiles = 128;

/// Room for a selection of w keys out of masks of the one-interval class: w keys live at a time, so
/// about w / 128 tiles reach over each end of a segment; twice that, and what the tiles at hand
/// can be. `group_size`: query heads of a KV head, which share the segments' memory.
///
/// Example     131,072 tokens, w = 2,048, one head in a group: 16 segments of 64 tiles, 65,280 rows
///             of sums for each row of scores; drifting scores need 46,720, random ones 8,064
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
  KeyItem* items = nullptr;           ///< [items_capacity]
  std::int32_t* num_items = nullptr;  ///< one word
  SumKey* sum_keys = nullptr;         ///< [sums_capacity]: those of a row from row * sum_rows on
  std::int32_t* num_sums = nullptr;   ///< [num_rows]: rows of sums in use
};

/// Makes the lists that make_key_lists (key_lists.hpp) makes, those for which there is no room
/// uncut; the same every run. Six launches, nothing is waited for.
///
/// Errors  unsupported: more than 2^31 - 1 blocks; cuda
/// Cost    8 B read a key, twice; 16 B written and read again for a kept key
Result<void> make_key_lists_on_device(const KeyListsCall& call, Stream stream);

}  // namespace fdma::dynamic_mask
