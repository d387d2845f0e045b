// The entries of a plan's arrays, as kernels read them too. plan.hpp has the plan itself.
#pragma once

#include <cstdint>

#include "fdma/base/interval.hpp"

namespace fdma {

/// How the cells of a plan segment are stored. Backward plans have every kind except gather, in
/// transposed form: bitmaps of keys by queries, query intervals per key, key intervals per query.
/// Steps over tiles (TileStep) have every kind except permutation and pattern.
enum class PlanSegmentKind : std::int32_t {
  full = 0,     ///< every existing cell of these tiles is true: no mask is read
  bitmap = 1,   ///< each tile has the cells of bitmap number `data_index`
  rows = 2,     ///< row panel number `data_index`: key intervals per query row, from the first tile
  columns = 3,  ///< column table number `data_index`: query intervals per key, read by the kernel
  gather = 4,   ///< kv index list number `data_index`, in index tiles of tile.block_kv entries
  /// the cells follow from the plan's closed form; only closed-form plans have it
  closed_form = 5,
  permutation = 6,  ///< no tiles: the other segments of the work tile count keys in kv
                    ///< permutation
                    ///< number `data_index`
  pattern = 7,  ///< tiles of pattern number `data_index`, each full or with the cells of a bitmap
};

/// Consecutive tiles of one kind and how they move per step of their run. In the tile row that is i
/// steps into the run, the segment covers tiles
/// [first_tile + i * step_first, end_tile + i * step_end).
///
/// Kind pattern: these numbers count the tiles of the PlanPattern, which are not empty. The segment
/// may have none in some tile rows.
/// Kind gather: index tiles [0, end_tile) of its list, steps 0; it follows the tile segments of its
/// work tile. Kind order: the first segment of a work tile, with all other fields 0.
struct PlanSegment {
  std::int32_t first_tile;
  std::int32_t end_tile;
  std::int32_t step_first;
  std::int32_t step_end;
  PlanSegmentKind kind;
  std::int32_t data_index;
  friend bool operator==(const PlanSegment&, const PlanSegment&) = default;
};

/// Tiles of a tile row that repeat every num_cols tiles. Tile i of the pattern (i = 0, 1, ..) is tile
/// i / num_entries * num_cols + shift + column of the row, with the column of its entry
/// first_entry + i % num_entries.
///
/// Example     keys `k % 640 < 128`, tiles of 128 keys: num_entries 1, num_cols 5, shift 0, and the
///             entry {0, kFullEntry}: tiles 0, 5, 10, ..
/// Invariants  num_entries > 0, -num_cols < shift <= 0; columns of its entries ascend in
///             [0, num_cols)
struct alignas(16) PlanPattern {
  std::int32_t first_entry;
  std::int32_t num_entries;
  std::int32_t num_cols;
  std::int32_t shift;
  friend bool operator==(const PlanPattern&, const PlanPattern&) = default;
};

/// A tile of a PlanPattern: the index of its bitmap, or kFullEntry.
struct alignas(8) PatternEntry {
  std::int32_t column;
  std::int32_t bitmap;
  friend bool operator==(const PatternEntry&, const PatternEntry&) = default;
};
inline constexpr std::int32_t kFullEntry = -1;

/// The arrays that pattern segments refer to.
struct PatternArrays {
  const PlanPattern* patterns;
  const PatternEntry* entries;
};

/// WorkTile::partial of a work tile that walks all keys of its rows.
inline constexpr std::int32_t kWholeRow = -1;

/// A work tile: one query tile of one head (or of heads_per_tile heads that share a KV head), or a
/// part of its keys, and the place of its segments.
struct WorkTile {
  std::int32_t batch;
  std::int32_t head;  ///< query head, the first of several
  /// Query tile: rows [q_tile * tile.block_q, ..) up to the element's q_len. Backward, key tile:
  /// keys [q_tile * tile.block_kv, ..) up to the element's kv_len.
  std::int32_t q_tile;
  std::int32_t step;  ///< steps into the run that owns the segments
  std::int32_t first_segment;
  std::int32_t num_segments;
  std::int32_t num_tiles;  ///< tiles and index tiles that it walks; 0: rows without keys
  /// Live keys (once per row interval) of its column tiles and kv index lists. In a split row, the
  /// number of the whole row.
  std::int32_t num_entries;
  std::int32_t first_tile = 0;  ///< tiles of its segments that earlier parts of a split row walk
  std::int32_t partial = kWholeRow;  ///< the partial result that it writes, or kWholeRow
  friend bool operator==(const WorkTile&, const WorkTile&) = default;
};

/// A query tile whose keys are split over several work tiles. Their partial results
/// [first_partial, first_partial + num_partials), by ascending keys, are combined in this order.
struct SplitRow {
  std::int32_t batch;
  std::int32_t head;
  std::int32_t q_tile;
  std::int32_t first_partial;
  std::int32_t num_partials;
  friend bool operator==(const SplitRow&, const SplitRow&) = default;
};

/// A key in a kv index list and the rows of the query tile that see it: [row_begin, row_end),
/// relative to the tile. A key that several row intervals see is listed once for each.
struct KvIndexEntry {
  std::int32_t key;
  std::uint16_t row_begin;
  std::uint16_t row_end;
  friend bool operator==(const KvIndexEntry&, const KvIndexEntry&) = default;
};

/// Every kv index list begins at a multiple of this number of entries, so that several keys can be
/// loaded at a time. Zeros (key 0, no rows) fill the gap behind each list.
inline constexpr std::int64_t kKvIndexAlignment = 8;

/// A kv index list: entries [first_entry, first_entry + num_entries) of the plan. The num_full
/// entries that all rows of the query tile see come first; both parts ascend by key. first_entry is
/// a multiple of kKvIndexAlignment.
struct KvIndexList {
  std::int64_t first_entry;
  std::int32_t num_entries;
  std::int32_t num_full;
  friend bool operator==(const KvIndexList&, const KvIndexList&) = default;
};

/// A kv permutation: another order of all or some keys of an element. Its key i is key
/// permuted_keys[first_key + i] of the tensors. Each key occurs at most once. A backend that cannot
/// read scattered keys moves their rows of K and V before its kernel runs.
struct KvPermutation {
  std::int64_t first_key;
  std::int64_t num_keys;
  friend bool operator==(const KvPermutation&, const KvPermutation&) = default;
};

}  // namespace fdma
