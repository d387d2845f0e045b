// KvWorklist: the kv worklist of a backward call whose mask has column intervals. It lists the keys
// that are ever seen, in the order of their live ranges.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// The number of worklist keys in a key tile, and of queries in a query tile.
inline constexpr std::int32_t kWorklistTile = 128;

/// Marks a key without fp32 accumulators: its work tile stores its gradients.
inline constexpr std::int32_t kNoAccum = -1;

/// Entries are sorted by (q_end - 1) >> live_range_shift(q_len), that is in steps of 64 queries or
/// more, at most 1,024 steps.
FDMA_HOST_DEVICE inline std::int32_t live_range_shift(std::int64_t q_len) {
  std::int32_t shift = 6;
  while (((q_len - 1) >> shift) >= 1024) ++shift;
  return shift;
}

/// Tiles of a block inside which entries are sorted by the first query, where the entries of a KV
/// head fill `num_tiles` tiles.
FDMA_HOST_DEVICE inline std::int32_t order_block_tiles(std::int64_t num_tiles) {
  return num_tiles < 16 ? 2 : num_tiles < 32 ? 3 : num_tiles < 128 ? 4 : num_tiles < 256 ? 6 : 8;
}

/// A key and the queries [q_begin, q_end) that see it, relative to the batch element. A key of
/// several intervals, or of one interval that is cut, is listed once for each. Key -1 without
/// queries fills the last tile of an order.
struct alignas(16) WorklistEntry {
  std::int32_t key;
  std::int32_t q_begin;
  std::int32_t q_end;
  /// Row of the fp32 accumulators that its work tiles add gradients to, counted from
  /// KvWorkTile::first_accum_row; or kNoAccum.
  std::int32_t accum_row;
  friend bool operator==(const WorklistEntry&, const WorklistEntry&) = default;
};

/// A work tile: 128 worklist keys of a KV head against the queries of all of its query heads in
/// tiles [begin_tile, end_tile), computed without a break.
struct alignas(16) KvWorkTile {
  std::int32_t batch;
  std::int32_t kv_head;
  std::int32_t key_tile;  ///< worklist keys [128 * key_tile, .. + 128)
  /// First row of the fp32 accumulators of its keys, or kNoAccum. Keys without accumulators are in
  /// no other work tile; this one stores their gradients.
  std::int32_t first_accum_row;
  std::int32_t begin_tile;  ///< of 128 queries, not empty; tiles in between may have no cell
  std::int32_t end_tile;
  std::int32_t full_begin;  ///< tiles in which all 128 keys are seen by every existing query;
  std::int32_t full_end;    ///< none: both are begin_tile
  friend bool operator==(const KvWorkTile&, const KvWorkTile&) = default;
};

/// The key whose gradients a row of fp32 accumulators holds; key -1: none.
struct alignas(8) AccumKey {
  std::int32_t kv_row;  ///< batch * heads_kv + kv_head
  std::int32_t key;
  friend bool operator==(const AccumKey&, const AccumKey&) = default;
};

/// The kv worklists of all KV heads; equal ones are stored once.
///
/// Example     learned top-k, 131,072 keys, w = 2,048, random scores: 10,474 keys of a head are
///             ever seen, in 73,960 entries; 82 % of the query tiles are full
/// Shapes      keys [num_tiles * kWorklistTile]; accum_keys [rows of fp32 accumulators]
/// Invariants  the number of keys is a multiple of kWorklistTile
///             work tiles of a KV head are together, by segments of queries, and longest first in a
///             segment
///             a key without accumulators is in one work tile
///             the plan is a backward plan of a backend that has kv worklists
///             validate (plan.hpp) checks what may lead outside an array or be written twice
/// Owner       owns its arrays (host)
/// Cost        16 B an entry, 32 B a work tile, 8 B an accumulator row
struct KvWorklist {
  std::vector<WorklistEntry> keys;
  std::vector<KvWorkTile> work_tiles;
  std::vector<AccumKey> accum_keys;
  bool empty() const { return work_tiles.empty() && keys.empty(); }
  friend bool operator==(const KvWorklist&, const KvWorklist&) = default;
};

}  // namespace fdma
