// Compares masks as pixels with their cells.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/mask_image.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

SegmentMask segments_of(const Cells& cells, BlockShape block) {
  return segment_from_dense(testing::dense_of(cells), block);
}

// Counts the live and the existing cells of [q0, q1) x [k0, k1) cut to the mask.
std::pair<std::int64_t, std::int64_t> count(const Cells& cells, std::int64_t q0, std::int64_t q1,
                                            std::int64_t k0, std::int64_t k1) {
  std::int64_t live = 0;
  std::int64_t all = 0;
  for (std::int64_t q = q0; q < std::min(q1, cells.q_len); ++q) {
    for (std::int64_t k = k0; k < std::min(k1, cells.kv_len); ++k) {
      live += cells.get(q, k) ? 1 : 0;
      ++all;
    }
  }
  return {live, all};
}

PixelKind kind_of(std::pair<std::int64_t, std::int64_t> counts) {
  if (counts.first == 0) return PixelKind::empty;
  return counts.first == counts.second ? PixelKind::full : PixelKind::partial;
}

TEST(Rasterize, PixelsAreTheirCells) {
  EXPECT_TRUE(rc::check("pixels", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const Cells cells = testing::random_cells(rng, pick(rng, 1, 160), pick(rng, 1, 160));
    const BlockShape block = testing::random_block(rng);
    const auto max_side = static_cast<std::int32_t>(pick(rng, 1, 170));
    const MaskImage image = rasterize(segments_of(cells, block), max_side);
    RC_ASSERT(std::max(image.width, image.height) <= max_side);
    RC_ASSERT(image.height == ceil_div(cells.q_len, image.cells_per_pixel_q));
    RC_ASSERT(image.width == ceil_div(cells.kv_len, image.cells_per_pixel_kv));
    RC_ASSERT(image.kinds.size() == static_cast<std::size_t>(image.width * image.height));
    const bool is_inside =
        image.cells_per_pixel_q <= block.block_q && image.cells_per_pixel_kv <= block.block_kv;
    const std::int64_t area_q = is_inside ? block.block_q : image.cells_per_pixel_q;
    const std::int64_t area_kv = is_inside ? block.block_kv : image.cells_per_pixel_kv;
    for (std::int64_t y = 0; y < image.height; ++y) {
      for (std::int64_t x = 0; x < image.width; ++x) {
        const auto at = static_cast<std::size_t>(y * image.width + x);
        const std::int64_t q = y * image.cells_per_pixel_q;
        const std::int64_t k = x * image.cells_per_pixel_kv;
        const auto [live, all] =
            count(cells, q, q + image.cells_per_pixel_q, k, k + image.cells_per_pixel_kv);
        RC_ASSERT(image.densities[at] ==
                  static_cast<float>(static_cast<double>(live) / static_cast<double>(all)));
        // A pixel inside one tile has the kind of that tile.
        const std::int64_t top = q / area_q * area_q;
        const std::int64_t left = k / area_kv * area_kv;
        RC_ASSERT(image.kinds[at] ==
                  kind_of(count(cells, top, top + area_q, left, left + area_kv)));
      }
    }
  }));
}

TEST(Rasterize, AMillionTokensFitIntoTheirPixels) {
  SegmentMask mask;
  mask.q_len = mask.kv_len = std::int64_t{1} << 20;
  mask.block = {128, 128};
  const std::int32_t rows = mask.num_tile_rows();
  mask.runs = {{0, 1, rows, 1, 0}};
  mask.segments = {{0, rows, 0, 0, SegmentKind::full, 0}};
  std::int64_t last = 0;
  const MaskImage image = rasterize(mask, 512, [&](std::int64_t done, std::int64_t total) {
    EXPECT_LE(done, total);
    last = done;
  });
  EXPECT_EQ(last, rows);
  EXPECT_EQ(image.width, 512);
  EXPECT_EQ(image.height, 512);
  EXPECT_EQ(image.cells_per_pixel_q, 2048);
  EXPECT_EQ(image.kinds, std::vector<PixelKind>(512 * 512, PixelKind::full));
}

TEST(Rasterize, AMaskWithoutCellsHasNoPixels) {
  for (const auto& [q_len, kv_len] : {std::pair{0, 0}, {0, 40}, {40, 0}}) {
    const MaskImage image = rasterize(segments_of(Cells(q_len, kv_len), {16, 16}), 64);
    EXPECT_EQ(image.height * image.width, 0);
    EXPECT_TRUE(image.kinds.empty());
  }
}

}  // namespace
}  // namespace fdma
