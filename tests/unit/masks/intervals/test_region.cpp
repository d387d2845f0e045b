// Compares piecewise functions and regions with cells.
#include <gtest/gtest.h>

#include <random>

#include "intervals/region.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kUndefinedValue = INT64_MIN;

using Values = std::vector<std::int64_t>;

Values values_of(const Piecewise& f) {
  Values values;
  std::int64_t at = 0;
  for (const LinearPiece& piece : f.pieces()) {
    EXPECT_EQ(piece.begin, at);
    EXPECT_LT(piece.begin, piece.end);
    for (; at < piece.end; ++at)
      values.push_back(piece.is_defined ? piece.at(at) : kUndefinedValue);
  }
  return values;
}

class Random {
 public:
  explicit Random(unsigned seed) : rng_(seed) {}
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(rng_);
  }
  PiecewisePtr function(std::int64_t n, bool with_undefined, bool is_condition = false) {
    auto f = std::make_shared<Piecewise>();
    for (std::int64_t x = 0; x < n;) {
      const std::int64_t end = std::min(n, x + pick(1, pick(0, 1) ? 4 : n));
      const std::int64_t slope = is_condition || pick(0, 1) ? 0 : pick(-2, 2);
      const std::int64_t base = is_condition ? pick(0, 1) : pick(-20, 20) - slope * x;
      f->append({x, end, base, slope, !(with_undefined && pick(0, 7) == 0)});
      x = end;
    }
    f->finish();
    return f;
  }

 private:
  std::mt19937_64 rng_;
};

std::int64_t floored(std::int64_t a, std::int64_t b) {
  std::int64_t q = a / b;
  if (q * b > a) --q;
  return q;
}

std::int64_t expected(IrOp op, std::int64_t a, std::int64_t b) {
  const bool defined = a != kUndefinedValue && b != kUndefinedValue;
  if (op == IrOp::logical_and && (a == 0 || b == 0)) return 0;
  if (op == IrOp::logical_or && (a == 1 || b == 1)) return 1;
  if (!defined) return kUndefinedValue;
  switch (op) {
    case IrOp::add:
      return a + b;
    case IrOp::sub:
      return a - b;
    case IrOp::mul:
      return a * b;
    case IrOp::floor_div:
      return b <= 0 ? kUndefinedValue : floored(a, b);
    case IrOp::mod:
      return b <= 0 ? kUndefinedValue : a - b * floored(a, b);
    case IrOp::min:
      return std::min(a, b);
    case IrOp::max:
      return std::max(a, b);
    case IrOp::shl:
      return b < 0 || b > 62 ? kUndefinedValue : a * (std::int64_t{1} << b);
    case IrOp::shr:
      return b < 0 || b > 62 ? kUndefinedValue : a >> b;
    case IrOp::bit_and:
      return a & b;
    case IrOp::bit_or:
      return a | b;
    case IrOp::bit_xor:
      return a ^ b;
    case IrOp::less:
      return a < b;
    case IrOp::less_equal:
      return a <= b;
    case IrOp::equal:
      return a == b;
    case IrOp::not_equal:
      return a != b;
    case IrOp::logical_and:
      return 1;
    case IrOp::logical_or:
      return 0;
    case IrOp::logical_xor:
      return a ^ b;
    default:
      return kUndefinedValue;
  }
}

TEST(Piecewise, BinaryOperationsEqualTheirValuesOneByOne) {
  IntervalEffort effort;
  Random random(3);
  const IrOp arithmetic[] = {IrOp::add,  IrOp::sub,        IrOp::mul,    IrOp::floor_div,
                             IrOp::mod,  IrOp::min,        IrOp::max,    IrOp::shl,
                             IrOp::shr,  IrOp::bit_and,    IrOp::bit_or, IrOp::bit_xor,
                             IrOp::less, IrOp::less_equal, IrOp::equal,  IrOp::not_equal};
  const IrOp logical[] = {IrOp::logical_and, IrOp::logical_or, IrOp::logical_xor};
  for (int trial = 0; trial < 6000; ++trial) {
    const std::int64_t n = random.pick(1, 40);
    const bool is_logical = trial % 4 == 0;
    const IrOp op = is_logical ? logical[random.pick(0, 2)] : arithmetic[random.pick(0, 15)];
    const PiecewisePtr a = random.function(n, true, is_logical);
    PiecewisePtr b = random.function(n, true, is_logical);
    if (op == IrOp::shl || op == IrOp::shr) {  // keep products in range
      b = apply(IrOp::mod, {b, std::make_shared<Piecewise>(Piecewise::constant(n, 20))}, nullptr,
                effort);
    }
    const PiecewisePtr result = apply(op, {a, b}, nullptr, effort);
    ASSERT_NE(result, nullptr);
    const Values va = values_of(*a), vb = values_of(*b), vr = values_of(*result);
    ASSERT_EQ(static_cast<std::int64_t>(vr.size()), n);
    for (std::size_t x = 0; x < vr.size(); ++x) {
      ASSERT_EQ(vr[x], expected(op, va[x], vb[x])) << static_cast<int>(op) << " at " << x;
    }
  }
}

TEST(Piecewise, LookupsAreUndefinedOutsideTheTable) {
  IntervalEffort effort;
  const std::vector<std::int16_t> data{4, 4, 4, 7, 7, -1};
  IrTable dense;
  dense.rank = 1;
  dense.extents[0] = 6;
  dense.dtype = DType::int16;
  dense.data = data.data();
  IrTable runs;
  runs.rank = 1;
  runs.extents[0] = 6;
  runs.run_ends = {3, 5, 6};
  runs.run_values = {4, 7, -1};
  const auto index = apply(IrOp::add,
                           {std::make_shared<Piecewise>(Piecewise::identity(10)),
                            std::make_shared<Piecewise>(Piecewise::constant(10, -2))},
                           nullptr, effort);
  const std::int64_t u = kUndefinedValue;
  const Values wanted{u, u, 4, 4, 4, 7, 7, -1, u, u};
  EXPECT_EQ(values_of(*apply(IrOp::lookup, {index}, &dense, effort)), wanted);
  EXPECT_EQ(values_of(*apply(IrOp::lookup, {index}, &runs, effort)), wanted);
  EXPECT_EQ(apply(IrOp::lookup, {index}, &runs, effort)->pieces().size(), 5u);
}

TEST(Piecewise, RejectsValuesNearTheLimitOfInt64) {
  IntervalEffort effort;
  const auto big = std::make_shared<Piecewise>(Piecewise::constant(4, Piecewise::kMaxValue - 1));
  EXPECT_EQ(apply(IrOp::add, {big, big}, nullptr, effort), nullptr);
}

using Cells = std::vector<std::vector<char>>;

Cells cells_of(const Region& region, std::int64_t rows, std::int64_t cols) {
  Cells cells(static_cast<std::size_t>(rows), std::vector<char>(static_cast<std::size_t>(cols), 0));
  std::int64_t after = 0;
  for (const RowBand& band : region.bands()) {
    EXPECT_GE(band.q_begin, after);
    EXPECT_LT(band.q_begin, band.q_end);
    after = band.q_end;
    for (std::int64_t row = band.q_begin; row < band.q_end; ++row) {
      std::int64_t before = -1;
      for (const AffineInterval& i : region.intervals(band)) {
        const std::int64_t lo = i.lo_base + i.lo_slope * row, hi = i.hi_base + i.hi_slope * row;
        EXPECT_GT(lo, before) << "row " << row;
        EXPECT_LT(lo, hi);
        EXPECT_LE(hi, cols);
        before = hi;
        for (std::int64_t col = lo; col < hi; ++col) {
          cells[static_cast<std::size_t>(row)][static_cast<std::size_t>(col)] = 1;
        }
      }
    }
  }
  return cells;
}

TEST(Region, RelationsAndSetAlgebraEqualTheirCells) {
  IntervalEffort effort;
  Random random(5);
  int solved = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const std::int64_t rows = random.pick(1, 40), cols = random.pick(1, 40);
    Rectangle domain{0, rows, 0, cols};
    if (trial % 3 == 0) {
      domain.row_begin = random.pick(0, rows - 1);
      domain.row_end = random.pick(domain.row_begin + 1, rows);
      domain.col_begin = random.pick(0, cols - 1);
      domain.col_end = random.pick(domain.col_begin + 1, cols);
    }
    std::vector<Region> regions;
    std::vector<Cells> cells;
    for (int n = 0; n < 2; ++n) {
      const auto f = random.function(rows, false), g = random.function(cols, false);
      const int row_sign = random.pick(0, 1) ? 1 : -1, col_sign = random.pick(0, 1) ? 1 : -1;
      const std::int64_t limit = random.pick(-20, 20);
      const bool is_less = random.pick(0, 1) == 1;
      const auto region = is_less ? less_region(*f, row_sign, *g, col_sign, limit, domain, effort)
                                  : equal_region(*f, row_sign, *g, col_sign, limit, domain, effort);
      ASSERT_TRUE(region.has_value());
      const Values vf = values_of(*f), vg = values_of(*g);
      Cells wanted(static_cast<std::size_t>(rows),
                   std::vector<char>(static_cast<std::size_t>(cols), 0));
      for (std::int64_t x = domain.row_begin; x < domain.row_end; ++x) {
        for (std::int64_t y = domain.col_begin; y < domain.col_end; ++y) {
          const std::int64_t sum = row_sign * vf[static_cast<std::size_t>(x)] +
                                   col_sign * vg[static_cast<std::size_t>(y)];
          wanted[static_cast<std::size_t>(x)][static_cast<std::size_t>(y)] =
              is_less ? sum < limit : sum == limit;
        }
      }
      ASSERT_EQ(cells_of(*region, rows, cols), wanted) << "trial " << trial;
      regions.push_back(*region);
      cells.push_back(wanted);
    }
    for (const TruthTable op : {kIntersection, kUnion, kDifference, kSymmetricDifference}) {
      const auto result = combine(regions[0], regions[1], op, effort);
      ASSERT_TRUE(result.has_value());
      Cells wanted = cells[0];
      for (std::size_t x = 0; x < wanted.size(); ++x) {
        for (std::size_t y = 0; y < wanted[x].size(); ++y) {
          const bool a = cells[0][x][y] != 0, b = cells[1][x][y] != 0;
          wanted[x][y] = op == kIntersection ? a && b
                         : op == kUnion      ? a || b
                         : op == kDifference ? a && !b
                                             : a != b;
        }
      }
      ASSERT_EQ(cells_of(*result, rows, cols), wanted)
          << "trial " << trial << " op " << static_cast<int>(op);
      ++solved;
    }
  }
  EXPECT_EQ(solved, 16000);
}

TEST(Region, RefusesUndefinedPiecesInsideTheDomainOnly) {
  IntervalEffort effort;
  Piecewise f;
  f.append({0, 5, 0, 0, false});
  f.append({5, 10, 0, 1, true});
  f.finish();
  const Piecewise g = Piecewise::identity(10);
  EXPECT_FALSE(less_region(f, 1, g, -1, 0, {0, 10, 0, 10}, effort).has_value());
  EXPECT_TRUE(less_region(f, 1, g, -1, 0, {5, 10, 0, 10}, effort).has_value());
}

TEST(Region, RefusesManyIntervalsInManyBands) {
  IntervalEffort effort;
  Piecewise f, g;
  for (std::int64_t x = 0; x < 2000; ++x) {
    f.append({x, x + 1, x % 2, 0});
    g.append({x, x + 1, x % 2, 0});
  }
  f.finish();
  g.finish();
  EXPECT_FALSE(equal_region(f, 1, g, -1, 0, {0, 2000, 0, 2000}, effort).has_value());
}

}  // namespace
}  // namespace fdma
