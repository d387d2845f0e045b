// FlexBlockMask: the arrays of PyTorch FlexAttention's BlockMask, on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// One pair of FlexAttention's tables, which lists tiles of each row of tiles.
///
/// Shapes      num_blocks  [num_batches, num_heads, rows]
///             indices     [num_batches, num_heads, rows, width]; the first num_blocks entries of a
///                         row count, the rest is padding
struct FlexIndexTable {
  std::int64_t width = 0;
  std::vector<std::int32_t> num_blocks;
  std::vector<std::int32_t> indices;
  friend bool operator==(const FlexIndexTable&, const FlexIndexTable&) = default;
};

/// The cells of the partial tiles. FlexAttention itself keeps them in a function; FDMA adds them to
/// what it exports.
///
/// Shapes      bitmap_index  one entry for each tile that `kv` lists, in the order of (batch, head,
///                           row, place in the list)
///             bitmaps       [num_bitmaps, block_q * block_kv / 64]; cell (r, c) is bit
///                           r * block_kv + c, least significant first
struct FlexCells {
  std::vector<std::int32_t> bitmap_index;
  std::vector<std::uint64_t> bitmaps;
  friend bool operator==(const FlexCells&, const FlexCells&) = default;
};

/// The fields of FlexAttention's BlockMask: kv_num_blocks and kv_indices are kv.num_blocks and
/// kv.indices, and so on; seq_lengths is (q_len, kv_len), BLOCK_SIZE is (block_q, block_kv).
///
/// Example     causal, (300, 300), blocks of 128: kv.num_blocks {1, 1, 3},
///             kv.indices {0,1,2, 1,0,2, 0,1,2}, full_kv.num_blocks {0, 1, 0}; the ragged last row
///             of tiles is never full
/// Invariants  none are assumed: block_mask_from_flex checks everything
/// Owner       owns its arrays
/// Cost        16 * num_batches * num_heads * rows * columns bytes with all four tables
struct FlexBlockMask {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t block_q = 128;
  std::int64_t block_kv = 128;
  std::int64_t num_batches = 1;
  std::int64_t num_heads = 1;
  FlexIndexTable kv;                      ///< tiles whose cells the mask function decides
  std::optional<FlexIndexTable> full_kv;  ///< full tiles; absent: `kv` lists these too
  std::optional<FlexIndexTable> q;        ///< transpose of kv
  std::optional<FlexIndexTable> full_q;   ///< transpose of full_kv
  std::optional<FlexCells> cells;
  friend bool operator==(const FlexBlockMask&, const FlexBlockMask&) = default;
};

struct FlexExportOptions {
  BlockShape block;
  bool separate_full =
      true;  ///< false: full tiles are listed in kv too (separate_full_blocks=False)
  bool with_transpose = true;  ///< q and full_q, which gradients need
  bool with_cells = true;
  std::int64_t max_bytes = std::int64_t{1} << 34;  ///< limit of all tables
};

/// The arrays that create_block_mask makes of the same mask, bit for bit. They are as wide as there
/// are tiles; listed tiles come first, ascending, then all others, ascending. Tiles that reach past
/// a length are never full.
///
/// Errors      unsupported (lengths differ by batch element), invalid_argument (block),
///             out_of_memory
/// Cost        O(tables)
Result<FlexBlockMask> flex_from_block_mask(const BlockMask& mask,
                                           const FlexExportOptions& options = {});

/// The mask of these arrays, in segments with their blocks. The cells of partial tiles come from
/// the arrays if they carry them, otherwise from `cells`, a mask of the same lengths and of as many
/// batch elements and heads, or one. The class of every tile must agree with the cells: full tiles
/// are full, tiles in no list are empty, and partial tiles are partial unless they reach past a
/// length or full tiles are not listed apart.
///
/// Errors      shape_mismatch (extents)
///             invalid_argument: an index outside the table or listed twice, a transpose that is
///             not one, a class that differs, a partial tile without cells
///             unsupported: blocks that FDMA does not have
/// Cost        O(listed tiles * log), and the conversion of `cells` to these blocks
Result<BlockMask> block_mask_from_flex(const FlexBlockMask& flex, const BlockMask* cells = nullptr);

}  // namespace fdma
