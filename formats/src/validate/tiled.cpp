// Validation of block bit sets and block compressed sparse rows.
#include <algorithm>
#include <bit>

#include "fdma/formats/convert.hpp"
#include "segment/bit_copy.hpp"
#include "validate/validation.hpp"

namespace fdma {
namespace {

Result<void> check_index(std::size_t entry, std::int32_t index, std::int32_t least,
                         std::size_t num_bitmaps) {
  if (index >= least && (index < 0 || static_cast<std::size_t>(index) < num_bitmaps)) return {};
  return corrupt(fmt::format("bitmap_index[{}]: {}, expected {} to {}", entry, index, least,
                             static_cast<std::int64_t>(num_bitmaps) - 1));
}

Result<void> check_sizes(const BlockBitset& mask) {
  FDMA_TRY_VOID(check_tiled(mask.q_len, mask.kv_len, mask.block));
  const std::int64_t num_words = mask.num_tile_rows() * mask.words_per_row();
  FDMA_TRY_VOID(check_size("active", mask.active.size(), num_words, "tile rows * words a row"));
  FDMA_TRY_VOID(check_size("full", mask.full.size(), num_words, "tile rows * words a row"));
  FDMA_TRY_VOID(check_size("partial_offsets", mask.partial_offsets.size(), mask.num_tile_rows() + 1,
                           "tile rows + 1"));
  FDMA_TRY_VOID(check_offset_ends("partial_offsets", mask.partial_offsets, mask.bitmap_index.size(),
                                  "bitmap_index"));
  return check_bitmap_words(mask.bitmaps.size(), mask.block);
}

Result<void> check_structure(const BlockBitset& mask) {
  FDMA_TRY_VOID(check_ascending("partial_offsets", mask.partial_offsets));
  const std::vector<BitmapExtent> extents = bitmap_extents(mask.bitmaps, mask.block);
  const std::int64_t words_per_row = mask.words_per_row(), num_cols = mask.num_tile_cols();
  for (std::int64_t row = 0; row < mask.num_tile_rows(); ++row) {
    std::int64_t next = mask.partial_offsets[static_cast<std::size_t>(row)];
    const std::int64_t last = mask.partial_offsets[static_cast<std::size_t>(row) + 1];
    for (std::int64_t w = 0; w < words_per_row; ++w) {
      const auto i = static_cast<std::size_t>(row * words_per_row + w);
      if ((mask.full[i] & ~mask.active[i]) != 0) {
        return corrupt(
            fmt::format("full[{}]: {:#018x}, expected no bit outside active[{}] = "
                        "{:#018x}",
                        i, mask.full[i], i, mask.active[i]));
      }
      const std::int64_t existing = std::min<std::int64_t>(64, num_cols - w * 64);
      if (existing < 64 && mask.active[i] >> existing != 0) {
        return corrupt(fmt::format("active[{}]: {:#018x}, expected no bit past tile column {}", i,
                                   mask.active[i], num_cols - 1));
      }
      for (std::uint64_t partial = mask.active[i] & ~mask.full[i]; partial != 0;
           partial &= partial - 1) {
        if (next == last) {
          return corrupt(
              fmt::format("partial_offsets[{}]: {}, but tile row {} has more partial "
                          "tiles than that",
                          row + 1, last, row));
        }
        const auto entry = static_cast<std::size_t>(next++);
        const std::int32_t index = mask.bitmap_index[entry];
        FDMA_TRY_VOID(check_index(entry, index, 0, extents.size()));
        const std::int64_t col = w * 64 + std::countr_zero(partial);
        FDMA_TRY_VOID(check_padding("bitmap_index", entry, extents[static_cast<std::size_t>(index)],
                                    existing_cells(mask.q_len, mask.kv_len, mask.block, row, col),
                                    row, col));
      }
    }
    if (next != last) {
      return corrupt(
          fmt::format("partial_offsets[{}]: {}, but the partial tiles of tile row {} end "
                      "at {}",
                      row + 1, last, row, next));
    }
  }
  return {};
}

Result<void> check_sizes(const BcsrMask& mask) {
  FDMA_TRY_VOID(check_tiled(mask.q_len, mask.kv_len, mask.block));
  FDMA_TRY_VOID(check_size("row_offsets", mask.row_offsets.size(), mask.num_tile_rows() + 1,
                           "tile rows + 1"));
  FDMA_TRY_VOID(
      check_offset_ends("row_offsets", mask.row_offsets, mask.col_indices.size(), "col_indices"));
  FDMA_TRY_VOID(check_size("bitmap_index", mask.bitmap_index.size(),
                           static_cast<std::int64_t>(mask.col_indices.size()),
                           "as many as col_indices"));
  return check_bitmap_words(mask.bitmaps.size(), mask.block);
}

Result<void> check_structure(const BcsrMask& mask) {
  FDMA_TRY_VOID(check_ascending("row_offsets", mask.row_offsets));
  const std::vector<BitmapExtent> extents = bitmap_extents(mask.bitmaps, mask.block);
  const std::int64_t num_cols = mask.num_tile_cols();
  for (std::size_t row = 0; row + 1 < mask.row_offsets.size(); ++row) {
    std::int32_t before = -1;
    for (auto i = static_cast<std::size_t>(mask.row_offsets[row]);
         i < static_cast<std::size_t>(mask.row_offsets[row + 1]); ++i) {
      const std::int32_t col = mask.col_indices[i];
      if (col < 0 || col >= num_cols) {
        return corrupt(fmt::format("col_indices[{}]: {}, expected 0 to {}", i, col, num_cols - 1));
      }
      if (col <= before) {
        return corrupt(fmt::format("col_indices[{}]: {} is not greater than {} before it in row {}",
                                   i, col, before, row));
      }
      before = col;
      const std::int32_t index = mask.bitmap_index[i];
      FDMA_TRY_VOID(check_index(i, index, BcsrMask::kFullBlock, extents.size()));
      if (index == BcsrMask::kFullBlock) continue;
      const auto tile_row = static_cast<std::int64_t>(row);
      FDMA_TRY_VOID(check_padding(
          "bitmap_index", i, extents[static_cast<std::size_t>(index)],
          existing_cells(mask.q_len, mask.kv_len, mask.block, tile_row, col), tile_row, col));
    }
  }
  return {};
}

}  // namespace

Result<void> validate(const BlockBitset& mask, ValidationLevel level) {
  FDMA_TRY_VOID(check_sizes(mask));
  if (level == ValidationLevel::sizes) return {};
  FDMA_TRY_VOID(check_structure(mask));
  if (level == ValidationLevel::structure) return {};
  const BlockBitset canonical = bitset_from_segment(segment_from_bitset(mask));
  FDMA_TRY_VOID(check_canonical("active", mask.active, canonical.active));
  FDMA_TRY_VOID(check_canonical("full", mask.full, canonical.full));
  FDMA_TRY_VOID(
      check_canonical("partial_offsets", mask.partial_offsets, canonical.partial_offsets));
  FDMA_TRY_VOID(check_canonical("bitmap_index", mask.bitmap_index, canonical.bitmap_index));
  return check_canonical("bitmaps", mask.bitmaps, canonical.bitmaps);
}

Result<void> validate(const BcsrMask& mask, ValidationLevel level) {
  FDMA_TRY_VOID(check_sizes(mask));
  if (level == ValidationLevel::sizes) return {};
  FDMA_TRY_VOID(check_structure(mask));
  if (level == ValidationLevel::structure) return {};
  const BcsrMask canonical = bcsr_from_segment(segment_from_bcsr(mask));
  FDMA_TRY_VOID(check_canonical("row_offsets", mask.row_offsets, canonical.row_offsets));
  FDMA_TRY_VOID(check_canonical("col_indices", mask.col_indices, canonical.col_indices));
  FDMA_TRY_VOID(check_canonical("bitmap_index", mask.bitmap_index, canonical.bitmap_index));
  return check_canonical("bitmaps", mask.bitmaps, canonical.bitmaps);
}

}  // namespace fdma
