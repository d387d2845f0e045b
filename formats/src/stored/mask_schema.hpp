// The arrays of every format as a mask file of version 2 holds them: one list for writer and
// reader. docs/file-format.md describes the same for users.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "fdma/formats/block_mask.hpp"

namespace fdma::io {

inline constexpr std::int64_t kSchemaVersion = 2;
/// Segment masks may have patterns from this version on.
inline constexpr std::int64_t kPatternVersion = 2;
/// mask_hash is compared with the cells from this version on. Files of version 1 may hold a hash of
/// another definition.
inline constexpr std::int64_t kMaskHashVersion = 2;
inline constexpr const char* kMasksGroup = "masks";
inline constexpr const char* kGroupsName = "groups";
inline constexpr const char* kGroupMapName = "group_of";
/// Attributes that are 1 or absent.
inline constexpr const char* kPerBatchName = "is_per_batch";
inline constexpr const char* kPerHeadName = "is_per_head";

/// A longer spec is stored as a dataset, because an object header holds 64 KiB in all.
inline constexpr std::size_t kMaxSpecAttribute = 32000;
inline constexpr std::size_t kMaxSpecBytes = std::size_t{1} << 28;

enum class ArrayType : std::uint8_t { int32, int64, uint64 };
constexpr std::int64_t size_bytes(ArrayType type) { return type == ArrayType::int32 ? 4 : 8; }

/// The extents that an array may have in the file. `width` is the number of columns of a
/// two-dimensional dataset, or kOneDimensional. `rows` is the number of rows, or kAnyRows, where
/// there are at most max_rows.
struct ArrayShape {
  std::int64_t width;
  std::int64_t rows;
  std::int64_t max_rows;
};
inline constexpr std::int64_t kOneDimensional = -1;
inline constexpr std::int64_t kAnyRows = -1;
inline constexpr std::int64_t kManyRows = std::int64_t{1} << 56;

constexpr ArrayShape exact_rows(std::int64_t rows, std::int64_t width = kOneDimensional) {
  return {width, rows, rows};
}
constexpr ArrayShape at_most(std::int64_t max_rows, std::int64_t width = kOneDimensional) {
  return {width, kAnyRows, max_rows};
}
/// a * b for a, b >= 0, at most kManyRows.
constexpr std::int64_t limited_product(std::int64_t a, std::int64_t b) {
  return b != 0 && a > kManyRows / b ? kManyRows : std::min(a * b, kManyRows);
}

/// Calls visit(name, vector, type, shape) for every array that each mask of this type has. Lengths
/// and block of the mask are set. The elements of a vector are the numbers of its rows side by side, except TileRun (four
/// 32-bit numbers and a 64-bit one), which is stored as five int64. The integers of ParametricMask
/// are the dataset `parameters`, which the callers handle themselves.
template <class Mask, class Visit>
void for_each_array(Mask& mask, Visit&& visit) {
  using M = std::remove_const_t<Mask>;
  using enum ArrayType;
  if constexpr (std::is_same_v<M, ParametricMask>) {
    visit("cu_seqlens", mask.cu_seqlens, int64, at_most(kManyRows));
  } else if constexpr (std::is_same_v<M, ColumnIntervals>) {
    visit("offsets", mask.offsets, int64, exact_rows(mask.kv_len + 1));
    visit("intervals", mask.intervals, int32,
          at_most(limited_product(mask.kv_len, (mask.q_len + 1) / 2), 2));
  } else if constexpr (std::is_same_v<M, DenseBits>) {
    visit("words", mask.words, uint64, exact_rows(mask.q_len, mask.words_per_row()));
  } else {
    const std::int64_t tile_rows = mask.num_tile_rows();
    const std::int64_t tiles = limited_product(tile_rows, mask.num_tile_cols());
    const std::int64_t bitmap_words = std::int64_t{mask.block.block_q} * mask.block.block_kv / 64;
    if constexpr (std::is_same_v<M, SegmentMask>) {
      visit("runs", mask.runs, int64, at_most(tile_rows, 5));
      visit("segments", mask.segments, int32, at_most(tiles, 6));
      // A pattern may have more tiles than the mask.
      visit("bitmaps", mask.bitmaps, uint64, at_most(tiles + kMaxPatternTiles, bitmap_words));
      visit("row_offsets", mask.row_offsets, int64,
            at_most(limited_product(tiles, mask.block.block_q) + 1));
      visit("row_intervals", mask.row_intervals, int32,
            at_most(limited_product(limited_product(tiles, mask.block.block_q),
                                    (mask.block.block_kv + 1) / 2),
                    2));
      visit("column_offsets", mask.column_offsets, int64, at_most(mask.kv_len + 1));
      visit("column_intervals", mask.column_intervals, int32,
            at_most(limited_product(mask.kv_len, (mask.q_len + 1) / 2), 2));
    } else if constexpr (std::is_same_v<M, BlockBitset>) {
      visit("active", mask.active, uint64, exact_rows(tile_rows, mask.words_per_row()));
      visit("full", mask.full, uint64, exact_rows(tile_rows, mask.words_per_row()));
      visit("partial_offsets", mask.partial_offsets, int64, exact_rows(tile_rows + 1));
      visit("bitmap_index", mask.bitmap_index, int32, at_most(tiles));
      visit("bitmaps", mask.bitmaps, uint64, at_most(tiles, bitmap_words));
    } else {
      static_assert(std::is_same_v<M, BcsrMask>);
      visit("row_offsets", mask.row_offsets, int64, exact_rows(tile_rows + 1));
      visit("col_indices", mask.col_indices, int32, at_most(tiles));
      visit("bitmap_index", mask.bitmap_index, int32, at_most(tiles));
      visit("bitmaps", mask.bitmaps, uint64, at_most(tiles, bitmap_words));
    }
  }
}

/// The same for the arrays that only segment masks with patterns have. A file holds all of them or
/// none.
template <class Mask, class Visit>
void for_each_pattern_array(Mask& mask, Visit&& visit) {
  static_assert(std::is_same_v<std::remove_const_t<Mask>, SegmentMask>);
  using enum ArrayType;
  visit("patterns", mask.patterns, int32, at_most(kMaxPatternTiles, 4));
  visit("pattern_offsets", mask.pattern_offsets, int64, at_most(kMaxPatternTiles + 1));
  visit("pattern_tiles", mask.pattern_tiles, int32, at_most(kMaxPatternTiles, 2));
}

/// The same for every array that a file holds of this mask.
template <class Mask, class Visit>
void for_each_stored_array(const Mask& mask, Visit&& visit) {
  for_each_array(mask, visit);
  if constexpr (std::is_same_v<Mask, SegmentMask>) {
    if (mask.has_patterns()) for_each_pattern_array(mask, visit);
  }
}

/// Columns of the dataset `parameters` of a parametric mask, in order.
inline constexpr std::int64_t ParametricMask::*kParameters[] = {
    &ParametricMask::pos_offset, &ParametricMask::left, &ParametricMask::right,
    &ParametricMask::prefix,     &ParametricMask::sink, &ParametricMask::kv_begin,
    &ParametricMask::kv_end};

}  // namespace fdma::io
