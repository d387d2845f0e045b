// Crops in every format, at block borders and elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

TEST(Crop, KeepsTheCellsOfTheWindow) {
  EXPECT_TRUE(rc::check("crops", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 180), kv_len = pick(rng, 0, 180);
    const BlockMask origin =
        testing::random_block_mask(rng, q_len, kv_len, testing::random_block(rng));
    for (const MaskFormat format : kMaskFormats) {
      const auto mask = convert(origin, format, origin.block);
      if (!mask) continue;
      CropRange range{};
      range.q_begin = pick(rng, 0, q_len);
      range.q_end = pick(rng, range.q_begin, q_len);
      range.kv_begin = pick(rng, 0, kv_len);
      range.kv_end = pick(rng, range.kv_begin, kv_len);
      range.batch_begin = pick(rng, 0, origin.shape.num_batches - 1);
      range.batch_end = pick(rng, range.batch_begin + 1, origin.shape.num_batches);
      range.head_begin = pick(rng, 0, origin.shape.num_heads - 1);
      range.head_end = pick(rng, range.head_begin + 1, origin.shape.num_heads);
      const auto cut = crop(*mask, range);
      RC_ASSERT(cut.has_value());
      RC_ASSERT(cut->format() == mask->format());
      RC_ASSERT(validate(*cut, ValidationLevel::canonical).has_value());
      for (std::int64_t b = 0; b < cut->shape.num_batches; ++b) {
        for (std::int64_t h = 0; h < cut->shape.num_heads; ++h) {
          const Cells whole =
              testing::cells_of(*mask, mask->group(range.batch_begin + b, range.head_begin + h));
          RC_ASSERT(
              testing::cells_of(*cut, cut->group(b, h)) ==
              testing::crop_cells(whole, range.q_begin, range.q_end, range.kv_begin, range.kv_end));
        }
      }
    }
  }));
}

TEST(Crop, AddsOriginsUp) {
  const BlockMask mask = testing::block_mask_of(
      testing::make_cells(100, 100, [](auto q, auto k) { return k <= q; }), {16, 16});
  const auto once = crop(mask, {10, 90, 20, 80, 0, 1, 0, 1});
  ASSERT_TRUE(once);
  const auto twice = crop(*once, {5, 50, 7, 60, 0, 1, 0, 1});
  ASSERT_TRUE(twice);
  EXPECT_EQ(twice->origin, (MaskOrigin{15, 27, 0, 0}));
  EXPECT_TRUE(equal_cells(*twice, [&] {
    BlockMask direct = *crop(mask, {15, 60, 27, 80, 0, 1, 0, 1});
    return direct;
  }()));
}

TEST(Crop, TakesElementsOfDifferentLengths) {
  const auto causal = [](auto q, auto k) { return k <= q; };
  std::vector<SegmentMask> masks;
  for (const std::int64_t length : {40, 70}) {
    masks.push_back(
        segment_from_dense(dense_of(testing::make_cells(length, length, causal)), {16, 16}));
  }
  const std::vector<std::int32_t> of{0, 1};
  const BlockMask mask =
      make_block_mask({2, 1, {40, 70}, {40, 70}}, {16, 16}, std::move(masks), of);
  const auto inside = crop(mask, {8, 40, 0, 40, 0, 2, 0, 1});
  ASSERT_TRUE(inside);
  EXPECT_EQ(inside->num_groups(), 1);  // they differ beyond row 40 only
  const auto outside = crop(mask, {8, 41, 0, 40, 0, 2, 0, 1});
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(outside.error().message,
            "crop: query rows [8, 41), expected a range inside [0, 40) of batch element 0");
  EXPECT_TRUE(crop(mask, {8, 70, 0, 70, 1, 2, 0, 1}));
}

TEST(Crop, RejectsRangesOutsideTheMask) {
  const BlockMask mask = testing::block_mask_of(Cells(10, 20), {16, 16});
  for (const CropRange& range :
       {CropRange{0, 11, 0, 20, 0, 1, 0, 1}, CropRange{-1, 5, 0, 20, 0, 1, 0, 1},
        CropRange{5, 4, 0, 20, 0, 1, 0, 1}, CropRange{0, 10, 0, 21, 0, 1, 0, 1},
        CropRange{0, 10, 0, 20, 0, 2, 0, 1}, CropRange{0, 10, 0, 20, 0, 1, 0, 0}}) {
    const auto cut = crop(mask, range);
    ASSERT_FALSE(cut);
    EXPECT_EQ(cut.error().code, ErrorCode::invalid_argument);
  }
}

TEST(Crop, OfCausalOverAMillionTokensStaysSmall) {
  const std::int64_t n = std::int64_t{1} << 20;
  ParametricMask causal;
  causal.q_len = causal.kv_len = causal.kv_end = n;
  causal.right = 0;
  const BlockMask mask =
      make_block_mask({1, 1, {n}, {n}}, {128, 128}, {segment_from_parametric(causal, {128, 128})});
  const auto cut = crop(mask, {1001, n, 77, n, 0, 1, 0, 1});
  ASSERT_TRUE(cut);
  EXPECT_LT(cut->size_bytes(), 16384);
  const auto same =
      crop(*convert(mask, MaskFormat::parametric, {128, 128}), {1001, n, 77, n, 0, 1, 0, 1});
  ASSERT_TRUE(same);
  EXPECT_EQ(same->format(), MaskFormat::parametric);
  EXPECT_TRUE(equal_cells(*cut, *same));
}

}  // namespace
}  // namespace fdma
