// Lattices against the list of their members.
#include <gtest/gtest.h>

#include <random>

#include "fdma/formats/tile_lattice.hpp"

namespace fdma {
namespace {

struct Congruence {
  std::int64_t row_factor, col_factor, modulus;
  bool holds(std::int64_t rows, std::int64_t cols) const {
    return (row_factor * rows + col_factor * cols) % modulus == 0;
  }
};

TEST(TileLattice, HoldsWhatItsCongruencesAllow) {
  std::mt19937 random(1);
  const auto between = [&](std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random);
  };
  for (int turn = 0; turn < 400; ++turn) {
    TileLattice lattice;
    std::vector<Congruence> all;
    for (std::int64_t i = between(0, 3); i > 0; --i) {
      all.push_back({between(-9, 9), between(-9, 9), between(1, 12)});
      ASSERT_TRUE(
          lattice.restrict_to(all.back().row_factor, all.back().col_factor, all.back().modulus));
    }
    const auto is_member = [&](std::int64_t rows, std::int64_t cols) {
      for (const Congruence& each : all) {
        if (!each.holds(rows, cols)) return false;
      }
      return true;
    };
    ASSERT_TRUE(is_member(lattice.num_rows, lattice.shift));
    ASSERT_TRUE(is_member(0, lattice.num_cols));
    for (std::int64_t rows = -15; rows <= 15; ++rows) {
      for (std::int64_t cols = -15; cols <= 15; ++cols) {
        ASSERT_EQ(lattice.contains({rows, cols}), is_member(rows, cols)) << rows << ' ' << cols;
        const Translation reduced = lattice.reduce(rows, cols);
        ASSERT_TRUE(is_member(rows - reduced.rows, cols - reduced.cols));
        ASSERT_TRUE(reduced.rows >= 0 && reduced.rows < lattice.num_rows);
        ASSERT_TRUE(reduced.cols >= 0 && reduced.cols < lattice.num_cols);
      }
    }
    const auto period = period_of(lattice, std::int64_t{1} << 20);
    ASSERT_TRUE(period.has_value());
    EXPECT_TRUE(lattice.contains({0, period->num_cols}));
    EXPECT_TRUE(lattice.contains({period->num_rows, period->skew * period->num_rows}));
    EXPECT_TRUE(period->skew >= 0 && period->skew < period->num_cols);
  }
}

TEST(TileLattice, KeepsWhatTwoLatticesShare) {
  std::mt19937 random(3);
  const auto between = [&](std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random);
  };
  for (int turn = 0; turn < 500; ++turn) {
    TileLattice a, b;
    a.num_rows = between(1, 9);
    a.num_cols = between(1, 9);
    a.shift = between(0, a.num_cols - 1);
    b.num_rows = between(1, 9);
    b.num_cols = between(1, 9);
    b.shift = between(0, b.num_cols - 1);
    TileLattice common = a;
    ASSERT_TRUE(common.restrict_to(b));
    for (std::int64_t rows = -90; rows <= 90; ++rows) {
      for (std::int64_t cols = -20; cols <= 20; ++cols) {
        ASSERT_EQ(common.contains({rows, cols}),
                  a.contains({rows, cols}) && b.contains({rows, cols}));
      }
    }
  }
}

TEST(TileLattice, FindsTheShortestStepAlongALine) {
  std::mt19937 random(2);
  const auto between = [&](std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random);
  };
  for (int turn = 0; turn < 300; ++turn) {
    TileLattice lattice;
    ASSERT_TRUE(lattice.restrict_to(between(-4, 4), between(-4, 4), between(1, 5)));
    const std::int64_t a = between(-3, 3), b = between(-3, 3);
    if (a == 0 && b == 0) continue;
    const auto step = lattice.along(a, b);
    ASSERT_TRUE(step.has_value());
    EXPECT_EQ(a * step->rows + b * step->cols, 0);
    EXPECT_TRUE(lattice.contains(*step));
    EXPECT_TRUE(step->rows > 0 || (step->rows == 0 && step->cols > 0));
    for (std::int64_t rows = 0; rows <= step->rows; ++rows) {
      for (std::int64_t cols = -40; cols <= 40; ++cols) {
        const bool is_before =
            step->rows > 0 ? rows > 0 && rows < step->rows : cols > 0 && cols < step->cols;
        if (is_before && a * rows + b * cols == 0) {
          ASSERT_FALSE(lattice.contains({rows, cols})) << rows << ' ' << cols;
        }
      }
    }
  }
}

TEST(TileLattice, RefusesNumbersThatAreTooLarge) {
  TileLattice lattice;
  EXPECT_TRUE(lattice.restrict_to(1, 0, (std::int64_t{1} << 31) - 1));
  const TileLattice before = lattice;
  EXPECT_FALSE(lattice.restrict_to(1, 0, 1000003));
  EXPECT_EQ(lattice, before);
}

TEST(PatternPeriod, FollowsDiagonals) {
  TileLattice lattice;
  ASSERT_TRUE(lattice.restrict_to(128, -128, 3));
  EXPECT_EQ(lattice, (TileLattice{1, 1, 3}));
  EXPECT_EQ(period_of(lattice, 100), (PatternPeriod{1, 3, 1}));
  TileLattice rows;
  ASSERT_TRUE(rows.restrict_to(1, 0, 5));
  EXPECT_EQ(period_of(rows, 100), (PatternPeriod{5, 1, 0}));
  EXPECT_EQ(period_of(rows, 4), std::nullopt);
}

TEST(PatternPeriod, KeepsNeighboursApartAlongALine) {
  for (std::int64_t rows = 1; rows <= 6; ++rows) {
    for (std::int64_t cols = -7; cols <= 7; ++cols) {
      for (std::int64_t width = 1; width <= 9; ++width) {
        const PatternPeriod period = period_along({rows, cols}, width);
        EXPECT_GE(period.num_cols, width);
        EXPECT_EQ(period.num_rows, rows);
        for (std::int64_t row = 0; row < rows; ++row) {
          EXPECT_EQ(period.column(row, 3), period.column(row + rows, 3 + cols));
        }
      }
    }
  }
}

}  // namespace
}  // namespace fdma
