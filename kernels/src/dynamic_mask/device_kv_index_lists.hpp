// Gather lists on the GPU: from the queries that keep each key to the keys of each query tile.
#pragma once

#include <cstdint>

#include "cuda/device_plan.hpp"
#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma::dynamic_mask {

/// Set in a status word where a list had no room for all of its keys (the rest are left out):
/// intervals that no selection under the planned masks makes.
inline constexpr std::uint32_t kListTooLong = 2;

/// The queries of a tile that see a key, [begin, end), relative to the tile.
struct RowRange {
  std::uint8_t begin;
  std::uint8_t end;
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

/// Arguments; all pointers are to device memory. A row is a (batch element, KV head).
struct ListsCall {
  const Interval* kept = nullptr;  ///< [num_rows, kv_len], in each row begins of the keys that are
                                   ///< kept do not decrease; 8-aligned
  std::int64_t num_rows = 0;
  std::int64_t kv_len = 0;
  const std::int32_t* q_lens = nullptr;  ///< [num_rows]
  std::int32_t num_tiles = 0;            ///< of the longest row
  std::int32_t block_q = 0;              ///< queries of a tile, a power of two up to 128
  /// Live keys of a group of tiles that are held in shared memory at a time; the result does not
  /// depend on it. See batch_entries.
  std::int32_t batch_entries = 0;
  const std::int64_t* first_entries = nullptr;  ///< [num_rows * num_tiles + 1]: where lists begin,
                                                ///< multiples of 8
  void* workspace = nullptr;                    ///< lists_workspace_bytes, 16-aligned

  sm90::GatherListOnDevice* lists = nullptr;  ///< [num_rows, num_tiles]
  std::int32_t* keys = nullptr;               ///< [entries]
  RowRange* rows = nullptr;                   ///< [entries]; of keys that not all rows see
  std::uint32_t* status = nullptr;            ///< or null; kListTooLong is or-ed in
  std::int32_t* counter = nullptr;            ///< or null; set to 0, as attention wants to find it
};

/// The entries of a batch for tiles of which each holds at most `most_entries` keys: all live keys
/// of a group where they fit.
std::int32_t batch_entries(std::int64_t most_entries, std::int32_t block_q);

/// Bytes of workspace: 10 for each key (of each row up to 3 more), 16 for each 2,048 of them.
std::int64_t lists_workspace_bytes(std::int64_t num_rows, std::int64_t kv_len);

/// Makes every list: keys that all rows of the tile see first (num_full), of these first whole
/// chunks that it has in common with other tiles of its group (GatherListOnDevice); each part by
/// ascending key; the same every run. Two launches, nothing is waited for.
///
/// Errors  cuda
Result<void> make_lists(const ListsCall& call, Stream stream);

}  // namespace fdma::dynamic_mask
