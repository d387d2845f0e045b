// Piecewise: an integer function of one index, linear on each of a few pieces.
//
// The interval engine has such a function for every subexpression that mentions only q or only k:
// `q // 64` is constant on pieces of 64 rows, `min(q, 100)` has two pieces, `@id[pos]` has one per
// run of equal entries. Conditions are 0 or 1. A piece may be undefined (for example an index
// outside a table); its users then decline, or find that it does not matter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "intervals/effort.hpp"

namespace fdma {

/// On [begin, end) the value at x is base + slope * x, or is undefined.
struct LinearPiece {
  LinearPiece(std::int64_t begin_, std::int64_t end_, std::int64_t base_, std::int64_t slope_,
              bool is_defined_ = true)
      : begin(static_cast<std::int32_t>(begin_)),
        end(static_cast<std::int32_t>(end_)),
        base(base_),
        slope(static_cast<std::int32_t>(slope_)),
        is_defined(is_defined_) {}

  std::int32_t begin;
  std::int32_t end;
  std::int64_t base;
  std::int32_t slope;
  bool is_defined;

  std::int64_t at(std::int64_t x) const { return base + slope * x; }
};

/// A function on [0, n): pieces ascend without gaps.
///
/// Invariants  magnitudes of values stay below kMaxValue and of slopes below kMaxSlope, so that
///             nothing here overflows; pieces of length 1 have slope 0
class Piecewise {
 public:
  static constexpr std::int64_t kMaxValue = std::int64_t{1} << 60;
  static constexpr std::int64_t kMaxSlope = std::int64_t{1} << 28;
  static constexpr std::size_t kMaxPieces = std::size_t{1} << 22;

  static Piecewise constant(std::int64_t n, std::int64_t value);
  static Piecewise identity(std::int64_t n);

  const std::vector<LinearPiece>& pieces() const { return pieces_; }
  std::int64_t size() const { return pieces_.empty() ? 0 : pieces_.back().end; }
  /// Index of the piece that holds x.
  std::size_t find(std::int64_t x) const;
  /// True iff every piece is constant and defined.
  bool is_step_function() const { return is_step_function_; }
  /// True iff values never decrease (never increase) along x and are defined everywhere.
  bool is_nondecreasing() const { return is_nondecreasing_; }
  bool is_nonincreasing() const { return is_nonincreasing_; }

  /// Pieces ordered by (value, begin), for a step function: made on first use.
  const std::vector<std::uint32_t>& by_value() const;

  /// Reserves memory for this number of further pieces.
  void reserve(std::size_t num_pieces) {
    const std::size_t wanted = pieces_.size() + num_pieces;
    if (wanted > pieces_.capacity()) pieces_.reserve(std::max(wanted, 2 * pieces_.capacity()));
  }
  /// Appends a piece after the last one, or extends the last one. False if a limit is exceeded.
  bool append(LinearPiece piece);
  /// Must be called once after the last append.
  void finish();

 private:
  std::vector<LinearPiece> pieces_;
  bool is_step_function_ = false;
  bool is_nondecreasing_ = false;
  bool is_nonincreasing_ = false;
  mutable std::vector<std::uint32_t> by_value_;
};

using PiecewisePtr = std::shared_ptr<const Piecewise>;

/// The function `op` of its operands (those of the IrNode, in order; null where it has fewer). Null
/// if a limit is exceeded, if the effort is spent, or if the operation is not one of a single index
/// (loops). Conditions follow three-valued logic.
PiecewisePtr apply(IrOp op, const std::vector<PiecewisePtr>& operands, const IrTable* table,
                   IntervalEffort& effort);

}  // namespace fdma
