// Tests cell sums, the part of the mask hash that costs what the stored form costs, against a sum
// over cells, and against each other where there are too many cells.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "segment/long_patterns.hpp"
#include "segment/pattern_masks.hpp"
#include "stored/cell_sum.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b % kFieldPrime);
}

// By the definition, cell by cell, at one point.
std::uint64_t sum_at(const Cells& cells, std::uint64_t x, std::uint64_t y) {
  std::uint64_t sum = 0, row_power = 1;
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    std::uint64_t power = row_power;
    for (std::int64_t k = 0; k < cells.kv_len; ++k) {
      if (cells.get(q, k)) sum = (sum + power) % kFieldPrime;
      power = product(power, y);
    }
    row_power = product(row_power, x);
  }
  return sum;
}

Residues sum_of(const Cells& cells) {
  return {sum_at(cells, kPointX.first, kPointY.first),
          sum_at(cells, kPointX.second, kPointY.second)};
}

Residues sum_of(const BlockMask& mask) {
  return std::visit([](const auto& groups) { return cell_sum(groups.at(0)); }, mask.groups);
}

TEST(CellField, PointsArePrimitiveRoots) {
  // The prime factors of kFieldPrime - 1.
  std::uint64_t rest = kFieldPrime - 1;
  for (const std::uint64_t factor : {2, 3, 5, 7, 11, 13, 31, 41, 61, 151, 331, 1321}) {
    ASSERT_EQ((kFieldPrime - 1) % factor, 0u);
    while (rest % factor == 0) rest /= factor;
    for (const Residues& point : {kPointX, kPointY}) {
      const Residues root = power(point, (kFieldPrime - 1) / factor);
      EXPECT_NE(root.first, 1u);
      EXPECT_NE(root.second, 1u);
    }
  }
  EXPECT_EQ(rest, 1u);
}

TEST(CellField, FollowsItsDefinitions) {
  std::mt19937_64 rng(3);
  for (int trial = 0; trial < 800; ++trial) {
    const std::uint64_t a = rng() % kFieldPrime, b = rng() % kFieldPrime;
    EXPECT_EQ(multiply(a, b), product(a, b));
    EXPECT_EQ((Residues{a, b} * inverse({a, b})), kResiduesOne);
    EXPECT_EQ(reduce(a + b), (a + b) % kFieldPrime);
    const auto exponent = static_cast<std::int64_t>(rng() >> 32);
    EXPECT_EQ(power_of_x(exponent), power(kPointX, static_cast<std::uint64_t>(exponent)));
    EXPECT_EQ(power_of_y(exponent), power(kPointY, static_cast<std::uint64_t>(exponent)));
    Residues bits{};
    for (std::uint64_t j = 0; j < 64; ++j) {
      if ((a << 3 >> j & 1) != 0) bits += power(kPointY, j);
    }
    EXPECT_EQ(sum_of_bits(a << 3), bits);
  }
  for (const std::uint64_t extreme : {std::uint64_t{0}, std::uint64_t{1}, kFieldPrime - 1}) {
    EXPECT_EQ(multiply(extreme, kFieldPrime - 1), product(extreme, kFieldPrime - 1));
    EXPECT_EQ((Residues{extreme, 0} - Residues{extreme, 0}), Residues{});
  }
  // Sums of geometric series, those of ratio 1 and 0 among them.
  for (const std::uint64_t ratio : {std::uint64_t{1}, std::uint64_t{0}, std::uint64_t{1234567}}) {
    Residues sum{};
    for (std::uint64_t count = 1; count < 70; ++count) {
      sum += power({ratio, kPointY.second}, count - 1);
      EXPECT_EQ(geometric_sum({ratio, kPointY.second}, count), sum);
    }
  }
}

TEST(CellSum, IsTheSumOverCells) {
  std::mt19937 rng(5);
  for (int trial = 0; trial < 10000; ++trial) {
    const Cells cells = testing::random_cells(rng, pick(rng, 0, 130), pick(rng, 0, 130));
    const BlockMask mask = testing::block_mask_of(cells, testing::random_block(rng));
    const Residues expected = sum_of(cells);
    ASSERT_EQ(sum_of(mask), expected) << trial;
    const auto format = kMaskFormats[static_cast<std::size_t>(trial) % kMaskFormats.size()];
    const auto other = convert(mask, format, testing::random_block(rng));
    if (!other) continue;
    ASSERT_EQ(sum_of(*other), expected) << trial << " " << to_string(format);
  }
}

TEST(CellSum, OfDisjointMasksAddUp) {
  EXPECT_TRUE(rc::check("parts", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 1, 200), kv_len = pick(rng, 1, 200);
    const BlockMask a = testing::block_mask_of(testing::random_cells(rng, q_len, kv_len), {32, 64});
    const BlockMask b = testing::block_mask_of(testing::random_cells(rng, q_len, kv_len), {16, 48});
    const Residues parts = sum_of(a) + sum_of(*difference(b, a));
    RC_ASSERT(sum_of(*unite(a, b)) == parts);
  }));
}

// Runs that move in step, in every direction and past ragged ends.
TEST(CellSum, OfMovingRunsIsTheSumOverCells) {
  std::mt19937 rng(7);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t q_len = pick(rng, 200, 420), kv_len = pick(rng, 200, 420);
    const std::int64_t slope = pick(rng, -3, 3), width = pick(rng, 1, 150);
    const std::int64_t base = pick(rng, -100, 600);
    const Cells cells = testing::make_cells(q_len, kv_len, [&](auto q, auto k) {
      const std::int64_t begin = base + slope * q;
      return trial % 3 == 0   ? k < begin
             : trial % 3 == 1 ? k >= begin
                              : k >= begin && k < begin + width;
    });
    const Residues expected = sum_of(cells);
    for (const BlockShape block : {BlockShape{16, 16}, {16, 48}, {48, 16}, {32, 64}}) {
      ASSERT_EQ(sum_of(testing::block_mask_of(cells, block)), expected) << trial;
    }
  }
}

TEST(CellSum, OfPatternsIsTheSumOverCells) {
  std::mt19937 rng(33);
  int with_patterns = 0;
  for (int trial = 0; trial < 800; ++trial) {
    const testing::PatternCase sample = testing::random_pattern_case(rng);
    with_patterns += sample.mask.has_patterns() ? 1 : 0;
    ASSERT_EQ(cell_sum(sample.mask), sum_of(sample.cells)) << trial;
  }
  EXPECT_GT(with_patterns, 400);
}

TEST(CellSum, OfLongRunsOfPatternsIsThatOfTheirTiles) {
  std::mt19937 rng(34);
  int with_patterns = 0;
  for (int trial = 0; trial < 500; ++trial) {
    const SegmentMask mask = testing::long_pattern_mask(rng);
    with_patterns += mask.has_patterns() ? 1 : 0;
    ASSERT_EQ(cell_sum(mask), cell_sum(expand_patterns(mask))) << trial;
  }
  EXPECT_GT(with_patterns, 300);
}

ParametricMask closed_form(std::int64_t q_len, std::int64_t kv_len) {
  ParametricMask mask;
  mask.q_len = q_len;
  mask.kv_len = mask.kv_end = kv_len;
  return mask;
}

// Lengths that no sum over cells reaches: closed forms against compiled ones.
TEST(CellSum, OfLongMasksIsThatOfTheirClosedForms) {
  std::mt19937 rng(11);
  for (int trial = 0; trial < 60; ++trial) {
    const std::int64_t q_len = pick(rng, 1, trial % 2 == 0 ? 1 << 20 : kMaxLength);
    const std::int64_t kv_len = pick(rng, 1, trial % 2 == 0 ? 1 << 20 : kMaxLength);
    ParametricMask mask = closed_form(q_len, kv_len);
    mask.pos_offset = pick(rng, -kv_len, kv_len);
    mask.right = pick(rng, -100, 5000);
    if (trial % 3 == 1) mask.left = pick(rng, 0, kv_len);
    if (trial % 5 == 1) mask.sink = pick(rng, 0, kv_len);
    if (trial % 5 == 2) mask.prefix = pick(rng, 0, kv_len);
    if (trial % 7 == 1) mask.kv_begin = pick(rng, 0, kv_len);
    if (trial % 7 == 2) {
      std::int64_t border = mask.pos_offset;
      for (int d = 0; d < 20; ++d)
        mask.cu_seqlens.push_back(border += pick(rng, 1, q_len / 10 + 1));
    }
    const Residues expected = cell_sum(mask);
    for (const BlockShape block : {BlockShape{128, 128}, {64, 256}, {1024, 16}, {80, 48}}) {
      ASSERT_EQ(cell_sum(segment_from_parametric(mask, block)), expected) << trial;
    }
  }
}

TEST(CellSum, OfEverythingIsAProductOfTwoSeries) {
  const auto all = [](std::int64_t length, const Residues& point) {
    return geometric_sum(point, static_cast<std::uint64_t>(length));
  };
  EXPECT_EQ(cell_sum(closed_form(kMaxLength, kMaxLength)),
            all(kMaxLength, kPointX) * all(kMaxLength, kPointY));
  EXPECT_EQ(cell_sum(closed_form(5, 0)), Residues{});
}

}  // namespace
}  // namespace fdma
