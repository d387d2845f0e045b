// Compares vector code with code that takes one value at a time.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "io/hdf5/dense_kernels.hpp"

namespace fdma::io {
namespace {

// Runs with every instruction set of this machine. Other tests run with the best one only.
class EveryTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & GetParam()) == 0) GTEST_SKIP() << "this machine lacks it";
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};
INSTANTIATE_TEST_SUITE_P(DenseKernels, EveryTarget, ::testing::Values(HWY_SSE4, HWY_AVX2, HWY_AVX3),
                         [](const auto& p) { return std::string(hwy::TargetName(p.param)); });

// Returns a value that matters to the rule: one that is kept, one that is dropped, or a limit.
std::uint64_t random_pattern(const ValueRule& rule, std::mt19937_64& random) {
  if (!rule.is_floating) return random() % 2 == 0 ? 0 : rule.one;
  switch (random() % 5) {
    case 0:
      return 0;
    case 1:
      return std::uint64_t{1} << (rule.size_bytes * 8 - 1);  // -0
    case 2:
      return rule.first;
    case 3:
      return rule.last;
    default:
      return rule.first + random() % (rule.last - rule.first + 1);
  }
}

std::vector<ValueRule> rules() {
  std::vector<ValueRule> all;
  for (const int size : {1, 2, 4, 8}) {
    for (const bool is_big : {false, true}) {
      for (const bool is_inverted : {false, true}) {
        ValueRule rule;
        rule.size_bytes = size;
        rule.one = is_big ? std::uint64_t{1} << (8 * (size - 1)) : 1;
        rule.is_inverted = is_inverted;
        all.push_back(rule);
      }
      if (size == 1) continue;
      ValueRule rule;
      rule.size_bytes = size;
      rule.is_floating = true;
      rule.is_swapped = is_big;
      rule.first = size == 2 ? 0xf7ff : size == 4 ? 0xc6ffe000 : 0xc0dffc0000000000;
      rule.last = size == 2 ? 0xfc00 : size == 4 ? 0xff800000 : 0xfff0000000000000;
      all.push_back(rule);
    }
  }
  return all;
}

void put(std::vector<std::byte>& values, std::size_t index, std::uint64_t pattern,
         const ValueRule& rule) {
  const auto size = static_cast<std::size_t>(rule.size_bytes);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t at = rule.is_swapped ? size - 1 - i : i;
    values[index * size + at] = static_cast<std::byte>(pattern >> (8 * i));
  }
}

TEST_P(EveryTarget, PacksWhatJudgeValueSays) {
  std::mt19937_64 random(1);
  for (const ValueRule& rule : rules()) {
    const auto size = static_cast<std::size_t>(rule.size_bytes);
    for (int trial = 0; trial < 200; ++trial) {
      const std::size_t rows = 1 + random() % 3, cols = 1 + random() % 300;
      const std::size_t begin = random() % 3 == 0 ? 0 : random() % 200;
      std::vector<std::byte> values(rows * cols * size);
      for (std::size_t i = 0; i < rows * cols; ++i)
        put(values, i, random_pattern(rule, random), rule);
      if (trial % 4 == 0) {  // any pattern at all: most are neither
        put(values, random() % (rows * cols), random() >> (random() % 64), rule);
      }
      bool all_fine = true;
      const std::size_t stride = (begin + cols + 63) / 64 + 1;
      std::vector<std::uint64_t> expected(rows * stride);
      for (std::size_t i = 0; i < rows * cols; ++i) {
        const int verdict = judge_value(rule, values.data() + i * size);
        all_fine = all_fine && verdict >= 0;
        const std::size_t bit = begin + i % cols;
        if (verdict > 0) {
          expected[i / cols * stride + bit / 64] |= std::uint64_t{1} << (bit % 64);
        }
      }
      PackBox box;
      box.values = values.data();
      box.value_stride = static_cast<std::int64_t>(cols * size);
      box.num_rows = static_cast<std::int64_t>(rows);
      box.num_cols = static_cast<std::int64_t>(cols);
      std::vector<std::uint64_t> bits(rows * stride);
      box.bits = bits.data();
      box.bit_stride = static_cast<std::int64_t>(stride);
      box.bit_begin = static_cast<std::int64_t>(begin);
      box.ends_row = trial % 2 == 0;
      ASSERT_EQ(pack_rows(rule, box), all_fine);
      if (all_fine) {
        ASSERT_EQ(bits, expected);
      }
    }
  }
}

// Two boxes meet inside a word, and a box of whole words finds stale bits there.
TEST_P(EveryTarget, PacksIntoSharedWords) {
  const std::vector<std::byte> ones(200, std::byte{1});
  for (std::int64_t split = 1; split < 200; ++split) {
    std::vector<std::uint64_t> bits = {0, 0, 0, 0};
    PackBox box;
    box.values = ones.data();
    box.num_rows = 1;
    box.bits = bits.data();
    box.num_cols = split;
    ASSERT_TRUE(pack_rows({}, box));
    box.num_cols = 200 - split;
    box.bit_begin = split;
    box.ends_row = true;
    ASSERT_TRUE(pack_rows({}, box));
    const std::uint64_t all = ~std::uint64_t{0};
    ASSERT_EQ(bits, (std::vector<std::uint64_t>{all, all, all, 0xff})) << split;
  }
  std::vector<std::uint64_t> stale = {~std::uint64_t{0}, ~std::uint64_t{0}};
  const std::vector<std::byte> zeros(100);
  PackBox box;
  box.values = zeros.data();
  box.num_rows = 1;
  box.num_cols = 100;
  box.bits = stale.data();
  box.ends_row = true;
  ASSERT_TRUE(pack_rows({}, box));
  EXPECT_EQ(stale, (std::vector<std::uint64_t>{0, 0}));
}

TEST(JudgeValue, LeavesOutNanAndPositiveValues) {
  ValueRule rule;
  rule.size_bytes = 4;
  rule.is_floating = true;
  rule.first = 0xc6ffe000;  // -32752
  rule.last = 0xff800000;
  const auto judge = [&](float value) {
    std::byte bytes[4];
    std::memcpy(bytes, &value, 4);
    return judge_value(rule, bytes);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(judge(0), 1);
  EXPECT_EQ(judge(-0.0F), 1);
  EXPECT_EQ(judge(-32752), 0);
  EXPECT_EQ(judge(-kInfinity), 0);
  EXPECT_EQ(judge(-32751.99F), -1);
  EXPECT_EQ(judge(kInfinity), -1);
  EXPECT_EQ(judge(std::numeric_limits<float>::denorm_min()), -1);
  EXPECT_EQ(judge(std::numeric_limits<float>::quiet_NaN()), -1);
  EXPECT_EQ(judge(-std::numeric_limits<float>::quiet_NaN()), -1);
}

TEST_P(EveryTarget, MergesToUnionAndIntersection) {
  std::mt19937_64 random(2);
  for (const std::int64_t words : {1, 3, 8, 16, 17, 40}) {
    for (const std::int64_t rows : {0, 1, 2, 7}) {
      std::vector<std::uint64_t> bits(static_cast<std::size_t>(rows * (words + 2)));
      for (std::uint64_t& word : bits) word = random() & random() & random();
      std::vector<std::uint64_t> any(static_cast<std::size_t>(words)), all(any.size());
      for (std::size_t i = 0; i < any.size(); ++i) any[i] = all[i] = random();
      std::vector<std::uint64_t> any_expected = any, all_expected = all;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::size_t i = 0; i < any.size(); ++i) {
          any_expected[i] |= bits[static_cast<std::size_t>(r * (words + 2)) + i];
          all_expected[i] &= bits[static_cast<std::size_t>(r * (words + 2)) + i];
        }
      }
      merge_rows(bits.data(), words + 2, rows, words, any.data(), all.data());
      EXPECT_EQ(any, any_expected);
      EXPECT_EQ(all, all_expected);
    }
  }
}

TEST_P(EveryTarget, UnshufflesElements) {
  std::mt19937_64 random(3);
  for (const std::int64_t element_bytes : {1, 2, 3, 4, 8, 16}) {
    for (const std::int64_t num_bytes : {0, 1, 7, 16, 63, 64, 100, 257, 1024, 4099}) {
      const std::int64_t count = num_bytes / element_bytes;
      std::vector<std::byte> values(static_cast<std::size_t>(num_bytes)), planes = values;
      for (std::byte& value : values) value = static_cast<std::byte>(random());
      for (std::int64_t i = 0; i < num_bytes; ++i) {
        const std::int64_t to =
            i < count * element_bytes ? i % element_bytes * count + i / element_bytes : i;
        planes[static_cast<std::size_t>(to)] = values[static_cast<std::size_t>(i)];
      }
      std::vector<std::byte> out(values.size());
      unshuffle(planes.data(), num_bytes, element_bytes, out.data());
      EXPECT_EQ(out, values) << element_bytes << " bytes each, " << num_bytes << " in all";
    }
  }
}

TEST_P(EveryTarget, SumsAsFletcherDoes) {
  std::mt19937_64 random(4);
  const auto expected = [](const std::vector<std::byte>& bytes) {
    std::uint32_t sum1 = 0, sum2 = 0;
    const auto add = [](std::uint32_t a, std::uint32_t b) {
      const std::uint32_t sum = a + b;  // end-around carry
      return (sum & 0xffff) + (sum >> 16);
    };
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      const auto low = i + 1 < bytes.size() ? std::to_integer<std::uint32_t>(bytes[i + 1]) : 0;
      sum1 = add(sum1, std::to_integer<std::uint32_t>(bytes[i]) << 8 | low);
      sum2 = add(sum2, sum1);
    }
    return sum2 << 16 | sum1;
  };
  for (const std::size_t size : {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 720, 10000, 100001, 300000}) {
    std::vector<std::byte> bytes(size);
    EXPECT_EQ(fletcher32(bytes.data(), static_cast<std::int64_t>(size)), 0u);
    for (const int kind : {0, 1, 2}) {
      for (std::byte& byte : bytes) {
        byte = kind == 0 ? std::byte{255} : static_cast<std::byte>(kind == 1 ? random() : 1);
      }
      EXPECT_EQ(fletcher32(bytes.data(), static_cast<std::int64_t>(size)), expected(bytes)) << size;
    }
  }
}

}  // namespace
}  // namespace fdma::io
