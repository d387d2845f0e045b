// Few items, long rows: query heads that share a tile, rows that are split over several items.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Multiprocessors of an H100 or H200: the workers that sm90 plans are split for unless told
/// otherwise.
inline constexpr std::int32_t kSm90Workers = 132;
/// Rows of a tile of sm90, of one head or of several.
inline constexpr std::int32_t kSm90TileRows = 128;
inline constexpr std::int32_t kSm90TileKeys = 128;
inline constexpr std::int32_t kMaxHeadsPerTile = 8;

/// The smallest power of two that holds a group of query heads, at most kMaxHeadsPerTile.
///
/// Example     groups of 1, 3, 7, 12 heads: 1, 4, 8, 8
std::int32_t heads_per_tile_of_group(std::int32_t group_size);

/// How many heads share a tile of an sm90 plan by the automatic rule: heads_per_tile_of_group where
/// that makes at least a tenth fewer items and the heads of every tile have the same mask; else 1.
/// Cost: O(batch * heads_q).
std::int32_t packed_heads(const BlockMask& mask, const AttentionShape& shape);

/// Tiles [first_tile, first_tile + num_tiles) of a row.
struct Piece {
  std::int32_t first_tile;
  std::int32_t num_tiles;
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// Piece `index` of `num_pieces` of a row: sizes differ by one at most, larger ones first.
Piece piece_of(std::int32_t num_tiles, std::int32_t num_pieces, std::int32_t index);

/// Predicted time of combining the split rows of a plan, in full tiles; 0 where none is split.
double combine_tiles(const AttentionPlan& plan);

/// Predicted time of a plan's items on `num_workers` workers that each take the next one when they
/// are free, and of combining its split rows; in full tiles.
double predicted_tiles(const AttentionPlan& plan, std::int32_t num_workers);

/// Parts that each row of a parametric plan is cut into, by the same prediction: 1 where that does
/// not gain 3 %.
std::int32_t formula_splits(const AttentionPlan& plan, std::int32_t num_workers);

/// Splits rows of `plan`, whose items are whole, so that predicted_tiles falls by at least 3 %;
/// leaves the plan as it is where that cannot be had. Items of section i, [sections[i],
/// sections[i + 1]) before, stay together, longest first.
///
/// Cost: O(items log workers) where workers are busy anyway; otherwise that for each size of pieces
/// that is tried, some dozens at most.
void split_rows(AttentionPlan& plan, std::span<const std::size_t> sections,
                std::int32_t num_workers);

/// Partial results that a launch of the plan leaves in its workspace.
std::int64_t num_partials(const AttentionPlan& plan);

}  // namespace fdma
