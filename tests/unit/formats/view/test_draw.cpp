// Tests drawings on a terminal.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/draw.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

TEST(Draw, TellsFullPartialAndEmpty) {
  const BlockMask mask = testing::block_mask_of(
      testing::make_cells(60, 60, [](auto q, auto k) { return k <= q; }), {16, 16});
  DrawOptions ascii;
  ascii.unicode = false;
  EXPECT_EQ(
      draw(mask, 0, ascii),
      "+...\n"
      "#+..\n"
      "##+.\n"
      "###+\n"
      "# full 6, + partial 4, . empty 6; 60 x 60 cells, blocks 16 x 16, 1830 allowed pairs\n");
  EXPECT_EQ(draw(mask, 0).substr(0, 16), "▒···\n█▒");
}

TEST(Draw, CoarseCharactersAreFullOrEmptyOnlyIfAllTheirTilesAre) {
  EXPECT_TRUE(rc::check("coarse", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const Cells cells = testing::random_cells(rng, pick(rng, 1, 400), pick(rng, 1, 400));
    const BlockShape block{16, static_cast<std::int32_t>(16 * pick(rng, 1, 3))};
    const BlockMask mask = testing::block_mask_of(cells, block);
    DrawOptions options;
    options.unicode = false;
    options.max_width = static_cast<int>(pick(rng, 1, 20));
    options.max_height = static_cast<int>(pick(rng, 1, 20));
    const std::string text = draw(mask, 0, options);
    const std::int64_t rows = ceil_div(cells.q_len, block.block_q);
    const std::int64_t cols = ceil_div(cells.kv_len, block.block_kv);
    const std::int64_t tall = ceil_div(rows, options.max_height);
    const std::int64_t wide = ceil_div(cols, options.max_width);
    std::string expected;
    for (std::int64_t r = 0; r < rows; r += tall) {
      for (std::int64_t c = 0; c < cols; c += wide) {
        bool any = false, all = true;
        for (std::int64_t q = r * block.block_q;
             q < std::min((r + tall) * block.block_q, cells.q_len); ++q) {
          for (std::int64_t k = c * block.block_kv;
               k < std::min((c + wide) * block.block_kv, cells.kv_len); ++k) {
            (cells.get(q, k) ? any : all) = cells.get(q, k);
          }
        }
        expected += !any ? '.' : all ? '#' : '+';
      }
      expected += '\n';
    }
    RC_ASSERT(text.substr(0, expected.size()) == expected);
    RC_ASSERT(text.back() == '\n');
  }));
}

TEST(Draw, TakesEmptyLengths) {
  const std::string text = draw(testing::block_mask_of(Cells(0, 0), {16, 16}), 0);
  EXPECT_NE(text.find("0 x 0 cells"), std::string::npos);
}

}  // namespace
}  // namespace fdma
