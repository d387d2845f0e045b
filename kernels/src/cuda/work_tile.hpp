// The tile of the kernels and the work tile as one thread broadcasts it in shared memory.
#pragma once

#include <cstdint>

namespace fdma::gpu {

inline constexpr int kTileRows = 128;
inline constexpr int kTileKeys = 128;
inline constexpr int kHalfRows = 64;  ///< rows of a tile that one group of four warps computes
inline constexpr int kWarpgroupThreads = 128;  ///< of such a group
inline constexpr int kWarpSize = 32;

inline constexpr std::int32_t kNoWorkTile = -1;  ///< in place of a work tile after the last

/// A work tile as the loading thread broadcasts it to the other warps.
struct alignas(16) BroadcastTile {
  std::int32_t num_tiles;  ///< at least 1, or kNoWorkTile
  std::int32_t q_begin;    ///< first query row
  std::int32_t head;       ///< the first one, if the tile has several
  std::int32_t batch;
  std::int32_t q_len;
  /// Number of keys in the coordinates of its tiles
  std::int32_t kv_len;
  std::int32_t first_segment;  ///< of the plan, or kOwnSegments
  std::int32_t num_segments;
  std::int32_t step;
  /// Tiles of its segments that belong to another work tile
  std::int32_t first_tile;
  /// Index of its partial result, or kWholeRow
  std::int32_t partial;
  /// Documents of its rows in closed-form plans. Or kPermutedKeys
  std::int32_t first_document, last_document;
  std::int32_t kv_head;
  std::int32_t head_in_group;  ///< head - kv_head * group_size
  std::int32_t num_heads;      ///< existing heads that share the tile
};

/// The counterpart of a backward kernel: a tile of 128 keys of a KV head against the queries of all
/// query heads of its group, in the words of BroadcastTile. A member that only plans or only kv
/// worklists have shares its word with one of the other.
struct alignas(16) TileGroup {
  std::int32_t num_tiles;  ///< query tiles of a head, at least 1, or kNoWorkTile
  /// First key; over a worklist the index of its first entry
  std::int32_t key_begin;
  std::int32_t head;  ///< the first query head
  std::int32_t batch;
  std::int32_t kv_len;  ///< over a worklist such that no key is past the end
  std::int32_t q_len;
  /// Index of a segment of the plan, or kOwnSegments. Over a worklist: the first query tile
  std::int32_t first_segment;
  std::int32_t num_segments;
  /// WorkTile::step, then 0; over a worklist the query tiles that are full
  std::int32_t step_or_full_begin, full_end;
  /// First work tile of the group in the plan; over a worklist KvWorkTile::first_accum_row
  std::int32_t first_work_tile_or_accum_row;
  /// Documents of its keys in closed-form plans
  std::int32_t first_document, last_document;
  std::int32_t kv_head;
  /// Deterministic calls: where the position of its next query tile is found, and the position of
  /// the query tile in hand
  std::int32_t next_visit, position;
};
static_assert(sizeof(TileGroup) == sizeof(BroadcastTile));

/// In place of a first document (-1 stands for rows before the first document): the tiles count
/// keys of the kv permutation.
inline constexpr std::int32_t kPermutedKeys = -2;

/// In place of a first segment: the segments lie behind the work tile in shared memory.
inline constexpr std::int32_t kOwnSegments = -1;
inline constexpr int kMaxOwnSegments = 6;

}  // namespace fdma::gpu
