// What is told of masks with patterns: the same as of their tiles written out.
#include <gtest/gtest.h>

#include "cell_oracle.hpp"
#include "fdma/formats/draw.hpp"
#include "fdma/formats/mask_image.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "segment/long_patterns.hpp"
#include "segment/pattern_masks.hpp"

namespace fdma {
namespace {

using testing::pick;

// The masks of one trial, with patterns and without.
struct Pair {
  BlockMask mask, plain;
};

Pair random_pair(std::mt19937& rng, int trial) {
  SegmentMask mask =
      trial % 2 == 0 ? testing::long_pattern_mask(rng) : testing::random_pattern_case(rng).mask;
  const MaskShape shape{1, 1, {mask.q_len}, {mask.kv_len}};
  const BlockShape block = mask.block;
  BlockMask plain = make_block_mask(shape, block, {expand_patterns(mask)});
  return {make_block_mask(shape, block, {std::move(mask)}), std::move(plain)};
}

const SegmentMask& segments(const BlockMask& mask) {
  return std::get<std::vector<SegmentMask>>(mask.groups).front();
}

TEST(PatternViews, CountTheTilesAndCellsOfThePattern) {
  std::mt19937 rng(2);
  for (int trial = 0; trial < 400; ++trial) {
    const Pair pair = random_pair(rng, trial);
    const GroupStatistics of_pattern = measure(pair.mask, true).groups.front();
    const GroupStatistics expected = measure(pair.plain, true).groups.front();
    EXPECT_EQ(of_pattern.tiles.full, expected.tiles.full) << trial;
    EXPECT_EQ(of_pattern.tiles.partial, expected.tiles.partial) << trial;
    EXPECT_EQ(of_pattern.tiles.empty, expected.tiles.empty) << trial;
    EXPECT_EQ(of_pattern.tiles.allowed_pairs, expected.tiles.allowed_pairs) << trial;
    if (segments(pair.mask).has_patterns()) {
      EXPECT_EQ(of_pattern.distinct_bitmaps, expected.distinct_bitmaps) << trial;
    }
    for (const MaskFormat format :
         {MaskFormat::parametric, MaskFormat::columns, MaskFormat::dense}) {
      const auto at = static_cast<std::size_t>(format);
      EXPECT_EQ(of_pattern.bytes[at], expected.bytes[at]) << trial << " " << to_string(format);
    }
  }
}

TEST(PatternViews, DrawTheTilesOfThePattern) {
  std::mt19937 rng(3);
  for (int trial = 0; trial < 400; ++trial) {
    const Pair pair = random_pair(rng, trial);
    DrawOptions options;
    options.max_width = static_cast<int>(pick(rng, 1, 60));
    options.max_height = static_cast<int>(pick(rng, 1, 60));
    EXPECT_EQ(draw(pair.mask, 0, options), draw(pair.plain, 0, options)) << trial;
  }
}

TEST(PatternViews, RasterizeTheCellsOfThePattern) {
  std::mt19937 rng(4);
  for (int trial = 0; trial < 400; ++trial) {
    const Pair pair = random_pair(rng, trial);
    const auto max_side = static_cast<std::int32_t>(pick(rng, 1, 130));
    const MaskImage image = rasterize(segments(pair.mask), max_side);
    const MaskImage expected = rasterize(segments(pair.plain), max_side);
    EXPECT_EQ(image.kinds, expected.kinds) << trial;
    EXPECT_EQ(image.densities, expected.densities) << trial;
  }
}

}  // namespace
}  // namespace fdma
