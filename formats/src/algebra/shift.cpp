// Moving the cells of a mask.
//
// A distance is a number of whole tiles and a rest. A tile of the result overlaps one tile of the
// mask, two where one rest is not 0, or four. The mask lies over the result in as many layers, each
// moved by whole tiles. A tile of the result is put together from the parts of the layers' tiles
// that lie in it; tile_layers.hpp does that once for every distinct combination.
// Example: a causal mask moved by (0, 5), blocks of 128: layers (0, 0) and (0, 1). The diagonal
// tile and the one to its right are made of the diagonal bitmap, moved by 5 and by 5 - 128 keys.
#include <algorithm>
#include <array>
#include <vector>

#include "algebra/combine_segments.hpp"
#include "algebra/tile_layers.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "segment/bit_copy.hpp"

namespace fdma {
namespace {

// The place of a layer: whole tiles, and the cells by which its tiles are moved inside the
// result's.
struct Offset {
  std::int64_t tiles;
  std::int64_t cells;
};

std::vector<Offset> offsets_of(std::int64_t distance, std::int64_t side) {
  const std::int64_t tiles = floor_quotient(distance, side), rest = distance - tiles * side;
  if (rest == 0) return {{tiles, 0}};
  return {{tiles, rest}, {tiles + 1, rest - side}};
}

class ShiftFunction final : public TileFunction {
 public:
  explicit ShiftFunction(const UniformRuns& parts)
      : parts_(parts), scratch_(static_cast<std::size_t>(parts.mask().words_per_bitmap())) {}

  /// Adds the next layer, in order.
  void add_layer(std::int64_t rows, std::int64_t keys) { moves_.push_back({rows, keys}); }

  TileClass classify(std::span<const LayerTile> tiles) const override {
    const auto is_whole = [](const LayerTile& tile) {
      return tile.source == kFullTiles && !tile.is_last_row && !tile.is_last_col;
    };
    const auto is_empty = [](const LayerTile& tile) { return tile.source == kEmptyTiles; };
    if (std::all_of(tiles.begin(), tiles.end(), is_empty)) return TileClass::empty;
    if (std::all_of(tiles.begin(), tiles.end(), is_whole)) return TileClass::full;
    return TileClass::partial;
  }

  void evaluate(std::span<const LayerTile> tiles, std::uint64_t* words) override {
    const SegmentMask& mask = parts_.mask();
    const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
    for (std::size_t l = 0; l < tiles.size(); ++l) {
      const LayerTile& tile = tiles[l];
      if (tile.source == kEmptyTiles) continue;
      const Move& move = moves_[l];
      // Rows and keys of the layer's tile that lie in the result's.
      const std::int64_t num_rows = tile.is_last_row ? mask.q_len % block_q : block_q;
      const std::int64_t num_keys = tile.is_last_col ? mask.kv_len % block_kv : block_kv;
      const std::int64_t first_row = std::max<std::int64_t>(0, -move.rows);
      const std::int64_t end_row = std::min(num_rows, block_q - move.rows);
      const std::int64_t first_key = std::max<std::int64_t>(0, -move.keys);
      const std::int64_t end_key = std::min(num_keys, block_kv - move.keys);
      if (first_key >= end_key) continue;
      const std::uint64_t* bitmap =
          tile.source == kFullTiles ? nullptr : parts_.bitmap_of(tile.source, scratch_.data());
      for (std::int64_t r = first_row; r < end_row; ++r) {
        const std::int64_t to = (r + move.rows) * block_kv + first_key + move.keys;
        if (bitmap == nullptr) {
          set_bits(words, to, to + end_key - first_key);
        } else {
          copy_bits(words, to, bitmap, r * block_kv + first_key, end_key - first_key);
        }
      }
    }
  }

 private:
  struct Move {
    std::int64_t rows;
    std::int64_t keys;
  };
  const UniformRuns& parts_;
  std::vector<Move> moves_;
  std::vector<std::uint64_t> scratch_;
};

SegmentMask shift_table(const SegmentMask& mask, std::int64_t dq, std::int64_t dk) {
  std::vector<std::int64_t> offsets{0};
  std::vector<Interval> intervals;
  offsets.reserve(static_cast<std::size_t>(mask.kv_len) + 1);
  for (std::int64_t k = -dk; k < mask.kv_len - dk; ++k) {
    if (0 <= k && k < mask.kv_len) {
      const auto key = static_cast<std::size_t>(k);
      for (std::int64_t i = mask.column_offsets[key]; i < mask.column_offsets[key + 1]; ++i) {
        const Interval queries = mask.column_intervals[static_cast<std::size_t>(i)];
        const std::int64_t begin = std::max<std::int64_t>(queries.begin + dq, 0);
        const std::int64_t end = std::min<std::int64_t>(queries.end + dq, mask.q_len);
        if (begin >= end) continue;
        intervals.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
      }
    }
    offsets.push_back(std::ssize(intervals));
  }
  return segment_from_columns(mask.q_len, mask.kv_len, mask.block, std::move(offsets),
                              std::move(intervals));
}

}  // namespace

SegmentMask shift_segment(const SegmentMask& mask, std::int64_t dq, std::int64_t dk) {
  if (!mask.column_offsets.empty()) return shift_table(mask, dq, dk);
  return move_segment(mask, dq, dk, mask.q_len, mask.kv_len);
}

SegmentMask move_segment(const SegmentMask& mask, std::int64_t dq, std::int64_t dk,
                         std::int64_t q_len, std::int64_t kv_len) {
  UniformRuns parts(mask, UniformRuns::Patterns::kept);
  ShiftFunction function(parts);
  std::vector<TileLayer> layers;
  for (const Offset& rows : offsets_of(dq, mask.block.block_q)) {
    for (const Offset& keys : offsets_of(dk, mask.block.block_kv)) {
      layers.push_back({&parts, rows.tiles, keys.tiles});
      function.add_layer(rows.cells, keys.cells);
    }
  }
  return combine_layers(q_len, kv_len, mask.block, layers, function);
}

}  // namespace fdma
