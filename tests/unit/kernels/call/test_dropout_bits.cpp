// Tests which pairs dropout keeps: by the published words of Philox, by the rows that
// tests/reference/dropout_golden.py prints, and by their mean and variance.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "call/dropout_bits.hpp"

namespace fdma {
namespace {

// Known answers of Random123 for seven rounds.
TEST(Philox, HasThePublishedWords) {
  const auto words = [](PhiloxWords counter, std::uint32_t key_0, std::uint32_t key_1) {
    const PhiloxWords result = philox(counter, key_0, key_1);
    return std::array{result.word[0], result.word[1], result.word[2], result.word[3]};
  };
  constexpr std::uint32_t kOnes = 0xffffffffU;
  EXPECT_EQ(words({{0, 0, 0, 0}}, 0, 0),
            (std::array{0x5f6fb709U, 0x0d893f64U, 0x4f121f81U, 0x4f730a48U}));
  EXPECT_EQ(words({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes),
            (std::array{0x5207ddc2U, 0x45165e59U, 0x4d8ee751U, 0x8c52f662U}));
  EXPECT_EQ(words({{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}}, 0xa4093822U, 0x299f31d0U),
            (std::array{0x4dfccabaU, 0x190a87f0U, 0xc47362baU, 0xb6b5242aU}));
}

struct GoldenRow {
  double rate;
  std::uint64_t seed, offset;
  std::uint32_t head;
  int num_kept;
  std::uint64_t hash;  // FNV-1a of 45 x 150 pairs, a byte each
};

TEST(DropoutBits, AreThoseOfTheDefinition) {
  for (const GoldenRow& row : {
           GoldenRow{0.1, 0x0U, 0x0U, 0x0U, 6079, 0x8cf1ff730f42250aU},
           {0.5, 0x4d2U, 0x4U, 0x3U, 3384, 0xe1f96fe1aea97817U},
           {0.25, 0x123456789abcdefU, 0xfedcba9876543210U, 0x4dU, 5060, 0x18e7ed1a3e8a13fU},
           {0.9, 0xffffffffffffffffU, 0xfffffffffffffffcU, 0xffffffffU, 652, 0x4d393d2ab8ac78a5U},
       }) {
    const DropoutBits bits = dropout_bits({row.rate, row.seed, row.offset});
    int num_kept = 0;
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (std::int64_t q = 0; q < 45; ++q) {
      for (std::int64_t k = 0; k < 150; ++k) {
        const bool is_kept = bits.keeps(row.head, q, k);
        num_kept += is_kept ? 1 : 0;
        hash = (hash ^ (is_kept ? 1U : 0U)) * 0x100000001b3U;
      }
    }
    EXPECT_EQ(num_kept, row.num_kept) << row.rate;
    EXPECT_EQ(hash, row.hash) << row.rate;
    EXPECT_FLOAT_EQ(bits.factor, static_cast<float>(1 / (1 - row.rate)));
  }
}

TEST(DropoutBits, ReadTheSeedAndTheOffsetWhereTheyAreGiven) {
  const std::uint64_t seed = 0x1234567890U, offset = 0x300000004U;
  const DropoutBits by_value = dropout_bits({0.3, seed, offset});
  const DropoutBits by_address = dropout_bits({0.3, 9, 9, &seed, &offset});
  EXPECT_EQ(by_value.key_0, by_address.key_0);
  EXPECT_EQ(by_value.key_1, by_address.key_1);
  EXPECT_EQ(by_value.counter_0, by_address.counter_0);
}

TEST(DropoutBits, KeepEverythingOrNothingAtTheEndsOfTheRange) {
  EXPECT_EQ(dropout_bits_of_rate(0).threshold, 0U);
  EXPECT_EQ(dropout_bits_of_rate(0).factor, 1.0F);
  EXPECT_EQ(dropout_bits_of_rate(0.5).threshold, 0x80000000U);
  EXPECT_EQ(dropout_bits_of_rate(std::nextafter(1.0, 0.0)).factor, 0.0F);
}

// Of 10^7 pairs about (1 - rate) are kept. The variance of sums over windows of 4 queries and 4 keys,
// of 16 in one row and of pairs that share a counter is that of independent pairs.
TEST(DropoutBits, HaveTheMeanAndTheVarianceOfIndependentPairs) {
  constexpr std::int64_t kQueries = 2500, kKeys = 4000;
  const double rate = 0.2;
  const DropoutBits bits = dropout_bits({rate, 42, 8});
  struct Moments {
    double count = 0, sum = 0, squares = 0;
    void add(double x) { ++count, sum += x, squares += x * x; }
  };
  Moments pairs, windows, rows, shared;
  std::vector<unsigned char> kept(static_cast<std::size_t>(kQueries * kKeys));
  const auto at = [&](std::int64_t q, std::int64_t k) -> unsigned char& {
    return kept[static_cast<std::size_t>(q * kKeys + k)];
  };
  for (std::int64_t q = 0; q < kQueries; ++q) {
    for (std::int64_t k = 0; k < kKeys; ++k) {
      at(q, k) = bits.keeps(5, q, k) ? 1 : 0;
      pairs.add(at(q, k));
    }
  }
  for (std::int64_t q = 0; q + 16 <= kQueries; q += 4) {
    for (std::int64_t k = 0; k + 16 <= kKeys; k += 16) {
      double window = 0, row = 0;
      for (std::int64_t i = 0; i < 16; ++i) {
        window += at(q + i / 4, k + i % 4);
        row += at(q, k + i);
      }
      windows.add(window);
      rows.add(row);
      shared.add(at(q, k) + at(q + 8, k) + at(q, k + 8) + at(q + 8, k + 8));
    }
  }
  const auto expect = [&](const Moments& m, double terms, const char* name) {
    const double mean = m.sum / m.count, variance = m.squares / m.count - mean * mean;
    const double wanted = terms * rate * (1 - rate);
    EXPECT_NEAR(mean, terms * (1 - rate), 5 * std::sqrt(wanted / m.count)) << name;
    EXPECT_NEAR(variance, wanted, 5 * wanted * std::sqrt(2 / m.count)) << name;
  };
  expect(pairs, 1, "pairs");
  expect(windows, 16, "windows");
  expect(rows, 16, "rows");
  expect(shared, 4, "pairs of a counter");
}

}  // namespace
}  // namespace fdma
