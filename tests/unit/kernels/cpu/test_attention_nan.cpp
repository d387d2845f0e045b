// Tests that NaN and infinity reach the same results as in dense attention, and no others. Each
// test puts one bad number into good inputs and compares every element with the float64 formula:
// NaN where that is NaN, close elsewhere. The mask has bitmap, row, column and full tiles, so the
// tiles that a row computes contain keys that it does not see.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/attention_case.hpp"

namespace fdma {
namespace {

using testing::AttentionCase;
using testing::Cells;
using testing::MaskCase;
using testing::pick;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kQLen = 150, kKvLen = 300;

// Returns causal documents with noise and one live range per key in the middle. Row 77 is empty.
const MaskCase& mask_of_all_kinds() {
  static const MaskCase mask = [] {
    std::mt19937 rng(1);
    const Cells cells = testing::make_cells(kQLen, kKvLen, [&](auto q, auto k) {
      if (q == 77) return false;
      if (k < 64) return true;
      if (k < 128) return pick(rng, 0, 3) == 0;
      if (k < 200) return k * 7 % 40 <= q && q < 60 + k % 64;
      return k - 150 <= q;
    });
    return testing::case_of("all kinds", cells, {64, 64});
  }();
  return mask;
}

AttentionShape shape_of_mask() {
  AttentionShape shape = testing::shape_for(mask_of_all_kinds().mask, 1, 2, 1);
  shape.head_dim = 24;
  shape.head_dim_v = 20;
  return shape;
}

// The number of rows of the last run that have a NaN, and what differs from the float64 formula.
struct NanReport {
  int num_rows = 0;
  std::string error;
};

NanReport compare_nans(AttentionCase& attention) {
  const MaskCase& mask = mask_of_all_kinds();
  const AttentionShape& shape = attention.shape();
  NanReport report;
  for (std::int64_t h = 0; h < shape.heads_q; ++h) {
    const reference::HeadResult wanted =
        reference::attention_float64(attention.problem(0, h, mask));
    for (std::int64_t i = 0; i < kQLen; ++i) {
      bool has_nan = false;
      for (std::int64_t d = 0; d < shape.head_dim_v; ++d) {
        const double expected = wanted.out[static_cast<std::size_t>(i * shape.head_dim_v + d)];
        const double got = attention.out().get(0, i, h, d);
        has_nan |= std::isnan(expected);
        const bool is_same = std::isnan(expected) ? std::isnan(got)
                             : std::isinf(expected)
                                 ? got == expected
                                 : std::fabs(got - expected) <= 0.02 * (1 + std::fabs(expected));
        if (!is_same && report.error.empty())
          report.error = fmt::format("h {}, row {}, d {}: {}, expected {}", h, i, d, got, expected);
      }
      const double lse = wanted.lse[static_cast<std::size_t>(i)];
      const double got_lse = attention.lse().get(0, i, h);
      const bool is_same = std::isnan(lse)   ? std::isnan(got_lse)
                           : std::isinf(lse) ? got_lse == lse
                                             : std::fabs(got_lse - lse) <= 0.02;
      if (!is_same && report.error.empty())
        report.error = fmt::format("h {}, row {}: lse {}, expected {}", h, i, got_lse, lse);
      report.num_rows += has_nan ? 1 : 0;
    }
  }
  return report;
}

// Runs after `change` in every mode of column tiles and several tile shapes, for 16-bit and 32-bit
// tensors. Returns the rows that have a NaN.
template <class Change>
int rows_with_nan(const Change& change) {
  int num_rows = -1;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const BlockShape tile : {BlockShape{128, 128}, {16, 16}, {64, 256}}) {
      for (const ColumnMode mode : {ColumnMode::scan, ColumnMode::gather}) {
        AttentionShape shape = shape_of_mask();
        shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
        const ScoreSpec score{.key_bias = true};
        PlanOptions options;
        options.tile = tile;
        options.columns = mode;
        const auto plan = make_plan(mask_of_all_kinds().mask, shape, score, options);
        EXPECT_TRUE(plan);
        AttentionCase attention(shape, score, {});
        change(attention);
        // The poison is finite, because a NaN that is left over would look like a result.
        EXPECT_TRUE(attention.run(*plan, {}, 0x11));
        const NanReport report = compare_nans(attention);
        EXPECT_EQ(report.error, "") << to_string(dtype) << " tile " << tile.block_q << "x"
                                    << tile.block_kv << " columns " << to_string(mode);
        num_rows = report.num_rows;
      }
    }
  }
  return num_rows;
}

// These are the rows that see a key, times both query heads.
int rows_that_see(std::int64_t key) {
  int num_rows = 0;
  for (std::int64_t q = 0; q < kQLen; ++q)
    num_rows += mask_of_all_kinds().cells.front().get(q, key) ? 2 : 0;
  return num_rows;
}

TEST(AttentionNan, IsNowhereWithoutABadNumber) {
  EXPECT_EQ(rows_with_nan([](AttentionCase&) {}), 0);
}

TEST(AttentionNan, InAQueryRowStaysInThatRow) {
  EXPECT_EQ(rows_with_nan([](AttentionCase& a) { a.q().set(0, 40, 1, 3, kNan); }), 1);
  // Row 77 sees no key.
  EXPECT_EQ(rows_with_nan([](AttentionCase& a) { a.q().set(0, 77, 0, 0, kNan); }), 0);
}

TEST(AttentionNan, InAKeyReachesTheRowsThatSeeItOnly) {
  for (const std::int64_t key : {5, 100, 150, 199, 250, 299}) {
    EXPECT_EQ(rows_with_nan([key](AttentionCase& a) { a.k().set(0, key, 0, 7, kNan); }),
              rows_that_see(key))
        << key;
  }
}

TEST(AttentionNan, InAValueReachesTheRowsThatSeeItOnly) {
  for (const std::int64_t key : {5, 100, 150, 199, 250, 299}) {
    for (const std::int64_t d : {0, 19}) {
      EXPECT_EQ(rows_with_nan([=](AttentionCase& a) { a.v().set(0, key, 0, d, kNan); }),
                rows_that_see(key))
          << key;
    }
  }
}

TEST(AttentionNan, InABiasReachesTheRowsThatSeeItOnly) {
  for (const std::int64_t key : {5, 100, 150, 199, 250, 299}) {
    EXPECT_EQ(rows_with_nan([key](AttentionCase& a) { a.bias().set(0, key, 0, 0, kNan); }),
              rows_that_see(key))
        << key;
  }
}

TEST(AttentionNan, InEveryKeyThatNobodySeesReachesNobody) {
  std::mt19937 rng(2);
  const Cells cells = testing::make_cells(
      100, 260, [](auto q, auto k) { return k % 3 == 1 && k <= q + 160 && k / 64 != 2; });
  const MaskCase mask = testing::case_of("thirds", cells, {32, 32});
  AttentionShape shape = testing::shape_for(mask.mask, 1, 1, 1);
  shape.head_dim = shape.head_dim_v = 16;
  const auto plan = make_plan(mask.mask, shape, {.key_bias = true});
  ASSERT_TRUE(plan);
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    AttentionCase attention(shape, {.key_bias = true}, {});
    for (std::int64_t k = 0; k < 260; ++k) {
      if (k % 3 == 1 && k / 64 != 2) continue;
      for (std::int64_t d = 0; d < 16; ++d) {
        attention.k().set(0, k, 0, d, bad);
        attention.v().set(0, k, 0, d, bad);
      }
      attention.bias().set(0, k, 0, 0, bad);
    }
    ASSERT_TRUE(attention.run(*plan, {}, 0x11));
    EXPECT_EQ(attention.compare(mask), "") << bad;
  }
}

// exp(inf - inf) makes the row NaN, as in dense attention.
TEST(AttentionInfinity, AsALogitMakesTheRowNan) {
  for (const std::int64_t key : {5, 150, 299}) {
    EXPECT_EQ(rows_with_nan([key](AttentionCase& a) { a.bias().set(0, key, 0, 0, kInfinity); }),
              rows_that_see(key))
        << key;
  }
}

TEST(AttentionInfinity, AsANegativeBiasHidesTheKey) {
  for (const std::int64_t key : {5, 150, 299}) {
    EXPECT_EQ(rows_with_nan([key](AttentionCase& a) { a.bias().set(0, key, 0, 0, -kInfinity); }), 0)
        << key;
  }
  // Whole tiles have such keys, the first tiles among them.
  EXPECT_EQ(rows_with_nan([](AttentionCase& a) {
              for (std::int64_t k = 0; k < 140; ++k) a.bias().set(0, k, 0, 0, -kInfinity);
            }),
            0);
}

TEST(AttentionInfinity, AsAValueReachesTheRowsThatSeeItOnly) {
  for (const std::int64_t key : {5, 100, 150, 299}) {
    EXPECT_EQ(rows_with_nan([key](AttentionCase& a) { a.v().set(0, key, 0, 4, kInfinity); }), 0);
  }
}

// A masked cell has a logit of -inf, and so has a key with a bias of -inf. A row that sees only
// such keys is a row without keys: its results are 0 and -inf. (The dense formula gives 0 / 0,
// which a mask cannot mean.)
TEST(AttentionInfinity, InEveryLogitOfARowIsARowWithoutKeys) {
  const MaskCase mask = testing::case_of(
      "halves", testing::make_cells(40, 200, [](auto q, auto k) { return (k < 100) == (q < 20); }),
      {16, 16});
  AttentionShape shape = testing::shape_for(mask.mask, 1, 1, 1);
  shape.head_dim = shape.head_dim_v = 8;
  const auto plan = make_plan(mask.mask, shape, {.key_bias = true});
  ASSERT_TRUE(plan);
  AttentionCase attention(shape, {.key_bias = true}, {});
  for (std::int64_t k = 0; k < 100; ++k) attention.bias().set(0, k, 0, 0, -kInfinity);
  ASSERT_TRUE(attention.run(*plan));
  for (std::int64_t q = 0; q < 40; ++q) {
    EXPECT_EQ(attention.lse().get(0, q, 0) == -kInfinity, q < 20) << q;
    for (std::int64_t d = 0; d < 8; ++d) {
      EXPECT_EQ(attention.out().get(0, q, 0, d) == 0, q < 20) << q;
      EXPECT_TRUE(std::isfinite(attention.out().get(0, q, 0, d))) << q;
    }
  }
}

}  // namespace
}  // namespace fdma
