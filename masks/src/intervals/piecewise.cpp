#include "intervals/piecewise.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "ir/arithmetic.hpp"

namespace fdma {
namespace {

constexpr std::size_t kMaxSpare = std::size_t{1}
                                  << 16;  // unused pieces that a finished function may hold

}  // namespace

Piecewise Piecewise::constant(std::int64_t n, std::int64_t value) {
  Piecewise result;
  if (n > 0) result.append({0, n, value, 0});
  result.finish();
  return result;
}

Piecewise Piecewise::identity(std::int64_t n) {
  Piecewise result;
  if (n > 0) result.append({0, n, 0, 1});
  result.finish();
  return result;
}

std::size_t Piecewise::find(std::int64_t x) const {
  const auto it = std::upper_bound(pieces_.begin(), pieces_.end(), x,
                                   [](std::int64_t v, const LinearPiece& p) { return v < p.end; });
  return static_cast<std::size_t>(it - pieces_.begin());
}

bool Piecewise::append(LinearPiece piece) {
  if (piece.begin >= piece.end) return true;
  if (!piece.is_defined) piece.base = piece.slope = 0;
  if (std::abs(piece.slope) >= kMaxSlope) return false;
  if (piece.end - piece.begin == 1) {
    piece.base = piece.at(piece.begin);
    piece.slope = 0;
  }
  if (std::abs(piece.at(piece.begin)) >= kMaxValue ||
      std::abs(piece.at(piece.end - 1)) >= kMaxValue) {
    return false;
  }
  if (!pieces_.empty()) {
    LinearPiece& last = pieces_.back();
    if (last.is_defined == piece.is_defined && last.base == piece.base &&
        last.slope == piece.slope) {
      last.end = piece.end;
      return true;
    }
  }
  pieces_.push_back(piece);
  return pieces_.size() <= kMaxPieces;
}

void Piecewise::finish() {
  // Unused memory is worth a copy only if there is much of it.
  if (pieces_.capacity() > pieces_.size() + pieces_.size() / 4 + kMaxSpare) pieces_.shrink_to_fit();
  is_step_function_ = is_nondecreasing_ = is_nonincreasing_ = true;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const LinearPiece& piece = pieces_[i];
    if (!piece.is_defined) {
      is_step_function_ = is_nondecreasing_ = is_nonincreasing_ = false;
      return;
    }
    is_step_function_ = is_step_function_ && piece.slope == 0;
    is_nondecreasing_ = is_nondecreasing_ && piece.slope >= 0;
    is_nonincreasing_ = is_nonincreasing_ && piece.slope <= 0;
    if (i == 0) continue;
    const std::int64_t jump = piece.at(piece.begin) - pieces_[i - 1].at(piece.begin - 1);
    is_nondecreasing_ = is_nondecreasing_ && jump >= 0;
    is_nonincreasing_ = is_nonincreasing_ && jump <= 0;
  }
}

const std::vector<std::uint32_t>& Piecewise::by_value() const {
  if (by_value_.size() != pieces_.size()) {
    by_value_.resize(pieces_.size());
    std::iota(by_value_.begin(), by_value_.end(), 0u);
    std::stable_sort(by_value_.begin(), by_value_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return pieces_[a].base < pieces_[b].base;
    });
  }
  return by_value_;
}

namespace {

// Walks pieces of several functions in step: calls visit(begin, end, pieces) on the coarsest common
// pieces.
template <class Visit>
bool walk(const std::vector<PiecewisePtr>& functions, Visit&& visit) {
  const std::int64_t n = functions[0]->size();
  std::vector<std::size_t> index(functions.size(), 0);
  std::vector<const LinearPiece*> pieces(functions.size());
  for (std::int64_t begin = 0; begin < n;) {
    std::int64_t end = n;
    for (std::size_t f = 0; f < functions.size(); ++f) {
      while (functions[f]->pieces()[index[f]].end <= begin) ++index[f];
      pieces[f] = &functions[f]->pieces()[index[f]];
      end = std::min<std::int64_t>(end, pieces[f]->end);
    }
    if (!visit(begin, end, pieces)) return false;
    begin = end;
  }
  return true;
}

// The first x of [begin, end) with d0 + slope * x >= 0, for slope > 0; end if there is none.
std::int64_t first_nonnegative(std::int64_t d0, std::int64_t slope, std::int64_t begin,
                               std::int64_t end) {
  return std::clamp(ceil_quotient(-d0, slope), begin, end);
}

bool overflows(std::int64_t value) {
  return value >= Piecewise::kMaxValue || value <= -Piecewise::kMaxValue;
}

class Applier {
 public:
  Applier(Piecewise& out, IntervalEffort& effort) : out_(out), effort_(effort) {}

  void reserve(std::size_t num_pieces) { out_.reserve(num_pieces); }
  bool undefined(std::int64_t begin, std::int64_t end) {
    return effort_.spend(1) && out_.append({begin, end, 0, 0, false});
  }
  bool constant(std::int64_t begin, std::int64_t end, std::int64_t value) {
    return effort_.spend(1) && !overflows(value) && out_.append({begin, end, value, 0});
  }
  bool linear(std::int64_t begin, std::int64_t end, std::int64_t base, std::int64_t slope) {
    return effort_.spend(1) && out_.append({begin, end, base, slope});
  }

  // The value of an operator on defined constants.
  bool value_of(IrOp op, std::int64_t begin, std::int64_t end, std::int64_t a, std::int64_t b) {
    std::int64_t value;
    if (apply_integer(op, a, b, value) != Defect::none) return undefined(begin, end);
    return constant(begin, end, value);
  }

  // Appends 1 where d0 + slope * x >= 0, else 0; the reverse if negated.
  bool sign(std::int64_t begin, std::int64_t end, std::int64_t d0, std::int64_t slope,
            bool negate) {
    std::int64_t border;  // values before it and from it on differ
    bool before;
    if (slope == 0) {
      border = end;
      before = d0 >= 0;
    } else if (slope > 0) {
      border = first_nonnegative(d0, slope, begin, end);
      before = false;
    } else {
      border = first_nonnegative(-d0 - 1, -slope, begin, end);  // d < 0 from there on
      before = true;
    }
    return constant(begin, border, before != negate) && constant(border, end, before == negate);
  }

  bool select(std::int64_t begin, std::int64_t end, const LinearPiece& a, const LinearPiece& b,
              bool larger) {
    // a where a >= b, for max
    const std::int64_t d0 = a.base - b.base, slope = a.slope - b.slope;
    std::int64_t border = end;
    const LinearPiece* first = d0 + slope * begin >= 0 ? &a : &b;
    const LinearPiece* second = first == &a ? &b : &a;
    if (slope > 0) border = first == &a ? end : first_nonnegative(d0, slope, begin, end);
    if (slope < 0) border = first == &b ? end : first_nonnegative(-d0 - 1, -slope, begin, end);
    if (!larger) std::swap(first, second);
    return linear(begin, border, first->base, first->slope) &&
           linear(border, end, second->base, second->slope);
  }

  // a // d or a % d for a constant d > 0.
  bool divide(IrOp op, std::int64_t begin, std::int64_t end, const LinearPiece& a, std::int64_t d) {
    for (std::int64_t x = begin; x < end;) {
      const std::int64_t value = a.at(x), quotient = floor_quotient(value, d);
      std::int64_t next = end;  // the first x with another quotient
      if (a.slope > 0) {
        next = first_nonnegative(a.base - (quotient + 1) * d, a.slope, x, end);
      } else if (a.slope < 0) {
        next = first_nonnegative(quotient * d - 1 - a.base, -a.slope, x, end);
      }
      const bool ok = op == IrOp::floor_div ? constant(x, next, quotient)
                                            : linear(x, next, a.base - quotient * d, a.slope);
      if (!ok) return false;
      x = next;
    }
    return true;
  }

 private:
  Piecewise& out_;
  IntervalEffort& effort_;
};

bool apply_binary(IrOp op, const PiecewisePtr& left, const PiecewisePtr& right, Applier& out) {
  return walk({left, right}, [&](std::int64_t begin, std::int64_t end, const auto& pieces) {
    const LinearPiece& a = *pieces[0];
    const LinearPiece& b = *pieces[1];
    if (op == IrOp::logical_and || op == IrOp::logical_or) {
      const std::int64_t decisive = op == IrOp::logical_or ? 1 : 0;
      if ((a.is_defined && a.base == decisive) || (b.is_defined && b.base == decisive)) {
        return out.constant(begin, end, decisive);
      }
      if (!a.is_defined || !b.is_defined) return out.undefined(begin, end);
      return out.constant(begin, end, 1 - decisive);
    }
    if (!a.is_defined || !b.is_defined) return out.undefined(begin, end);
    const std::int64_t d0 = a.base - b.base, ds = a.slope - b.slope;
    switch (op) {
      case IrOp::add:
        return out.linear(begin, end, a.base + b.base, a.slope + b.slope);
      case IrOp::sub:
        return out.linear(begin, end, d0, ds);
      case IrOp::min:
      case IrOp::max:
        return out.select(begin, end, a, b, op == IrOp::max);
      case IrOp::less:  // not a >= b
        return out.sign(begin, end, d0, ds, true);
      case IrOp::less_equal:  // b - a >= 0
        return out.sign(begin, end, -d0, -ds, false);
      case IrOp::equal:
      case IrOp::not_equal: {
        const std::int64_t equal = op == IrOp::equal ? 1 : 0;
        if (ds == 0) return out.constant(begin, end, (d0 == 0) == (equal == 1));
        const std::int64_t x = d0 % ds == 0 ? -d0 / ds : begin - 1;
        if (x < begin || x >= end) return out.constant(begin, end, 1 - equal);
        return out.constant(begin, x, 1 - equal) && out.constant(x, x + 1, equal) &&
               out.constant(x + 1, end, 1 - equal);
      }
      case IrOp::logical_xor:
        return out.constant(begin, end, a.base ^ b.base);
      case IrOp::floor_div:
      case IrOp::mod:
        if (b.slope == 0) {
          if (b.base <= 0) return out.undefined(begin, end);
          return out.divide(op, begin, end, a, b.base);
        }
        break;
      case IrOp::mul: {
        const LinearPiece& factor = a.slope == 0 ? a : b;
        const LinearPiece& other = a.slope == 0 ? b : a;
        if (factor.slope != 0) break;
        std::int64_t base, slope;
        if (__builtin_mul_overflow(factor.base, other.base, &base) ||
            __builtin_mul_overflow(factor.base, other.slope, &slope) || overflows(base) ||
            std::abs(slope) >= Piecewise::kMaxSlope) {
          return false;
        }
        return out.linear(begin, end, base, slope);
      }
      default:
        break;
    }
    if (a.slope == 0 && b.slope == 0) {
      return out.value_of(op, begin, end, a.base, b.base);
    }
    for (std::int64_t x = begin; x < end; ++x) {
      if (!out.value_of(op, x, x + 1, a.at(x), b.at(x))) return false;
    }
    return true;
  });
}

template <class T>
bool scan_table(const T* data, std::int64_t shift, std::int64_t begin, std::int64_t end,
                Applier& out) {
  std::size_t num_runs = 1;
  for (std::int64_t x = begin + 1; x < end; ++x) num_runs += data[x + shift] != data[x + shift - 1];
  out.reserve(num_runs);
  for (std::int64_t x = begin; x < end;) {
    const T value = data[x + shift];
    std::int64_t next = x + 1;
    while (next < end && data[next + shift] == value) ++next;
    if (!out.constant(x, next, static_cast<std::int64_t>(value))) return false;
    x = next;
  }
  return true;
}

// Reads entries [begin + shift, end + shift) of a 1-dimensional table; all of them exist.
bool scan(const IrTable& table, std::int64_t shift, std::int64_t begin, std::int64_t end,
          Applier& out) {
  if (table.is_runs()) {
    auto run = std::upper_bound(table.run_ends.begin(), table.run_ends.end(), begin + shift);
    for (std::int64_t x = begin; x < end; ++run) {
      const std::int64_t next = std::min(end, *run - shift);
      if (!out.constant(x, next,
                        table.run_values[static_cast<std::size_t>(run - table.run_ends.begin())])) {
        return false;
      }
      x = next;
    }
    return true;
  }
  switch (table.dtype) {
    case DType::boolean:
    case DType::uint8:
      return scan_table(static_cast<const std::uint8_t*>(table.data), shift, begin, end, out);
    case DType::int8:
      return scan_table(static_cast<const std::int8_t*>(table.data), shift, begin, end, out);
    case DType::int16:
      return scan_table(static_cast<const std::int16_t*>(table.data), shift, begin, end, out);
    case DType::uint16:
      return scan_table(static_cast<const std::uint16_t*>(table.data), shift, begin, end, out);
    case DType::int32:
      return scan_table(static_cast<const std::int32_t*>(table.data), shift, begin, end, out);
    case DType::uint32:
      return scan_table(static_cast<const std::uint32_t*>(table.data), shift, begin, end, out);
    case DType::int64:
    case DType::uint64:
      return scan_table(static_cast<const std::int64_t*>(table.data), shift, begin, end, out);
    default:
      return false;
  }
}

bool apply_lookup(const IrTable& table, const std::vector<PiecewisePtr>& indices, Applier& out) {
  return walk(indices, [&](std::int64_t begin, std::int64_t end, const auto& pieces) {
    bool is_constant = true;
    for (const LinearPiece* piece : pieces) {
      if (!piece->is_defined) return out.undefined(begin, end);
      is_constant = is_constant && piece->slope == 0;
    }
    if (table.rank == 1 && pieces[0]->slope == 1) {
      const std::int64_t shift = pieces[0]->base;
      const std::int64_t first = std::clamp(-shift, begin, end);
      const std::int64_t last = std::clamp(table.extents[0] - shift, first, end);
      return out.undefined(begin, first) && scan(table, shift, first, last, out) &&
             out.undefined(last, end);
    }
    for (std::int64_t x = begin; x < end;) {
      const std::int64_t next = is_constant ? end : x + 1;
      std::int64_t flat = 0;
      bool is_inside = true;
      for (int d = 0; d < table.rank; ++d) {
        const std::int64_t index = pieces[static_cast<std::size_t>(d)]->at(x);
        is_inside = is_inside && index >= 0 && index < table.extents[d];
        if (is_inside) flat = flat * table.extents[d] + index;
      }
      if (!(is_inside ? out.constant(x, next, table.at(flat)) : out.undefined(x, next)))
        return false;
      x = next;
    }
    return true;
  });
}

bool apply_where(const std::vector<PiecewisePtr>& operands, Applier& out) {
  return walk(operands, [&](std::int64_t begin, std::int64_t end, const auto& pieces) {
    if (!pieces[0]->is_defined) return out.undefined(begin, end);
    const LinearPiece& chosen = pieces[0]->base != 0 ? *pieces[1] : *pieces[2];
    if (!chosen.is_defined) return out.undefined(begin, end);
    return out.linear(begin, end, chosen.base, chosen.slope);
  });
}

bool apply_unary(IrOp op, const PiecewisePtr& operand, Applier& out) {
  return walk({operand}, [&](std::int64_t begin, std::int64_t end, const auto& pieces) {
    const LinearPiece& a = *pieces[0];
    if (!a.is_defined) return out.undefined(begin, end);
    if (op == IrOp::logical_not) return out.constant(begin, end, 1 - a.base);
    if (op == IrOp::from_bool) return out.constant(begin, end, a.base);
    const LinearPiece negative{begin, end, -a.base, -a.slope};
    return out.select(begin, end, a, negative, true);  // abs
  });
}

}  // namespace

PiecewisePtr apply(IrOp op, const std::vector<PiecewisePtr>& operands, const IrTable* table,
                   IntervalEffort& effort) {
  auto result = std::make_shared<Piecewise>();
  Applier out(*result, effort);
  bool ok = false;
  switch (op) {
    case IrOp::lookup:
    case IrOp::test:
      ok = table != nullptr && !operands.empty() && apply_lookup(*table, operands, out);
      break;
    case IrOp::where:
    case IrOp::where_condition:
      ok = apply_where(operands, out);
      break;
    case IrOp::abs:
    case IrOp::from_bool:
    case IrOp::logical_not:
      ok = apply_unary(op, operands[0], out);
      break;
    default:
      ok = operands.size() == 2 && apply_binary(op, operands[0], operands[1], out);
      break;
  }
  if (!ok) return nullptr;
  result->finish();
  return result;
}

}  // namespace fdma
