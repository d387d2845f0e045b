// Chunks of a tile row that hold the same tiles as one before, without a look at each tile.
//
// Idea. A chunk of kChunkTiles tiles is a tile of a wider block, and gets a number as such
// (tile_numbers.hpp). What is known of the tiles of one chunk holds for all of its number.
//
// Example     `bitand(q, k) == 0` at 1M tokens: 140,000 chunks that are not empty, of 64 numbers,
//             hold 1.6 million tiles
// Does not    diagonal parts, whose windows overlap too much; few tile columns
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "boxes/tile_kinds.hpp"
#include "boxes/tile_numbers.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma::box {

inline constexpr int kChunkLevel = 6;
inline constexpr std::int32_t kChunkTiles = 1 << kChunkLevel;

/// The block whose tiles are the chunks of a block's tile rows.
inline BlockShape chunk_shape(BlockShape block) {
  return {block.block_q, block.block_kv * kChunkTiles};
}

/// The tiles of a chunk that are not empty: ranges counted from its first tile, and the kinds of the
/// partial ones, ascending.
struct ChunkTiles {
  std::vector<TileRange> ranges;
  std::vector<TileKind*> kinds;
};

/// The chunks that one thread has met.
class ChunkKinds {
 public:
  /// `numbers` are those of chunk_shape, for a mask of kv_len keys.
  ChunkKinds(const TileNumbers& numbers, BlockShape block, std::int64_t kv_len)
      : numbers_(numbers), chunk_keys_(chunk_shape(block).block_kv), kv_len_(kv_len) {}

  /// False once most chunks turned out to be new.
  bool is_useful() const { return is_useful_; }
  void begin_row(std::int32_t tile_row, bool is_cut_below);
  /// The tiles of a chunk of the row if they are known; null otherwise.
  const ChunkTiles* find(std::int32_t chunk);
  /// Says what the chunk that `find` was last asked for holds.
  void add(std::span<const TileRange> ranges, std::int32_t first_tile,
           std::span<TileKind* const> kinds);

 private:
  TileNumbers::Worker numbers_;
  std::int64_t chunk_keys_;
  std::int64_t kv_len_;
  bool is_useful_ = true;
  bool is_cut_below_ = false;
  std::int64_t at_ = -1;  ///< the place of the chunk in indices_; -1: it has no number
  std::int64_t num_found_ = 0;
  std::int64_t num_new_ = 0;
  std::vector<std::int32_t> indices_;  ///< four a number as in TileKinds: into chunks_, or -1
  std::vector<ChunkTiles> chunks_;
};

}  // namespace fdma::box
