// Tests the box engine on programs written by hand: one for each kind of atom, error messages,
// extents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "boxes/box_fixture.hpp"
#include "boxes/row_bits.hpp"
#include "lower/engines.hpp"

namespace fdma::box_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

void expect_cells(const IrProgram& program, BlockShape block) {
  WorkMeter meter;
  const Result<SegmentMask> mask = lower_boxes(program, block, 1, meter);
  ASSERT_TRUE(mask) << mask.error().message;
  const std::vector<std::uint8_t> cells = cells_of(*mask);
  for (std::int64_t q = 0; q < program.q_len; ++q) {
    for (std::int64_t k = 0; k < program.kv_len; ++k) {
      const auto expected = evaluate_cell(program, q, k);
      ASSERT_TRUE(expected.has_value());
      ASSERT_EQ(cells[static_cast<std::size_t>(q * program.kv_len + k)] != 0, *expected)
          << "q = " << q << ", k = " << k;
    }
  }
  for (const int num_threads : {0, 2, 5}) {
    const Result<SegmentMask> again = lower_boxes(program, block, num_threads, meter);
    ASSERT_TRUE(again);
    ASSERT_EQ(*again, *mask) << num_threads << " threads";
  }
}

std::string message_of(const IrProgram& program) {
  WorkMeter meter;
  const Result<SegmentMask> mask = lower_boxes(program, {16, 32}, 1, meter);
  if (mask) return "no error";
  EXPECT_EQ(mask.error().code, ErrorCode::invalid_argument);
  const Result<SegmentMask> again = lower_boxes(program, {16, 32}, 4, meter);
  EXPECT_EQ(again ? "no error" : again.error().message, mask.error().message);
  return mask.error().message;
}

std::vector<std::int64_t> random_values(std::size_t count, std::int64_t lo, std::int64_t hi) {
  std::mt19937 random(static_cast<std::uint32_t>(count) + 17);
  std::vector<std::int64_t> out(count);
  for (auto& value : out) value = std::uniform_int_distribution<std::int64_t>(lo, hi)(random);
  return out;
}

// More than 1024 tiles a row, the last one cut off on both sides.
TEST(LowerBoxes, VisitsEqualChunksOfTilesOnce) {
  ProgramBuilder b(70, 16401);
  const IrId bits = b.add(IrOp::bit_and, {b.q(), b.k()});
  const IrId is_near = b.add(IrOp::less_equal, {b.k(), b.add(IrOp::add, {b.q(), b.number(9000)})});
  const IrId is_apart = b.add(IrOp::equal, {bits, b.number(0)});
  const auto& program = b.finish(b.add(IrOp::logical_or, {is_apart, is_near}));
  expect_cells(program, {16, 16});
}

TEST(LowerBoxes, GivesFullAndEmptyMasks) {
  for (const std::int64_t value : {0, 1}) {
    ProgramBuilder b(70, 130);
    expect_cells(b.finish(b.add(IrOp::boolean, {}, value)), {32, 64});
  }
}

TEST(LowerBoxes, AcceptsLengthsOfZeroAndOne) {
  for (const std::int64_t q_len : {0, 1, 40}) {
    for (const std::int64_t kv_len : {0, 1, 40}) {
      ProgramBuilder b(q_len, kv_len);
      expect_cells(b.finish(b.add(IrOp::less_equal, {b.k(), b.q()})), {16, 16});
    }
  }
}

TEST(LowerBoxes, LowersModularDiagonalBands) {
  // abs(q - k) <= 30 & (q - k) % 4 == 0
  ProgramBuilder b(200, 230);
  const IrId d = b.add(IrOp::sub, {b.q(), b.k()});
  const IrId near = b.add(IrOp::less_equal, {b.add(IrOp::abs, {d}), b.number(30)});
  const IrId strided = b.add(IrOp::equal, {b.add(IrOp::mod, {d, b.number(4)}), b.number(0)});
  expect_cells(b.finish(b.add(IrOp::logical_and, {near, strided})), {32, 48});
}

TEST(LowerBoxes, SharesRowsOfFewDistinctValues) {
  // (q // 5) % 7 == (k // 5) % 7 & k <= q
  ProgramBuilder b(300, 300);
  const auto group = [&](IrId x) {
    return b.add(IrOp::mod, {b.add(IrOp::floor_div, {x, b.number(5)}), b.number(7)});
  };
  const IrId same = b.add(IrOp::equal, {group(b.q()), group(b.k())});
  const IrId causal = b.add(IrOp::less_equal, {b.k(), b.q()});
  expect_cells(b.finish(b.add(IrOp::logical_and, {same, causal})), {64, 64});
}

TEST(LowerBoxes, ComparesEveryWidthOfKeysInEveryDirection) {
  for (const std::int64_t magnitude : {50, 20000, 1000000, 1 << 30}) {
    for (const IrOp op : {IrOp::less, IrOp::less_equal, IrOp::equal, IrOp::not_equal}) {
      for (const bool is_key_left : {true, false}) {
        ProgramBuilder b(90, 150);
        const std::int64_t scale = std::max<std::int64_t>(1, magnitude / 40);
        auto keys = random_values(150, -40, 40);
        auto queries = random_values(90, -45, 45);
        for (auto& value : keys) value *= scale;
        for (auto& value : queries) value *= scale;
        const IrId key = b.add(IrOp::lookup, {b.k()}, b.table("keys", {150}, keys));
        const IrId query = b.add(IrOp::lookup, {b.q()}, b.table("queries", {90}, queries));
        expect_cells(b.finish(is_key_left ? b.add(op, {key, query}) : b.add(op, {query, key})),
                     {16, 64});
      }
    }
  }
}

TEST(LowerBoxes, SeparatesSums) {
  // q - t[k] < u[q] + 5, and k + 3 <= q + t[k]
  ProgramBuilder b(80, 120);
  const IrId t = b.add(IrOp::lookup, {b.k()}, b.table("t", {120}, random_values(120, -9, 90)));
  const IrId u = b.add(IrOp::lookup, {b.q()}, b.table("u", {80}, random_values(80, -30, 30)));
  const IrId first =
      b.add(IrOp::less, {b.add(IrOp::sub, {b.q(), t}), b.add(IrOp::add, {u, b.number(5)})});
  const IrId second = b.add(IrOp::less_equal,
                            {b.add(IrOp::add, {b.k(), b.number(3)}), b.add(IrOp::add, {b.q(), t})});
  expect_cells(b.finish(b.add(IrOp::logical_xor, {first, second})), {32, 32});
}

TEST(LowerBoxes, ReadsTablesOfEveryRankAndIndexShape) {
  for (const std::int64_t divisor : {1, 3, 64}) {
    ProgramBuilder b(150, 200);
    const std::int64_t rows = ceil_div(150, divisor);
    const std::int64_t cols = ceil_div(200, divisor);
    const auto table =
        b.table("t", {rows, 2, cols},
                random_values(static_cast<std::size_t>(rows * 2 * cols), 0, 1), DType::boolean);
    const IrId i = b.add(IrOp::floor_div, {b.q(), b.number(divisor)});
    const IrId j = b.add(IrOp::floor_div, {b.k(), b.number(divisor)});
    expect_cells(b.finish(b.add(IrOp::test, {i, b.number(1), j}, table)), {48, 64});
  }
}

TEST(LowerBoxes, KeepsLoopsThatAreTooLongToUnroll) {
  // any(i in 20000 : i * 7 + q == k * 3): each cell searches
  ProgramBuilder b(5, 12);
  const IrId i = b.add(IrOp::loop, {}, 3);
  const IrId left = b.add(IrOp::add, {b.add(IrOp::mul, {i, b.number(7)}), b.q()});
  const IrId body = b.add(IrOp::equal, {left, b.add(IrOp::mul, {b.k(), b.number(3)})});
  expect_cells(b.finish(b.add(IrOp::any_of, {b.number(20000), body}, 3)), {16, 16});
}

TEST(LowerBoxes, UnrollsLoopsOverTables) {
  // any(i in 3 : begin[i, k] <= q & q < end[i, k])
  ProgramBuilder b(100, 90);
  const auto begin = b.table("begin", {3, 90}, random_values(270, 0, 99), DType::int32);
  const auto end = b.table("end", {3, 90}, random_values(270, 0, 110), DType::int32);
  const IrId i = b.add(IrOp::loop, {}, 0);
  const IrId after = b.add(IrOp::less_equal, {b.add(IrOp::lookup, {i, b.k()}, begin), b.q()});
  const IrId before = b.add(IrOp::less, {b.q(), b.add(IrOp::lookup, {i, b.k()}, end)});
  const IrId body = b.add(IrOp::logical_and, {after, before});
  expect_cells(b.finish(b.add(IrOp::any_of, {b.number(3), body}, 0)), {32, 32});
}

TEST(LowerBoxes, GuardsHideUndefinedCells) {
  // k < 30 | seen[q, k - 30]
  ProgramBuilder b(60, 100);
  const auto seen = b.table("seen", {60, 70}, random_values(4200, 0, 1), DType::boolean);
  const IrId guard = b.add(IrOp::less, {b.k(), b.number(30)});
  const IrId test = b.add(IrOp::test, {b.q(), b.add(IrOp::sub, {b.k(), b.number(30)})}, seen);
  expect_cells(b.finish(b.add(IrOp::logical_or, {guard, test})), {16, 48});
}

TEST(LowerBoxes, RejectsIndexOutsideTable) {
  ProgramBuilder b(50, 60);
  const auto seen = b.table("seen", {10}, random_values(10, 0, 1), DType::boolean);
  const IrId index = b.add(IrOp::add, {b.q(), b.k()});
  EXPECT_EQ(message_of(b.finish(b.add(IrOp::test, {index}, seen))),
            "mask undefined at q = 0, k = 10: index 10 of table @seen is outside [0, 10)");
}

TEST(LowerBoxes, RejectsIndexOutsideDimension) {
  ProgramBuilder b(50, 60);
  const auto seen = b.table("seen", {50, 40}, random_values(2000, 0, 1), DType::boolean);
  EXPECT_EQ(
      message_of(b.finish(b.add(IrOp::test, {b.q(), b.k()}, seen))),
      "mask undefined at q = 0, k = 40: index 40 of table @seen is outside [0, 40) in dimension 1");
}

TEST(LowerBoxes, RejectsDivisionOverflowAndShift) {
  {
    ProgramBuilder b(50, 60);
    const IrId d = b.add(IrOp::sub, {b.number(7), b.k()});
    const IrId value = b.add(IrOp::floor_div, {b.q(), d});
    EXPECT_EQ(message_of(b.finish(b.add(IrOp::less, {value, b.number(3)}))),
              "mask undefined at q = 0, k = 7: division by 0");
  }
  {
    ProgramBuilder b(50, 60);
    const IrId value = b.add(IrOp::mul, {b.q(), b.number(INT64_MAX / 20)});
    EXPECT_THAT(message_of(b.finish(b.add(IrOp::less, {value, b.k()}))),
                StartsWith("mask undefined at q = 21, k = 0: overflow in multiplication"));
  }
  {
    ProgramBuilder b(50, 70);
    const IrId value = b.add(IrOp::shl, {b.q(), b.k()});
    EXPECT_THAT(message_of(b.finish(b.add(IrOp::less, {value, b.number(5)}))),
                HasSubstr("q = 0, k = 63: shift by 63 is outside [0, 62]"));
  }
}

TEST(LowerBoxes, NamesTheCulpritInsideALoopAndABranch) {
  ProgramBuilder b(20, 20);
  const auto table = b.table("t", {3}, {1, 2, 3});
  const IrId i = b.add(IrOp::loop, {}, 0);
  const IrId value = b.add(IrOp::lookup, {i}, table);
  const IrId body = b.add(IrOp::equal, {value, b.number(9)});
  const IrId loop = b.add(IrOp::any_of, {b.number(5), body}, 0);
  const IrId condition = b.add(IrOp::less, {b.q(), b.number(4)});
  const IrId yes = b.add(IrOp::boolean, {}, 1);
  EXPECT_EQ(message_of(b.finish(b.add(IrOp::where_condition, {condition, yes, loop}))),
            "mask undefined at q = 4, k = 0: index 3 of table @t is outside [0, 3)");
}

TEST(LowerBoxes, RejectsNestingBeyondItsLimit) {
  ProgramBuilder b(2, 2);
  IrId sum = b.q();
  for (int i = 0; i < 2000; ++i) sum = b.add(IrOp::add, {sum, b.add(IrOp::loop, {}, i)});
  IrId body = b.add(IrOp::less, {sum, b.k()});
  for (int i = 0; i < 2000; ++i) body = b.add(IrOp::any_of, {b.number(2), body}, i);
  WorkMeter meter;
  const Result<SegmentMask> mask = lower_boxes(b.finish(body), {16, 16}, 1, meter);
  ASSERT_FALSE(mask);
  EXPECT_EQ(mask.error().code, ErrorCode::unsupported);
}

TEST(RowKernels, AgreeOnRandomRows) {
  std::mt19937_64 random(5);
  constexpr std::int64_t kWords = 5;
  std::vector<std::int64_t> longs(64 * kWords), others(64 * kWords);
  for (std::size_t i = 0; i < longs.size(); ++i) {
    longs[i] = static_cast<std::int64_t>(random() % 9) - 4;
    others[i] = static_cast<std::int64_t>(random() % 9) - 4;
  }
  const std::vector<std::int8_t> bytes(longs.begin(), longs.end());
  const std::vector<std::int16_t> halves(longs.begin(), longs.end());
  const std::vector<std::int32_t> ints(longs.begin(), longs.end());
  const std::vector<std::uint8_t> flags(longs.begin(), longs.end());
  std::vector<std::vector<std::uint64_t>> results;
  for (const box::RowKernels* kernels : box::all_row_kernels()) {
    std::vector<std::uint64_t> all;
    std::vector<std::uint64_t> out(kWords), every(kWords, ~std::uint64_t{0}), some(kWords, 0);
    const auto keep = [&] { all.insert(all.end(), out.begin(), out.end()); };
    for (int bound = -5; bound <= 5; ++bound) {
      kernels->at_most_8(out.data(), bytes.data(), static_cast<std::int8_t>(bound), kWords), keep();
      kernels->at_most_16(out.data(), halves.data(), static_cast<std::int16_t>(bound), kWords);
      keep();
      kernels->at_most_32(out.data(), ints.data(), bound, kWords), keep();
      kernels->at_most_64(out.data(), longs.data(), bound, kWords), keep();
      kernels->equal_8(out.data(), bytes.data(), static_cast<std::int8_t>(bound), kWords), keep();
      kernels->equal_16(out.data(), halves.data(), static_cast<std::int16_t>(bound), kWords);
      keep();
      kernels->equal_32(out.data(), ints.data(), bound, kWords), keep();
      kernels->equal_64(out.data(), longs.data(), bound, kWords), keep();
    }
    kernels->less_pairs(out.data(), longs.data(), others.data(), kWords), keep();
    kernels->equal_pairs(out.data(), longs.data(), others.data(), kWords), keep();
    kernels->non_zero_bytes(out.data(), flags.data(), kWords), keep();
    const auto* a = flags.data();
    const auto* b = flags.data() + 3;
    kernels->and_rows(out.data(), a, 5, b, ~std::uint64_t{0}, kWords), keep();
    kernels->xor_rows(out.data(), a, b, kWords), keep();
    kernels->store_row(out.data(), b, 77, every.data(), some.data(), kWords), keep();
    all.insert(all.end(), every.begin(), every.end());
    all.insert(all.end(), some.begin(), some.end());
    results.push_back(std::move(all));
  }
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
  for (std::int64_t k = 0; k < 64 * kWords; ++k) {  // the portable set against plain comparison
    const auto at = static_cast<std::size_t>(k);
    EXPECT_EQ((results[0][at / 64] >> (at % 64)) & 1, longs[at] <= -5 ? 1u : 0u);
  }
}

}  // namespace
}  // namespace fdma::box_test
