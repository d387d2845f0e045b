// kv index lists made on the GPU: from the queries that keep each key to the keys of each query
// tile.
#pragma once

#include <cstdint>

#include "cuda/plan_arrays.hpp"
#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma::dynamic_mask {

/// Set in a status word if a list had no room for all of its keys; the excess keys are left out. No
/// selection under the planned masks makes such intervals.
inline constexpr std::uint32_t kListTooLong = 2;

/// The queries of a tile that see a key, [begin, end), relative to the tile.
struct RowRange {
  std::uint8_t begin;
  std::uint8_t end;
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

/// Arguments; all pointers are to device memory. A row is a (batch element, KV head).
struct ListsCall {
  /// [num_rows, kv_len]; in each row the begins of the kept keys do not decrease; 8-aligned
  const Interval* kept = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t kv_len = 0;
  const std::int32_t* q_lens = nullptr;  ///< [num_rows]
  std::int32_t num_tiles = 0;            ///< of the longest row
  std::int32_t block_q = 0;              ///< queries of a tile, a power of two up to 128
  /// Number of live keys of a group of tiles that are held in shared memory at a time. The result
  /// does not depend on it. See batch_entries.
  std::int32_t batch_entries = 0;
  /// [num_rows * num_tiles + 1]: where lists begin, multiples of 8
  const std::int64_t* first_entries = nullptr;
  void* workspace = nullptr;  ///< lists_workspace_bytes, 16-aligned

  gpu::KvIndexListOnDevice* lists = nullptr;  ///< [num_rows, num_tiles]
  std::int32_t* keys = nullptr;               ///< [entries]
  RowRange* rows = nullptr;                   ///< [entries]; set for keys that not all rows see
  std::uint32_t* status = nullptr;            ///< or null; receives kListTooLong by OR
  std::int32_t* counter = nullptr;            ///< or null; set to 0, as attention needs it
};

/// The batch size for tiles that hold at most `most_entries` keys each: all live keys of a group
/// where they fit.
std::int32_t batch_entries(std::int64_t most_entries, std::int32_t block_q);

/// Workspace bytes: 10 per key (and up to 3 more keys per row), 16 per 2,048 keys.
std::int64_t lists_workspace_bytes(std::int64_t num_rows, std::int64_t kv_len);

/// Makes every list. Keys that all rows of the tile see come first (num_full), and among these
/// first the whole index tiles that it shares with other tiles of its group (KvIndexListOnDevice).
/// Each part ascends by key. The result is the same in every run. It takes two launches and does
/// not wait.
///
/// Errors  cuda
Result<void> make_lists(const ListsCall& call, Stream stream);

}  // namespace fdma::dynamic_mask
