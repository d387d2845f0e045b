// Makes masks whose tiles are all of one kind. SegmentMask chooses the stored form by its bytes
// (segment_builder.hpp), so each mask is made such that its kind is the smallest:
//   bitmaps   random cells: no other form is as small
//   rows      one interval per row, all different: a panel takes 8 bytes for each, distinct bitmaps
//             block_q * block_kv / 8 per tile
//   columns   keys with one random live range over several tile rows: 16 bytes per key in all. Gather
//             masks have such tiles, too
#include "calibrate/masks.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "plan/full_mask.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kTileRows = 4;
constexpr std::int64_t kLongKeys = 2048;
/// Enough keys that keys and values of a few heads fit no core's own cache.
constexpr std::int64_t kL2MissKeys = 8192;
/// In sparse masks one key in this many is live.
constexpr std::int64_t kSparse = 16;

BlockMask as_block_mask(SegmentMask mask) {
  MaskShape shape;
  shape.q_lens = {mask.q_len};
  shape.kv_lens = {mask.kv_len};
  const BlockShape block = mask.block;
  std::vector<SegmentMask> masks;
  masks.push_back(std::move(mask));
  return make_block_mask(std::move(shape), block, std::move(masks));
}

BlockMask full_rows(BlockShape tile, std::int64_t num_rows, std::int64_t num_keys) {
  AttentionShape shape;
  shape.q_lens = {num_rows * tile.block_q};
  shape.kv_lens = {num_keys};
  return full_mask(shape, tile);
}

DenseBits no_cells(std::int64_t num_rows) {
  DenseBits cells;
  cells.q_len = num_rows;
  cells.kv_len = kLongKeys;
  cells.words.assign(static_cast<std::size_t>(cells.q_len * cells.words_per_row()), 0);
  return cells;
}

/// A mask with half of the cells of keys k with k % step == 0.
BlockMask random_bitmaps(BlockShape tile, std::int64_t step, std::mt19937_64& random) {
  std::uint64_t keys = 0;
  for (std::int64_t k = 0; k < 64; k += step) keys |= std::uint64_t{1} << k;
  DenseBits cells = no_cells(kTileRows * tile.block_q);
  for (std::uint64_t& word : cells.words) word = random() & keys;
  return as_block_mask(segment_from_dense(cells, tile));
}

/// A mask in which each row but one in 16 sees one interval: most keys, or if `is_sparse` a few
/// somewhere.
BlockMask row_intervals(BlockShape tile, bool is_sparse, std::mt19937_64& random) {
  constexpr std::int64_t kFewKeys = 4;
  DenseBits cells = no_cells(kTileRows * tile.block_q);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
  };
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    if (q % 16 == 0) continue;
    const std::int64_t begin = below(is_sparse ? kLongKeys - kFewKeys : kLongKeys / 4);
    const std::int64_t end = is_sparse ? begin + kFewKeys : kLongKeys - below(kLongKeys / 4);
    set_bits(cells.words.data() + q * cells.words_per_row(), begin, end);
  }
  return as_block_mask(segment_from_dense(cells, tile));
}

/// A mask in which each key is live from a random row of the first tile row to one of the last. One
/// key in 8 (or, if `is_sparse`, all but one in kSparse) is never live.
BlockMask live_ranges(BlockShape tile, bool is_sparse, std::mt19937_64& random) {
  ColumnIntervals keys;
  keys.q_len = kTileRows * tile.block_q;
  keys.kv_len = kLongKeys;
  keys.offsets.push_back(0);
  const auto within_tile = [&] {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(tile.block_q));
  };
  for (std::int64_t key = 0; key < keys.kv_len; ++key) {
    const bool lives = is_sparse ? random() % kSparse == 0 : random() % 8 != 0;
    const std::int32_t begin = within_tile();
    const std::int32_t end = static_cast<std::int32_t>(keys.q_len) - within_tile();
    if (lives) keys.intervals.push_back({begin, end});
    keys.offsets.push_back(static_cast<std::int64_t>(keys.intervals.size()));
  }
  return as_block_mask(segment_from_columns(keys, tile));
}

constexpr BlockShape kOverlapTile{128, 128};
constexpr std::int64_t kOverlapRows = kOverlapTileRows * kOverlapTile.block_q;
/// Masks with few partial tiles or keys have one in this many.
constexpr std::int64_t kFewPartial = 4;

/// Whether tiles of column `tile` are partial in masks where only some are.
bool is_partial_column(std::int64_t tile) { return tile % kFewPartial == kFewPartial - 1; }

/// Partial tiles have half of their cells, other tiles all. If `is_shared` these are the same cells
/// in every tile, so that one bitmap serves all tiles.
BlockMask overlap_bitmaps(bool is_all, bool is_shared, std::mt19937_64& random) {
  DenseBits cells = no_cells(kOverlapRows);
  const std::int64_t words_per_tile = kOverlapTile.block_kv / 64;
  std::vector<std::uint64_t> shared(
      static_cast<std::size_t>(kOverlapTile.block_q * words_per_tile));
  for (std::uint64_t& word : shared) word = random();
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    std::uint64_t* row = cells.words.data() + q * cells.words_per_row();
    for (std::int64_t w = 0; w < cells.words_per_row(); ++w) {
      const std::uint64_t half =
          is_shared ? shared[static_cast<std::size_t>(q % kOverlapTile.block_q * words_per_tile +
                                                      w % words_per_tile)]
                    : random();
      row[w] = is_all || is_partial_column(w / words_per_tile) ? half : ~std::uint64_t{0};
    }
  }
  return as_block_mask(segment_from_dense(cells, kOverlapTile));
}

/// Each row sees an interval of its own of every partial tile, from the tile's first key on. If all
/// tiles are partial, each row but one in 16 sees one interval over all of them, with most of their
/// keys.
BlockMask overlap_row_intervals(bool is_all, std::mt19937_64& random) {
  DenseBits cells = no_cells(kOverlapRows);
  const std::int64_t side = kOverlapTile.block_kv;
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
  };
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    std::uint64_t* row = cells.words.data() + q * cells.words_per_row();
    if (is_all) {
      if (q % 16 != 0) set_bits(row, below(side), kLongKeys - below(side));
      continue;
    }
    for (std::int64_t tile = 0; tile < kLongKeys / side; ++tile) {
      set_bits(row, tile * side, tile * side + (is_partial_column(tile) ? below(side) : side));
    }
  }
  return as_block_mask(segment_from_dense(cells, kOverlapTile));
}

/// In partial columns one key in 8 is never live. The others are live from the first row to a
/// random one, and few of them end in one tile.
BlockMask overlap_live_ranges(bool is_all, std::mt19937_64& random) {
  ColumnIntervals keys;
  keys.q_len = kOverlapRows;
  keys.kv_len = kLongKeys;
  keys.offsets.push_back(0);
  for (std::int64_t key = 0; key < keys.kv_len; ++key) {
    std::int64_t end = keys.q_len;
    if (is_all || is_partial_column(key / kOverlapTile.block_kv)) {
      end = random() % 8 == 0 ? 0 : 1 + static_cast<std::int64_t>(random() % (5 * keys.q_len / 4));
    }
    if (end > 0) {
      keys.intervals.push_back({0, static_cast<std::int32_t>(std::min(end, keys.q_len))});
    }
    keys.offsets.push_back(static_cast<std::int64_t>(keys.intervals.size()));
  }
  return as_block_mask(segment_from_columns(keys, kOverlapTile));
}

/// One key in this many is live, at random places.
constexpr std::int64_t kScattered = 8;

/// A mask with `num_keys` keys that are live in every tile row. They are live in all of its rows,
/// or if `needs_masks` one in kFewPartial is live from a row of its upper half to one of its lower
/// half.
BlockMask scattered_keys(std::int64_t num_keys, bool needs_masks, std::mt19937_64& random) {
  const std::int64_t side = kOverlapTile.block_q;
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
  };
  ColumnIntervals keys;
  keys.q_len = kOverlapRows;
  keys.kv_len = num_keys * kScattered;
  keys.offsets.push_back(0);
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    keys.intervals.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
  };
  for (std::int64_t i = 0; i < num_keys; ++i) {
    const std::int64_t alive = below(kScattered);
    const bool is_partial = needs_masks && i % kFewPartial == 0;
    for (std::int64_t key = 0; key < kScattered; ++key) {
      if (key == alive && !is_partial) add(0, keys.q_len);
      for (std::int64_t row = 0; key == alive && is_partial && row < kOverlapTileRows; ++row) {
        add(row * side + 1 + below(side / 2), (row + 1) * side - below(side / 2 - 1));
      }
      keys.offsets.push_back(static_cast<std::int64_t>(keys.intervals.size()));
    }
  }
  return as_block_mask(segment_from_columns(keys, kOverlapTile));
}

}  // namespace

std::vector<CalibrationMask> calibration_masks(BlockShape tile) {
  std::mt19937_64 random(20261121);
  std::vector<CalibrationMask> masks;
  for (const std::int64_t num_tiles : {1, 4}) {
    masks.push_back({full_rows(tile, kTileRows, num_tiles * tile.block_kv)});
  }
  masks.push_back({full_rows(tile, kTileRows, kLongKeys)});
  masks.push_back({full_rows(tile, kTileRows / 2, kL2MissKeys)});
  masks.push_back({random_bitmaps(tile, 1, random)});
  masks.push_back({random_bitmaps(tile, kSparse, random)});
  masks.push_back({row_intervals(tile, false, random)});
  masks.push_back({row_intervals(tile, true, random)});
  for (const ColumnMode columns : {ColumnMode::scan, ColumnMode::gather}) {
    masks.push_back({live_ranges(tile, false, random), columns});
    masks.push_back({live_ranges(tile, true, random), columns});
  }
  return masks;
}

std::vector<OverlapMask> overlap_masks() {
  std::mt19937_64 random(20261121);
  std::vector<OverlapMask> masks;
  for (const std::int64_t num_tiles : {4, 8, 16, 64}) {
    masks.push_back({full_rows(kOverlapTile, kOverlapTileRows, num_tiles * kOverlapTile.block_kv)});
  }
  // More work tiles per worker, which separate the cost of a work tile from that of a call.
  masks.push_back({full_rows(kOverlapTile, 4 * kOverlapTileRows, 4 * kOverlapTile.block_kv)});
  for (const bool is_all : {false, true}) {
    for (const bool is_shared : {false, true}) {
      masks.push_back(
          {overlap_bitmaps(is_all, is_shared, random), PlanSegmentKind::bitmap, is_all});
    }
    masks.push_back({overlap_row_intervals(is_all, random), PlanSegmentKind::rows, is_all});
    masks.push_back({overlap_live_ranges(is_all, random), PlanSegmentKind::columns, is_all});
  }
  return masks;
}

std::vector<OverlapMask> gather_masks() {
  struct Lists {
    std::int64_t whole_chunks, last_keys;
  };
  constexpr Lists kLists[] = {{3, 32}, {3, 64}, {3, 96}, {4, 0}, {8, 0}, {15, 32}, {16, 0}};
  std::mt19937_64 random(20261124);
  std::vector<OverlapMask> masks;
  for (const bool needs_masks : {false, true}) {
    for (const Lists& lists : kLists) {
      const std::int64_t num_keys = lists.whole_chunks * kOverlapTile.block_kv + lists.last_keys;
      masks.push_back(
          {scattered_keys(num_keys, needs_masks, random), PlanSegmentKind::gather, true});
    }
  }
  return masks;
}

}  // namespace fdma
