// Tests Hugging Face's masks of four dimensions, boolean and additive. They are exact both ways,
// and the error of every kind of damage names it.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>

#include "cell_oracle.hpp"
#include "fdma/formats/interop/hf_mask.hpp"
#include "fdma/formats/validate.hpp"
#include "interop_masks.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::compiled;
using testing::pick;

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
HfMask one_row(DType dtype, const std::vector<T>& values) {
  return {1, 1, 1, static_cast<std::int64_t>(values.size()), dtype, bytes_of(values)};
}

// Returns the keys that the one row of a mask sees, as text.
std::string row_text(const HfMask& mask) {
  const auto read = block_mask_from_hf_mask(mask);
  if (!read) return read.error().message;
  std::string text;
  for (const char cell : testing::cells_of(*read, 0).values) text += cell != 0 ? '1' : '0';
  return text;
}

constexpr DType kTypes[] = {DType::boolean, DType::float16, DType::bfloat16, DType::float32,
                            DType::float64};

TEST(HfMaskFromBlockMask, RoundsTripInEveryType) {
  EXPECT_TRUE(rc::check("types", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const BlockMask mask = testing::random_block_mask(rng, pick(rng, 0, 150), pick(rng, 0, 150),
                                                      testing::random_block(rng));
    HfMaskExportOptions options;
    options.dtype = kTypes[pick(rng, 0, 4)];
    options.use_infinity = pick(rng, 0, 1) == 1;
    const auto array = hf_mask_from_block_mask(mask, options);
    ASSERT_TRUE(array) << array.error().message;
    const auto back = block_mask_from_hf_mask(*array, testing::random_block(rng));
    ASSERT_TRUE(back) << back.error().message;
    ASSERT_TRUE(validate(*back, ValidationLevel::canonical));
    ASSERT_TRUE(equal_cells(mask, *back));
    ASSERT_EQ(*hf_mask_from_block_mask(*back, options), *array);
    // Cell by cell: nothing but the first bit of a boolean, and the sign of a float.
    const std::size_t size = static_cast<std::size_t>(size_bytes(options.dtype));
    std::size_t at = 0;
    for (const std::int32_t group : mask.group_of) {
      for (const char cell : testing::cells_of(mask, group).values) {
        const bool last_byte = array->values[at + size - 1] != std::byte{0};
        ASSERT_EQ(options.dtype == DType::boolean ? last_byte : !last_byte, cell != 0);
        at += size;
      }
    }
    ASSERT_EQ(at, array->values.size());
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(HfMaskFromBlockMask, RoundsTripTheMaskSuite) {
  for (const auto& [name, mask] : testing::compiled_suite(1024)) {
    const auto array = hf_mask_from_block_mask(mask);
    ASSERT_TRUE(array) << name;
    EXPECT_TRUE(equal_cells(mask, *block_mask_from_hf_mask(*array))) << name;
  }
}

TEST(HfMaskFromBlockMask, GivesTheArrayOfItsExample) {
  HfMaskExportOptions options;
  options.dtype = DType::float32;
  const auto array = hf_mask_from_block_mask(compiled("causal", 2, 2), options);
  ASSERT_TRUE(array);
  constexpr float kLowest = -3.40282346638528859811704183484516925e+38F;
  EXPECT_EQ(array->values, bytes_of(std::vector<float>{0, kLowest, 0, 0}));
}

TEST(BlockMaskFromHfMask, ReadsEveryFormOfMinusInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const double lowest = std::numeric_limits<float>::lowest();
  EXPECT_EQ(row_text(one_row<std::uint8_t>(DType::boolean, {0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1})),
            "01101001101");
  EXPECT_EQ(row_text(one_row<std::int8_t>(DType::int8, {1, 0})), "10");
  EXPECT_EQ(row_text(one_row<std::uint16_t>(DType::float16, {0, 0x8000, 0xFBFF, 0xFC00})), "1100");
  EXPECT_EQ(row_text(one_row<std::uint16_t>(DType::bfloat16, {0, 0x8000, 0xFF7F, 0xFF80})), "1100");
  EXPECT_EQ(row_text(one_row<float>(
                DType::float32, {0, -0.0F, -infinity, -65504.0F,
                                 std::numeric_limits<float>::lowest(), -3.3895313892515355e38F})),
            "110000");
  EXPECT_EQ(row_text(one_row<double>(DType::float64, {0, lowest, -infinity, -65504.0,
                                                      std::numeric_limits<double>::lowest()})),
            "10000");
}

TEST(BlockMaskFromHfMask, RejectsOtherValuesByTheirPlace) {
  const auto expect = [](const HfMask& mask, const std::string& message) {
    EXPECT_EQ(row_text(mask).substr(0, message.size()), message) << row_text(mask);
  };
  expect(one_row<float>(DType::float32, {0, 1}), "attention_mask[0, 0, 0, 1]: 1, expected 0 (att");
  expect(one_row<float>(DType::float32, {-10000}), "attention_mask[0, 0, 0, 0]: -10000, expected");
  expect(one_row<float>(DType::float32, {NAN}), "attention_mask[0, 0, 0, 0]: nan, expected");
  expect(one_row<float>(DType::float32, {INFINITY}), "attention_mask[0, 0, 0, 0]: inf, expected");
  expect(one_row<double>(DType::float64, {-1e9}), "attention_mask[0, 0, 0, 0]: -1000000000");
  expect(one_row<std::uint16_t>(DType::float16, {0x3C00}), "attention_mask[0, 0, 0, 0]: 1,");
  expect(one_row<std::uint16_t>(DType::float16, {0xC500}), "attention_mask[0, 0, 0, 0]: -5,");
  expect(one_row<std::uint16_t>(DType::float16, {0x7C01}), "attention_mask[0, 0, 0, 0]: nan,");
  expect(one_row<std::uint16_t>(DType::bfloat16, {0x3F80}), "attention_mask[0, 0, 0, 0]: 1,");
  expect(one_row<std::uint8_t>(DType::boolean, {0, 0, 0, 0, 0, 0, 0, 0, 0, 2}),
         "attention_mask[0, 0, 0, 9]: 2, expected 1 (attends) or 0");
  expect(one_row<std::int8_t>(DType::int8, {-1}), "attention_mask[0, 0, 0, 0]: 255, expected");
  HfMask mask{2, 3, 5, 7, DType::uint8, std::vector<std::byte>(2 * 3 * 5 * 7)};
  mask.values[((1 * 3 + 2) * 5 + 4) * 7 + 6] = std::byte{9};
  expect(mask, "attention_mask[1, 2, 4, 6]: 9");
}

TEST(BlockMaskFromHfMask, SpreadsOneHeadOverMany) {
  const HfMask mask = *hf_mask_from_block_mask(compiled("causal", 3, 3));
  const auto spread = block_mask_from_hf_mask(mask, {}, 4);
  ASSERT_TRUE(spread);
  EXPECT_EQ(spread->group_of, (std::vector<std::int32_t>{0, 0, 0, 0}));
  const HfMask heads = *hf_mask_from_block_mask(*spread);
  EXPECT_EQ(heads.num_heads, 4);
  EXPECT_EQ(block_mask_from_hf_mask(heads, {}, 8).error().code, ErrorCode::shape_mismatch);
}

TEST(BlockMaskFromHfMask, RejectsDamagedArrays) {
  const HfMask good = *hf_mask_from_block_mask(compiled("causal", 3, 4));
  const auto expect = [&](const char* message, void (*damage)(HfMask&)) {
    HfMask mask = good;
    damage(mask);
    const auto result = block_mask_from_hf_mask(mask);
    ASSERT_FALSE(result) << message;
    EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().message;
  };
  expect("attention_mask: 11 bytes", [](HfMask& m) { m.values.pop_back(); });
  expect("attention_mask: 12 bytes", [](HfMask& m) { m.dtype = DType::float32; });
  expect("attention_mask: int32, expected", [](HfMask& m) { m.dtype = DType::int32; });
  expect("attention_mask: 12 bytes", [](HfMask& m) {
    m.q_len = m.kv_len = kMaxLength;
    m.num_heads = 1 << 20;
  });
  expect("q_len: -3", [](HfMask& m) { m.q_len = -3; });
  expect("batch elements and heads: 0 x 1", [](HfMask& m) { m.num_batches = 0; });
}

TEST(HfMaskFromBlockMask, RejectsWhatAnArrayCannotHold) {
  HfMaskExportOptions options;
  options.max_bytes = 100;
  EXPECT_EQ(hf_mask_from_block_mask(compiled("causal", 40, 40), options).error().code,
            ErrorCode::out_of_memory);
  EXPECT_EQ(hf_mask_from_block_mask(compiled("causal", 1 << 30, 1 << 30)).error().code,
            ErrorCode::out_of_memory);
  options.dtype = DType::int32;
  EXPECT_EQ(hf_mask_from_block_mask(compiled("causal", 4, 4), options).error().code,
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace fdma
