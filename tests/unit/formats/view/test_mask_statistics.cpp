// The counts of a mask as it is stored: those of its tiles, however these are stored.
#include <gtest/gtest.h>

#include <algorithm>

#include "fdma/formats/mask_statistics.hpp"

namespace fdma {
namespace {

// 2 x 2 tiles of 16 x 16 cells, all bitmaps: an empty and a full one above, two with some cells
// below.
SegmentMask bitmaps_of_all_classes(std::int64_t length) {
  SegmentMask mask;
  mask.q_len = mask.kv_len = length;
  mask.block = {16, 16};
  mask.bitmaps.assign(3 * 4, 0);
  for (std::size_t w = 4; w < 8; ++w) mask.bitmaps[w] = ~std::uint64_t{0};
  mask.bitmaps[8] = 7;
  mask.segments = {{0, 1, 0, 0, SegmentKind::bitmap, 0},
                   {1, 2, 0, 0, SegmentKind::bitmap, 1},
                   {0, 2, 0, 0, SegmentKind::bitmap, 2}};
  mask.runs.resize(2);
  mask.runs[0] = {0, 1, 1, 2, 0};
  mask.runs[1] = {1, 1, 1, 1, 2};
  return mask;
}

TEST(Count, TellsTheClassOfATileByItsCells) {
  const SegmentMask mask = bitmaps_of_all_classes(32);
  const BlockMask whole = make_block_mask(MaskShape{1, 1, {32}, {32}}, mask.block, {mask});
  const TileCounts tiles = count(whole, mask.block).groups.front().tiles;
  EXPECT_EQ(tiles.empty, 1);
  EXPECT_EQ(tiles.full, 1);
  EXPECT_EQ(tiles.partial, 2);
  EXPECT_EQ(tiles.allowed_pairs, 256 + 2 * 3);
}

TEST(Count, IsThatOfMeasure) {
  SegmentMask mask = bitmaps_of_all_classes(32);
  mask.segments[0].data_index = 2;
  mask.segments[1] = {1, 2, 0, 0, SegmentKind::full, 0};
  std::fill_n(mask.bitmaps.begin(), 8, std::uint64_t{5});
  const BlockMask whole = make_block_mask(MaskShape{1, 1, {32}, {32}}, mask.block, {mask});
  const TileCounts counted = count(whole, mask.block).groups.front().tiles;
  const TileCounts measured = measure(whole, true).groups.front().tiles;
  EXPECT_EQ(counted.full, 1);
  EXPECT_EQ(counted.full, measured.full);
  EXPECT_EQ(counted.partial, measured.partial);
  EXPECT_EQ(counted.empty, measured.empty);
  EXPECT_EQ(counted.allowed_pairs, measured.allowed_pairs);
}

}  // namespace
}  // namespace fdma
