// Compares FlashMask's intervals with their definition. They are exact both ways, and the error of
// every kind of damage names it.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/interop/flash_mask.hpp"
#include "fdma/formats/validate.hpp"
#include "interop_masks.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::compiled;
using testing::pick;

// The rule of flash_mask.hpp, cell by cell.
Cells cells_of(const FlashMask& mask, std::int64_t pair) {
  return testing::make_cells(mask.q_len, mask.kv_len, [&](std::int64_t i, std::int64_t j) {
    const std::int32_t* v = mask.indices.data() + (pair * mask.kv_len + j) * mask.num_columns;
    if (mask.is_causal) {
      if (j > i + mask.kv_len - mask.q_len) return false;
      return mask.num_columns == 1 ? i < v[0] : i < v[0] || i >= v[1];
    }
    if (mask.num_columns == 2) return i < v[0] && i >= v[1];
    return (i < v[0] || i >= v[1]) && (i < v[2] || i >= v[3]);
  });
}

FlashMask random_flash_mask(std::mt19937& rng) {
  FlashMask mask;
  mask.q_len = pick(rng, 1, 150);
  mask.kv_len = pick(rng, 1, 150);
  mask.num_batches = pick(rng, 1, 2);
  mask.num_heads = pick(rng, 1, 3);
  mask.is_causal = pick(rng, 0, 1) == 1;
  mask.num_columns = mask.is_causal ? pick(rng, 1, 2) : 2 * pick(rng, 1, 2);
  const std::int64_t entries = mask.num_batches * mask.num_heads * mask.kv_len * mask.num_columns;
  for (std::int64_t i = 0; i < entries; ++i) {
    mask.indices.push_back(static_cast<std::int32_t>(pick(rng, 0, mask.q_len)));
  }
  return mask;
}

TEST(BlockMaskFromFlashMask, HasTheCellsOfTheRuleAndGoesBack) {
  EXPECT_TRUE(rc::check("rule and round trip", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const FlashMask flash = random_flash_mask(rng);
    const auto mask = block_mask_from_flash_mask(flash, testing::random_block(rng));
    ASSERT_TRUE(mask) << mask.error().message;
    ASSERT_TRUE(validate(*mask, ValidationLevel::canonical));
    for (std::int64_t pair = 0; pair < flash.num_batches * flash.num_heads; ++pair) {
      ASSERT_EQ(testing::cells_of(*mask, mask->group_of[static_cast<std::size_t>(pair)]),
                cells_of(flash, pair));
    }
    // A mask always fits in its own form, and the second export equals the first.
    FlashMaskExportOptions options;
    options.is_causal = flash.is_causal;
    options.num_columns = flash.num_columns;
    const auto exported = flash_mask_from_block_mask(*mask, options);
    ASSERT_TRUE(exported) << exported.error().message;
    const auto smallest = flash_mask_from_block_mask(*mask);
    ASSERT_TRUE(smallest);
    for (const FlashMask* form : {&*exported, &*smallest}) {
      const auto back = block_mask_from_flash_mask(*form);
      ASSERT_TRUE(back);
      ASSERT_TRUE(equal_cells(*mask, *back));
    }
    ASSERT_EQ(*flash_mask_from_block_mask(*block_mask_from_flash_mask(*exported), options),
              *exported);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(FlashMaskFromBlockMask, RoundsTripTheMaskSuite) {
  for (const auto& [name, mask] : testing::compiled_suite(2048)) {
    const auto flash = flash_mask_from_block_mask(mask);
    ASSERT_TRUE(flash) << name << ": " << flash.error().message;
    EXPECT_TRUE(equal_cells(mask, *block_mask_from_flash_mask(*flash))) << name;
  }
}

TEST(FlashMaskFromBlockMask, GivesTheArraysOfItsExample) {
  const BlockMask mask = compiled("k <= q & (q < 2 | k >= 2)", 5, 5);
  const auto flash = flash_mask_from_block_mask(mask);
  ASSERT_TRUE(flash);
  EXPECT_TRUE(flash->is_causal);
  EXPECT_EQ(flash->num_columns, 1);
  EXPECT_EQ(flash->indices, (std::vector<std::int32_t>{2, 2, 5, 5, 5}));
}

// Its own rewriting of window_size: LTS = j + left + 1, UTE = j - right, clipped.
TEST(FlashMaskFromBlockMask, WritesWindowsAsFlashMaskDoes) {
  const auto flash = flash_mask_from_block_mask(compiled("window(3, 2)", 40, 40));
  ASSERT_TRUE(flash);
  EXPECT_FALSE(flash->is_causal);
  ASSERT_EQ(flash->num_columns, 2);
  for (std::int32_t j = 0; j < 40; ++j) {
    EXPECT_EQ(flash->indices[static_cast<std::size_t>(2 * j)], std::min(j + 4, 40));
    EXPECT_EQ(flash->indices[static_cast<std::size_t>(2 * j + 1)], std::max(j - 2, 0));
  }
}

TEST(BlockMaskFromFlashMask, ReadsGroupedHeads) {
  FlashMask flash{1, 1, 1, 2, true, 1, {0, 1}};
  const auto mask = block_mask_from_flash_mask(flash, {}, 4);
  ASSERT_TRUE(mask);
  EXPECT_EQ(mask->shape.num_heads, 4);
  EXPECT_EQ(mask->group_of, (std::vector<std::int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(block_mask_from_flash_mask(flash, {}, 3).error().code, ErrorCode::shape_mismatch);
}

TEST(FlashMaskFromBlockMask, RejectsWhatTheFormCannotHold) {
  const auto comb = flash_mask_from_block_mask(compiled("q % 4 != k", 40, 40));
  ASSERT_FALSE(comb);
  EXPECT_EQ(comb.error().code, ErrorCode::unsupported);
  EXPECT_NE(comb.error().message.find("batch 0, head 0, key 0"), std::string::npos);
  FlashMaskExportOptions options;
  options.is_causal = true;
  EXPECT_FALSE(flash_mask_from_block_mask(compiled("true", 40, 40), options));
  options.num_columns = 4;
  EXPECT_EQ(flash_mask_from_block_mask(compiled("causal", 4, 4), options).error().code,
            ErrorCode::invalid_argument);
}

TEST(BlockMaskFromFlashMask, RejectsDamagedArrays) {
  const FlashMask good{4, 3, 1, 1, true, 1, {4, 4, 4}};
  ASSERT_TRUE(block_mask_from_flash_mask(good));
  const auto code_of = [&](void (*damage)(FlashMask&)) {
    FlashMask mask = good;
    damage(mask);
    const auto result = block_mask_from_flash_mask(mask);
    return result ? ErrorCode::internal : result.error().code;
  };
  EXPECT_EQ(code_of([](FlashMask& m) { m.indices[1] = -1; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([](FlashMask& m) { m.indices[1] = 5; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([](FlashMask& m) { m.indices.pop_back(); }), ErrorCode::shape_mismatch);
  EXPECT_EQ(code_of([](FlashMask& m) { m.num_columns = 4; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([](FlashMask& m) { m.is_causal = false; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([](FlashMask& m) { m.q_len = -1; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([](FlashMask& m) { m.kv_len = kMaxLength + 1; }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([](FlashMask& m) { m.num_heads = 0; }), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace fdma
