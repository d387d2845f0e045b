#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "run/element_values.hpp"

namespace fdma::maskc {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the bits of a 16-bit float mean, from the definition of the format.
double value_of(std::uint32_t bits, int mantissa_bits, int bias) {
  const int exponent_bits = 15 - mantissa_bits;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> mantissa_bits);
  const auto mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1));
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  const double one = exponent == 0 ? 0 : std::ldexp(1.0, mantissa_bits);
  return sign * std::ldexp(mantissa + one, std::max(exponent, 1) - bias - mantissa_bits);
}

TEST(ElementValues, EveryHalfAndBfloat16SurvivesTheRoundTrip) {
  for (std::uint32_t i = 0; i <= 0xffffu; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float half = float_from_half(bits);
    const float brain = float_from_bfloat16(bits);
    const double half_value = value_of(i, 10, 15);
    const double brain_value = value_of(i, 7, 127);
    if (std::isnan(half_value)) {
      EXPECT_TRUE(std::isnan(half));
      EXPECT_TRUE(std::isnan(float_from_half(half_from_float(half))));
    } else {
      EXPECT_EQ(static_cast<double>(half), half_value) << i;
      EXPECT_EQ(half_from_float(half), bits);
    }
    if (std::isnan(brain_value)) {
      EXPECT_TRUE(std::isnan(brain));
      EXPECT_TRUE(std::isnan(float_from_bfloat16(bfloat16_from_float(brain))));
    } else {
      EXPECT_EQ(static_cast<double>(brain), brain_value) << i;
      EXPECT_EQ(bfloat16_from_float(brain), bits);
    }
  }
}

// Between neighbours: the nearer one, and the even one from the middle.
TEST(ElementValues, RoundsToTheNearestAndTiesToEven) {
  const auto check = [](int mantissa_bits, int bias, std::uint16_t (*round)(float)) {
    const std::uint32_t infinity = 0x7fffu >> mantissa_bits << mantissa_bits;
    for (std::uint32_t i = 0; i + 1 < infinity; ++i) {
      const double low = value_of(i, mantissa_bits, bias);
      const double high = value_of(i + 1, mantissa_bits, bias);
      const auto middle = static_cast<float>((low + high) / 2);
      if (static_cast<double>(middle) != (low + high) / 2) continue;  // below float32's range
      const std::uint32_t even = i % 2 == 0 ? i : i + 1;
      ASSERT_EQ(round(middle), even) << i;
      ASSERT_EQ(round(std::nextafter(middle, 0.0f)), i);
      ASSERT_EQ(round(std::nextafter(middle, kInfinity)), i + 1);
      ASSERT_EQ(round(-middle), even | 0x8000u);
    }
  };
  check(10, 15, half_from_float);
  check(7, 127, bfloat16_from_float);
}

TEST(ElementValues, WhatIsTooLargeBecomesInfinite) {
  EXPECT_EQ(half_from_float(65519.99f), 0x7bff);
  EXPECT_EQ(half_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(half_from_float(-1e30f), 0xfc00);
  EXPECT_EQ(half_from_float(kInfinity), 0x7c00);
  EXPECT_EQ(bfloat16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bfloat16_from_float(-kInfinity), 0xff80);
  EXPECT_EQ(rounded_to(DType::float32, 0.1f), 0.1f);
  EXPECT_EQ(rounded_to(DType::bfloat16, 257.0f), 256.0f);
}

TEST(ElementValues, StoresAndLoadsAnyRange) {
  const std::vector<float> values{0, 1, -2, 0.5f, 3, 100, -7, 8};
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    std::vector<std::byte> memory(64);
    store_elements(values.data(), 8, memory.data(), dtype, 3);
    std::vector<float> back(5);
    load_elements(memory.data(), dtype, 5, 5, back.data());
    EXPECT_EQ(back, std::vector<float>(values.begin() + 2, values.begin() + 7));
  }
}

}  // namespace
}  // namespace fdma::maskc
