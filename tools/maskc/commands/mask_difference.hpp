// Where two masks differ: the cells, and the tiles that hold them. check and diff use it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/formats/block_mask.hpp"

namespace fdma::maskc {

class Progress;

/// A cell that only one of the masks has.
struct DifferingCell {
  std::int64_t batch, head, q, k;
  bool is_in_a;  ///< true in a and false in b; otherwise the other way round
};

enum class TileClass : std::uint8_t { empty, partial, full };
std::string_view to_string(TileClass tile_class);

/// A tile with differing cells, reported for the first (batch, head) pair that shows it.
struct DifferingTile {
  std::int64_t batch, head;
  std::int64_t num_pairs;  ///< (batch, head) pairs that differ in the same way, this one included
  std::int32_t row, col;
  std::int64_t q_begin, q_end, k_begin, k_end;  ///< the cells of the tile that exist
  TileClass in_a, in_b;
  std::int64_t only_in_a, only_in_b;  ///< cells
};

/// The difference of masks a and b.
struct MaskDifference {
  /// Not empty if counts or lengths differ; the text says how, and no cell was compared.
  std::string shape_reason;
  BlockShape block;            ///< block shape of the tiles below
  std::int64_t only_in_a = 0;  ///< cells, over all (batch, head) pairs
  std::int64_t only_in_b = 0;
  std::int64_t num_tiles = 0;        ///< tiles that differ, over all (batch, head) pairs
  std::vector<DifferingTile> tiles;  ///< the first ones, by pair, row, column
  std::vector<DifferingCell> cells;  ///< the first ones, by pair, row, key

  bool is_equal() const { return shape_reason.empty() && num_tiles == 0; }
};

/// Compares every cell, in blocks of `block`. Lists the first `max_listed` tiles and cells.
///
/// Cost        the conversion alone if the canonical forms are equal; otherwise O(q_len * intervals per
///             row) for each two groups that meet
MaskDifference compare(const BlockMask& a, const BlockMask& b, BlockShape block,
                       std::size_t max_listed, Progress& progress);

}  // namespace fdma::maskc
