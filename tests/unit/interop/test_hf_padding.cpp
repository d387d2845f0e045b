// Compares Hugging Face's padding masks with their definition. They are exact both ways, and the
// error of every kind of damage names it.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/interop/hf_padding.hpp"
#include "fdma/formats/validate.hpp"
#include "interop_masks.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::compiled;
using testing::pick;

Cells cells_of(const HfPadding& padding, std::int64_t batch) {
  return testing::make_cells(padding.q_len, padding.kv_len, [&](std::int64_t q, std::int64_t k) {
    return padding.attention_mask[static_cast<std::size_t>(batch * padding.kv_len + k)] == 1 &&
           (!padding.is_causal || k <= q + padding.kv_len - padding.q_len);
  });
}

// Padding on the left, on the right, or anywhere.
HfPadding random_padding(std::mt19937& rng) {
  HfPadding padding;
  padding.q_len = pick(rng, 1, 150);
  padding.kv_len = pick(rng, 1, 150);
  padding.num_batches = pick(rng, 1, 4);
  padding.num_heads = pick(rng, 1, 3);
  padding.is_causal = pick(rng, 0, 1) == 1;
  for (std::int64_t b = 0; b < padding.num_batches; ++b) {
    const std::int64_t kind = pick(rng, 0, 3), tokens = pick(rng, 0, padding.kv_len);
    for (std::int64_t k = 0; k < padding.kv_len; ++k) {
      const bool keeps = kind == 0   ? k < tokens
                         : kind == 1 ? k >= padding.kv_len - tokens
                         : kind == 2 ? pick(rng, 0, 1) == 1
                                     : true;
      padding.attention_mask.push_back(keeps ? 1 : 0);
    }
  }
  return padding;
}

TEST(BlockMaskFromHfPadding, HasTheCellsOfTheRuleAndGoesBack) {
  EXPECT_TRUE(rc::check("rule and round trip", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const HfPadding padding = random_padding(rng);
    const auto mask = block_mask_from_hf_padding(padding, testing::random_block(rng));
    ASSERT_TRUE(mask) << mask.error().message;
    ASSERT_TRUE(validate(*mask, ValidationLevel::canonical));
    for (std::int64_t b = 0; b < padding.num_batches; ++b) {
      for (std::int64_t h = 0; h < padding.num_heads; ++h) {
        ASSERT_EQ(testing::cells_of(*mask, mask->group(b, h)), cells_of(padding, b));
      }
    }
    const auto same = hf_padding_from_block_mask(*mask, padding.is_causal);
    ASSERT_TRUE(same) << same.error().message;
    ASSERT_EQ(*same, padding);
    const auto smallest = hf_padding_from_block_mask(*mask);
    ASSERT_TRUE(smallest);
    ASSERT_TRUE(equal_cells(*mask, *block_mask_from_hf_padding(*smallest)));
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(HfPaddingFromBlockMask, IsExactOrAnErrorThatNamesTheCell) {
  EXPECT_TRUE(rc::check("one cell changed", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    HfPadding padding = random_padding(rng);
    padding.num_batches = padding.num_heads = 1;
    padding.attention_mask.resize(static_cast<std::size_t>(padding.kv_len));
    Cells cells = cells_of(padding, 0);
    char& cell = cells.at(pick(rng, 0, cells.q_len - 1), pick(rng, 0, cells.kv_len - 1));
    cell = cell == 0 ? 1 : 0;
    const auto exported = hf_padding_from_block_mask(testing::block_mask_of(cells, {}));
    if (exported) {
      ASSERT_EQ(cells_of(*exported, 0), cells);
    } else {
      ASSERT_EQ(exported.error().code, ErrorCode::unsupported);
      ASSERT_NE(exported.error().message.find(
                    "; causal padding has another value at batch 0, head 0, query row "),
                std::string::npos);
    }
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(BlockMaskFromHfPadding, GivesTheMaskOfItsExample) {
  HfPadding padding;
  padding.q_len = padding.kv_len = 3;
  padding.is_causal = true;
  padding.attention_mask = {0, 1, 1};
  const auto mask = block_mask_from_hf_padding(padding);
  ASSERT_TRUE(mask);
  EXPECT_TRUE(equal_cells(*mask, compiled("causal & k >= 1", 3, 3)));
}

TEST(HfPaddingFromBlockMask, HoldsItsPartOfTheMaskSuite) {
  std::vector<std::string> held;
  for (const auto& [name, mask] : testing::compiled_suite(1024)) {
    const auto padding = hf_padding_from_block_mask(mask);
    if (padding) held.push_back(name);
  }
  EXPECT_EQ(held, (std::vector<std::string>{"full", "causal"}));
}

TEST(HfPaddingFromBlockMask, RejectsWhatItCannotHold) {
  const auto message = [](const BlockMask& mask) {
    const auto padding = hf_padding_from_block_mask(mask);
    EXPECT_FALSE(padding);
    return padding ? std::string() : padding.error().message;
  };
  const std::string window = message(compiled("window(3, 2)", 40, 40));
  EXPECT_NE(window.find("padding alone has another value at batch 0, head 0, query row 0, key 0"),
            std::string::npos)
      << window;
  EXPECT_NE(window.find("causal padding has another value at batch 0, head 0, query row 0, key 0"),
            std::string::npos);
  EXPECT_NE(message(compiled("k <= q * (h + 1)", 40, 40, {}, 2)).find("head 1, query row 1, key 2"),
            std::string::npos);
  BlockMask ragged =
      block_mask_from_hf_padding({2, 1, 4, 4, false, std::vector<std::uint8_t>(8, 1)}).value();
  ragged.shape.q_lens = {4, 3};
  EXPECT_NE(message(ragged).find("query lengths from 3 to 4"), std::string::npos);
}

TEST(BlockMaskFromHfPadding, RejectsDamagedArrays) {
  const HfPadding good{2, 1, 3, 3, true, {0, 1, 1, 1, 1, 0}};
  ASSERT_TRUE(block_mask_from_hf_padding(good));
  const auto expect = [&](const char* message, void (*damage)(HfPadding&)) {
    HfPadding padding = good;
    damage(padding);
    const auto result = block_mask_from_hf_padding(padding);
    ASSERT_FALSE(result) << message;
    EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().message;
  };
  expect("attention_mask[1, 2]: 2", [](HfPadding& p) { p.attention_mask[5] = 2; });
  expect("attention_mask: 5 entries", [](HfPadding& p) { p.attention_mask.pop_back(); });
  expect("attention_mask: 6 entries", [](HfPadding& p) { p.num_batches = 3; });
  expect("q_len: -1", [](HfPadding& p) { p.q_len = -1; });
  expect("kv_len: 2147483648", [](HfPadding& p) { p.kv_len = kMaxLength + 1; });
  expect("batch elements and heads: 2 x 0", [](HfPadding& p) { p.num_heads = 0; });
  expect("batch elements and heads: 2 x 9223372036854775807",
         [](HfPadding& p) { p.num_heads = INT64_MAX; });
}

}  // namespace
}  // namespace fdma
