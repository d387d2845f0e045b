// Method
//   Leaves   The largest parts that vary along one axis are computed as vectors. Over a tile, an
//            integer part is a base (its least value) plus local values; equal local values, with
//            their undefined positions, are one class. q over a tile of 128 rows is 128 * row plus
//            0 .. 127, so all its tiles have one class.
//   Steps    The nodes above are numbered from their operands' bases and classes. Additions add
//            bases, comparisons depend on the difference of bases, bit operations split where bases
//            are multiples of a power of two above the local values, and a table depends on the
//            entries that the tile reads. Other operators depend on bases and classes as they are.
//            Equal operator, bases and classes give an equal class: a look-up in a hash table.
//   Logic    Operands that are true or false all over the tile fold, so `causal & x` has the class
//            of x below the diagonal.
//
// Fits     `@t[q // 64, k // 64]` in blocks of 128: 16 classes; neighbours in Morton order: the
//          difference of two corners; `bitand(q, k) == 0`: two classes
// Does not random indices or @seen[q, k] (every tile its own class); loops; the caller then goes on
//          without numbers
// Cost     some 10 ns for each tile and step
// Length   The file is longer than most: bases, classes and steps are read together.
#include "boxes/tile_numbers.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>
#include <unordered_map>

#include "boxes/axis_vector.hpp"
#include "boxes/row_bits.hpp"
#include "fdma/base/interval.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma::box {
namespace {

/// Below, the sum of any few bases and bounds does not overflow.
constexpr std::int64_t kLimit = std::int64_t{1} << 60;
/// The most local values that a class lists, and the most entries of a table that a tile may read.
constexpr std::size_t kMaxValues = 8;
constexpr std::int64_t kMaxBits = 64;
constexpr std::int64_t kMaxIntegers = 4;  // of 16 bits each
constexpr std::size_t kMemoBits = 8;
/// Tiles that are numbered step by step.
constexpr std::size_t kTilesAtOnce = 128;
/// The most classes of one worker.
constexpr std::size_t kMaxNumbers = std::size_t{1} << 16;
/// The most positions read to find the windows of a diagonal part.
constexpr std::int64_t kMaxWindowCells = std::int64_t{1} << 26;

constexpr std::int32_t kFalseId = TileNumbers::Worker::kEmpty;
constexpr std::int32_t kTrueId = TileNumbers::Worker::kFull;
constexpr std::int32_t kZeroId = 2;  // an integer with no local part
constexpr std::int32_t kNoId = TileNumbers::Worker::kNone;

bool is_small(std::int64_t value) { return value > -kLimit && value < kLimit; }

/// Bounds [lo, hi] of local values, or none where an operand has none or they are wide.
template <class Local>
Local bounds(bool are_known, std::int64_t lo, std::int64_t hi, bool is_defined) {
  if (!are_known || !is_small(lo) || !is_small(hi)) return {-kLimit, kLimit, is_defined};
  return {lo, hi, is_defined};
}

bool is_loop(IrOp op) { return op == IrOp::any_of || op == IrOp::all_of || op == IrOp::loop; }

bool is_logic(IrOp op) {
  return op == IrOp::logical_and || op == IrOp::logical_or || op == IrOp::logical_xor ||
         op == IrOp::logical_not || op == IrOp::where_condition;
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

// Numbers the contents of leaves over a tile.
class TileNumbers::Interner {
 public:
  Interner(std::vector<Local>& locals, std::vector<std::int64_t>& values)
      : locals_(locals), values_(values) {
    locals_.assign(3, {});
    locals_[kZeroId].num_values = 1;
    values_.push_back(0);
  }

  /// The numbers of operands of sums with a number, by node.
  std::unordered_map<IrId, std::vector<Number>> operands;

  Number integers(Axis axis, const IntegerVector& vector, std::int64_t begin, std::int64_t end) {
    const NodeRange range = vector.range(begin, end);
    const std::int64_t base = range.has_values() ? range.lo : 0;
    if (range.is_constant()) return {base, kZeroId};
    start(axis, 0, end - begin);
    for (std::int64_t i = begin; i < end; ++i) {
      content_.push_back(
          vector.is_undefined(i)
              ? 0
              : static_cast<std::int64_t>(
                    static_cast<std::uint64_t>(vector.values[static_cast<std::size_t>(i)]) -
                    static_cast<std::uint64_t>(base)));
    }
    if (range.may_be_undefined) append_bits(vector.undefined, begin, end);
    const auto [id, is_new] = find();
    if (is_new) {
      Local& local = locals_.back();
      local.is_defined = !range.may_be_undefined;
      const bool is_bounded = is_small(base) && (!range.has_values() || is_small(range.hi));
      local.hi = range.has_values() && is_bounded ? range.hi - base : 0;
      if (!is_bounded || local.hi >= kLimit) {
        local.lo = -kLimit;
        local.hi = kLimit;
      }
      list_values(local, end - begin);
    }
    return {base, id};
  }

  Number conditions(Axis axis, const ConditionVector& vector, std::int64_t begin,
                    std::int64_t end) {
    const Outcomes outcomes = vector.range(begin, end);
    if (outcomes == kTrue) return {0, kTrueId};
    if (outcomes == kFalse) return {0, kFalseId};
    start(axis, 1, end - begin);
    append_bits(vector.is_true, begin, end);
    if (!vector.is_false.empty()) append_bits(vector.is_false, begin, end);
    const auto [id, is_new] = find();
    if (is_new) locals_.back().is_defined = (outcomes & kUndefined) == 0;
    return {0, id};
  }

 private:
  // Equal values along two axes are two classes.
  void start(Axis axis, std::int64_t is_condition, std::int64_t length) {
    content_.assign(1, 16 * length + 2 * static_cast<std::int64_t>(axis) + is_condition);
  }

  void append_bits(const std::vector<std::uint64_t>& words, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += 64) {
      content_.push_back(static_cast<std::int64_t>(
          read_bits(words.data(), at, static_cast<int>(std::min<std::int64_t>(64, end - at)))));
    }
  }

  // The class of content_, and whether it is new.
  std::pair<std::int32_t, bool> find() {
    std::uint64_t hash = content_.size();
    for (const std::int64_t word : content_) hash = mix(hash, static_cast<std::uint64_t>(word));
    const auto [first, last] = known_.equal_range(hash);
    for (auto at = first; at != last; ++at) {
      if (contents_[static_cast<std::size_t>(at->second)] == content_) {
        return {static_cast<std::int32_t>(at->second) + 3, false};
      }
    }
    known_.emplace(hash, static_cast<std::int32_t>(contents_.size()));
    contents_.push_back(content_);
    locals_.emplace_back();
    return {static_cast<std::int32_t>(locals_.size()) - 1, true};
  }

  void list_values(Local& local, std::int64_t count) {
    if (!local.is_defined) return;
    std::vector<std::int64_t> distinct;
    for (std::int64_t i = 1; i <= count; ++i) {
      const std::int64_t value = content_[static_cast<std::size_t>(i)];
      const auto at = std::lower_bound(distinct.begin(), distinct.end(), value);
      if (at != distinct.end() && *at == value) continue;
      if (distinct.size() == kMaxValues) return;
      distinct.insert(at, value);
    }
    local.first_value = static_cast<std::int32_t>(values_.size());
    local.num_values = static_cast<std::int32_t>(distinct.size());
    values_.insert(values_.end(), distinct.begin(), distinct.end());
  }

  std::vector<Local>& locals_;
  std::vector<std::int64_t>& values_;
  std::vector<std::int64_t> content_;
  std::vector<std::vector<std::int64_t>> contents_;
  std::unordered_multimap<std::uint64_t, std::int32_t> known_;
};

TileNumbers::~TileNumbers() = default;

TileNumbers::TileNumbers(const BoxProgram& program, BlockShape block)
    : q_len_(program.q_len()),
      kv_len_(program.kv_len()),
      block_(block),
      num_tile_rows_(ceil_div(q_len_, block.block_q)),
      window_step_(std::gcd(block.block_q, block.block_kv)),
      program_(program) {
  std::vector<IrId> found;
  std::vector<bool> is_seen(static_cast<std::size_t>(program.num_nodes()), false);
  std::vector<IrId> stack{program.root()};
  while (!stack.empty()) {
    const IrId id = stack.back();
    stack.pop_back();
    if (is_seen[static_cast<std::size_t>(id)]) continue;
    is_seen[static_cast<std::size_t>(id)] = true;
    found.push_back(id);
    if (program.axis(id) != Axis::cell) continue;
    const IrNode& node = program.node(id);
    if (is_loop(node.op)) {
      is_usable_ = false;
      return;
    }
    for (int c = 0; c < node.num_children; ++c) stack.push_back(node.children[c]);
  }
  std::sort(found.begin(), found.end());
  Interner interner(locals_, values_);
  std::vector<std::int32_t> place(is_seen.size(), -1);
  for (const IrId id : found) {
    if (program.axis(id) == Axis::cell) continue;
    if (!is_usable_ || program.must_stop()) return;
    place[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(leaves_.size());
    add_leaf(program, id, program.axis(id), interner);
  }
  for (const IrId id : found) {
    if (program.axis(id) != Axis::cell) continue;
    const IrNode& node = program.node(id);
    const NodeRange& range = program.facts(id).range;
    Step step{node.op, node.value, node.num_children, {-1, -1, -1, -1}, range.may_be_undefined,
              range};
    for (int c = 0; c < node.num_children; ++c) {
      step.children[c] = place[static_cast<std::size_t>(node.children[c])];
    }
    place[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(leaves_.size() + steps_.size());
    steps_.push_back(step);
  }
}

bool TileNumbers::has_diagonals() const {
  return std::any_of(leaves_.begin(), leaves_.end(),
                     [](const Leaf& leaf) { return leaf.axis == Axis::diagonal; });
}

void TileNumbers::add_leaf(const BoxProgram& program, IrId id, Axis axis, Interner& interner) {
  const std::optional<SumWithConstant> sum = sum_with_constant(program, id);
  if (!sum) {
    leaves_.push_back({axis, numbers_of(program, id, axis, interner)});
    return;
  }
  // Sums with the same operand differ in their bases alone.
  const auto [known, is_new] = interner.operands.try_emplace(sum->operand);
  if (is_new) known->second = numbers_of(program, sum->operand, axis, interner);
  Leaf leaf{axis, known->second};
  for (Number& number : leaf.numbers) number.base += sum->constant;
  leaves_.push_back(std::move(leaf));
}

std::vector<TileNumbers::Number> TileNumbers::numbers_of(const BoxProgram& program, IrId id,
                                                         Axis axis, Interner& interner) {
  std::vector<Number> numbers;
  // The first position of each tile or window, and the length of a whole one.
  std::int64_t first = 0;
  std::int64_t step = 1;
  std::int64_t size = 1;
  const std::int64_t length = axis_length(program, axis);
  if (axis == Axis::query) step = size = block_.block_q;
  if (axis == Axis::key) step = size = block_.block_kv;
  if (axis == Axis::diagonal) {
    // The first tile row's first tile has its window at q_len - block_q; windows of later rows
    // begin before position 0 where the last tile row is not whole.
    step = window_step_;
    size = block_.block_q + block_.block_kv - 1;
    first = q_len_ - num_tile_rows_ * block_.block_q;
    if (length / step * size > kMaxWindowCells) {
      is_usable_ = false;
      return numbers;
    }
  }
  const auto fill = [&](auto&& number) {
    for (std::int64_t begin = first; begin < length; begin += step) {
      numbers.push_back(number(std::max<std::int64_t>(begin, 0), std::min(length, begin + size)));
    }
  };
  if (is_condition(program.node(id).op)) {
    const ConditionVector vector = condition_vector(program, id, axis);
    fill([&](std::int64_t begin, std::int64_t end) {
      return interner.conditions(axis, vector, begin, end);
    });
  } else {
    const std::shared_ptr<const IntegerVector> vector = shared_integer_vector(program, id);
    fill([&](std::int64_t begin, std::int64_t end) {
      return interner.integers(axis, *vector, begin, end);
    });
  }
  return numbers;
}

TileNumbers::Worker::Worker(const TileNumbers& numbers)
    : numbers_(numbers),
      known_(numbers.steps_.size() * kTilesAtOnce),
      locals_(numbers.locals_),
      slots_(1024),
      memos_(numbers.steps_.size()) {}

void TileNumbers::Worker::begin_row(std::int32_t tile_row) { tile_row_ = tile_row; }

// The numbers of a leaf or step for the tiles from `first_col` on.
TileNumbers::Worker::Operand TileNumbers::Worker::operand(std::int32_t place,
                                                          std::int32_t first_col) const {
  const auto at = static_cast<std::size_t>(place);
  const std::size_t num_leaves = numbers_.leaves_.size();
  if (at >= num_leaves) return {known_.data() + (at - num_leaves) * kTilesAtOnce, 1};
  const Leaf& leaf = numbers_.leaves_[at];
  const Number* first = leaf.numbers.data();
  switch (leaf.axis) {
    case Axis::query:
      return {first + tile_row_, 0};
    case Axis::key:
      return {first + first_col, 1};
    case Axis::diagonal: {
      const BlockShape block = numbers_.block_;
      const std::int64_t diagonal = std::int64_t{first_col} * block.block_kv +
                                    (numbers_.num_tile_rows_ - 1 - tile_row_) * block.block_q;
      return {first + diagonal / numbers_.window_step_,
              static_cast<std::size_t>(block.block_kv / numbers_.window_step_)};
    }
    default:
      return {first, 0};
  }
}

void TileNumbers::Worker::number(std::int32_t first_col, std::int32_t end_col, std::int32_t* out) {
  const auto last = static_cast<std::int32_t>(numbers_.leaves_.size() + numbers_.steps_.size()) - 1;
  while (first_col < end_col) {
    const std::size_t count = std::min(kTilesAtOnce, static_cast<std::size_t>(end_col - first_col));
    Number* known = known_.data();
    for (std::size_t s = 0; s < numbers_.steps_.size(); ++s, known += kTilesAtOnce) {
      const Step& step = numbers_.steps_[s];
      Operand operands[4];
      for (int c = 0; c < step.num_children; ++c) {
        operands[c] = operand(step.children[c], first_col);
      }
      if (step.op == IrOp::test || step.op == IrOp::lookup) {
        tables(step, operands, count, memos_[s], known);
      } else {
        derive(step, operands, count, known);
      }
    }
    const Operand root = operand(last, first_col);
    for (std::size_t i = 0; i < count; ++i) *out++ = root.at(i).id;
    first_col += static_cast<std::int32_t>(count);
  }
}

// A step that is no table, for `count` tiles.
void TileNumbers::Worker::derive(const Step& step, const Operand* operands, std::size_t count,
                                 Number* out) {
  const Number none{0, kFalseId};
  const auto operand_or_none = [&](int c) {
    return c < step.num_children ? operands[c] : Operand{&none, 0};
  };
  const Operand a = operand_or_none(0), b = operand_or_none(1), c = operand_or_none(2);
  if (is_logic(step.op)) {
    for (std::size_t i = 0; i < count; ++i)
      out[i] = logic(step, a.at(i).id, b.at(i).id, c.at(i).id);
    return;
  }
  const auto is_known = [](const Number& number) {
    return number.id != kNoId && is_small(number.base);
  };
  for (std::size_t i = 0; i < count; ++i) {
    const Number &x = a.at(i), &y = b.at(i), &z = c.at(i);
    out[i] = is_known(x) && is_known(y) && is_known(z) ? derive(step, x, y, z) : Number{0, kNoId};
  }
}

TileNumbers::Number TileNumbers::Worker::derive(const Step& step, const Number& a, const Number& b,
                                                const Number& c) {
  switch (step.op) {
    case IrOp::from_bool:
      if (a.id == kFalseId) return {0, kZeroId};
      if (a.id == kTrueId) return {1, kZeroId};
      return {0, intern({0, 0, {a.id, 0, 0}, static_cast<std::int32_t>(step.op)},
                        {0, 1, local(a.id).is_defined})};
    case IrOp::where:
      return choice(step, a, b, c);
    case IrOp::abs: {
      const Local& values = local(a.id);
      if (values.is_defined && a.base + values.lo >= 0) return a;
      const std::int64_t most = std::max(a.base + values.hi, -(a.base + values.lo));
      return {0, intern({a.base, 0, {a.id, 0, 0}, static_cast<std::int32_t>(step.op)},
                        bounds<Local>(is_bounded(values), 0, most, values.is_defined))};
    }
    case IrOp::add:
    case IrOp::sub: {
      if (step.may_be_undefined) return opaque(step, a, b);
      const bool is_sum = step.op == IrOp::add;
      const std::int64_t base = is_sum ? a.base + b.base : a.base - b.base;
      if (b.id == kZeroId) return {base, a.id};
      if (is_sum && a.id == kZeroId) return {base, b.id};
      const Local& x = local(a.id);
      const Local& y = local(b.id);
      return {base, intern({0, 0, {a.id, b.id, 0}, static_cast<std::int32_t>(step.op)},
                           bounds<Local>(is_bounded(x) && is_bounded(y),
                                         is_sum ? x.lo + y.lo : x.lo - y.hi,
                                         is_sum ? x.hi + y.hi : x.hi - y.lo, true))};
    }
    case IrOp::bit_and:
    case IrOp::bit_or:
    case IrOp::bit_xor:
      return bitwise(step, a, b);
    case IrOp::min:
    case IrOp::max:
      return extremum(step, a, b);
    case IrOp::less:
    case IrOp::less_equal:
    case IrOp::equal:
    case IrOp::not_equal:
      return compare(step, a, b);
    case IrOp::mod: {
      // The remainder depends on the base modulo a divisor that is the same all over the tile.
      if (step.may_be_undefined || b.id != kZeroId || b.base < 1) return opaque(step, a, b);
      const std::int64_t rest = a.base % b.base;
      return opaque(step, {rest < 0 ? rest + b.base : rest, a.id}, b);
    }
    default:
      return opaque(step, a, b);
  }
}

TileNumbers::Number TileNumbers::Worker::opaque(const Step& step, const Number& a,
                                                const Number& b) {
  const NodeRange& range = step.range;
  // The third class tells these keys from those of operators that split.
  return {0, intern({a.base, b.base, {a.id, b.id, 1}, static_cast<std::int32_t>(step.op)},
                    bounds<Local>(range.has_values(), range.lo, range.hi, !step.may_be_undefined))};
}

TileNumbers::Number TileNumbers::Worker::bitwise(const Step& step, const Number& a,
                                                 const Number& b) {
  const Local& x = local(a.id);
  const Local& y = local(b.id);
  if (x.lo < 0 || y.lo < 0 || !is_bounded(x) || !is_bounded(y)) return opaque(step, a, b);
  // Bits below 2^width are those of the local values and of what the bases have there; no sum of
  // both carries beyond.
  const auto low_of = [](std::int64_t most) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(most) + 1) - 1);
  };
  std::int64_t low = low_of(std::max(x.hi, y.hi));
  low = low_of(std::max((a.base & low) + x.hi, (b.base & low) + y.hi));
  const std::int64_t low_a = a.base & low, low_b = b.base & low;
  if (low_a + x.hi > low || low_b + y.hi > low) return opaque(step, a, b);
  const std::int64_t high_a = a.base - low_a, high_b = b.base - low_b;
  const std::int64_t base = step.op == IrOp::bit_and  ? high_a & high_b
                            : step.op == IrOp::bit_or ? high_a | high_b
                                                      : high_a ^ high_b;
  if (low == 0 && x.is_defined && y.is_defined) return {base, kZeroId};
  // The third class tells these keys from those of opaque operators, and by their width.
  const std::int32_t width = std::bit_width(static_cast<std::uint64_t>(low));
  return {base, intern({low_a, low_b, {a.id, b.id, 2 + width}, static_cast<std::int32_t>(step.op)},
                       {0, low, x.is_defined && y.is_defined})};
}

TileNumbers::Number TileNumbers::Worker::extremum(const Step& step, const Number& a,
                                                  const Number& b) {
  const std::int64_t shift = b.base - a.base;
  const Local& x = local(a.id);
  const Local& y = local(b.id);
  const bool is_min = step.op == IrOp::min;
  const std::int64_t lo = is_min ? std::min(x.lo, y.lo + shift) : std::max(x.lo, y.lo + shift);
  const std::int64_t hi = is_min ? std::min(x.hi, y.hi + shift) : std::max(x.hi, y.hi + shift);
  return {a.base, intern({shift, 0, {a.id, b.id, 0}, static_cast<std::int32_t>(step.op)},
                         bounds<Local>(is_bounded(x) && is_bounded(y), lo, hi,
                                       x.is_defined && y.is_defined))};
}

TileNumbers::Number TileNumbers::Worker::choice(const Step& step, const Number& c, const Number& a,
                                                const Number& b) {
  if (c.id == kTrueId) return a;
  if (c.id == kFalseId) return b;
  const std::int64_t shift = b.base - a.base;
  const Local& x = local(a.id);
  const Local& y = local(b.id);
  return {a.base, intern({shift, 0, {c.id, a.id, b.id}, static_cast<std::int32_t>(step.op)},
                         bounds<Local>(is_bounded(x) && is_bounded(y), std::min(x.lo, y.lo + shift),
                                       std::max(x.hi, y.hi + shift),
                                       local(c.id).is_defined && x.is_defined && y.is_defined))};
}

TileNumbers::Number TileNumbers::Worker::compare(const Step& step, const Number& a,
                                                 const Number& b) {
  const std::int64_t shift = a.base - b.base;
  const Local& x = local(a.id);
  const Local& y = local(b.id);
  if (x.is_defined && y.is_defined && is_bounded(x) && is_bounded(y)) {
    const NodeRange sides[2] = {{x.lo + shift, x.hi + shift, false}, {y.lo, y.hi, false}};
    const Outcomes outcomes = range_of(IrNode{step.op, 2}, sides).outcomes();
    if (outcomes == kTrue) return {0, kTrueId};
    if (outcomes == kFalse) return {0, kFalseId};
  }
  return {0, intern({shift, 0, {a.id, b.id, 0}, static_cast<std::int32_t>(step.op)},
                    {0, 1, x.is_defined && y.is_defined})};
}

// Operands that the operator has not are false.
TileNumbers::Number TileNumbers::Worker::logic(const Step& step, std::int32_t a, std::int32_t b,
                                               std::int32_t c) {
  switch (step.op) {
    case IrOp::logical_and:
      if (a == kFalseId || b == kFalseId) return {0, kFalseId};
      if (a == kTrueId || a == b) return {0, b};
      if (b == kTrueId) return {0, a};
      break;
    case IrOp::logical_or:
      if (a == kTrueId || b == kTrueId) return {0, kTrueId};
      if (a == kFalseId || a == b) return {0, b};
      if (b == kFalseId) return {0, a};
      break;
    case IrOp::logical_xor:
      if (a == kFalseId) return {0, b};
      if (b == kFalseId) return {0, a};
      if (a == kTrueId && b == kTrueId) return {0, kFalseId};
      break;
    case IrOp::logical_not:
      if (a == kFalseId) return {0, kTrueId};
      if (a == kTrueId) return {0, kFalseId};
      break;
    default:
      if (a == kTrueId) return {0, b};
      if (a == kFalseId) return {0, c};
  }
  if (a == kNoId || b == kNoId || c == kNoId) return {0, kNoId};
  return {0, intern({0, 0, {a, b, c}, static_cast<std::int32_t>(step.op)},
                    {0, 1, local(a).is_defined && local(b).is_defined && local(c).is_defined})};
}

// The entries that a tile reads, as bits, or as 16-bit differences to the least.
TileNumbers::Number TileNumbers::Worker::table_number(const Step& step, const Number& a,
                                                      const Number& b, TableMemo& memo) {
  const IrTable& table = numbers_.program_.tables().table(step.value);
  const bool is_test = step.op == IrOp::test;
  if (table.is_runs() || step.num_children > 2 || step.num_children == 0) return {0, kNoId};
  const Number* index[2] = {&a, &b};
  std::span<const std::int64_t> values[2];
  for (int d = 0; d < 2; ++d) {
    if (index[d]->id == kNoId) return {0, kNoId};
    const Local& locals = local(index[d]->id);
    if (locals.num_values == 0) return {0, kNoId};
    values[d] = {numbers_.values_.data() + locals.first_value,
                 static_cast<std::size_t>(locals.num_values)};
    const std::int64_t extent = d < step.num_children ? table.extents[d] : 1;
    if (!is_small(index[d]->base) || index[d]->base + values[d].front() < 0 ||
        index[d]->base + values[d].back() >= extent) {
      return {0, kNoId};
    }
  }
  const auto count = static_cast<std::int64_t>(values[0].size() * values[1].size());
  if (count > (is_test ? kMaxBits : kMaxIntegers)) return {0, kNoId};
  const std::int64_t stride = step.num_children == 2 ? table.extents[1] : 1;
  std::uint64_t bits = 0;
  int shift = 0;
  std::int64_t base = 0;
  if (is_test && table.dtype == DType::boolean) {
    const auto* bytes = static_cast<const std::uint8_t*>(table.data);
    for (const std::int64_t row : values[0]) {
      const std::uint8_t* entries = bytes + (index[0]->base + row) * stride + index[1]->base;
      for (const std::int64_t column : values[1]) {
        bits |= std::uint64_t{entries[column] != 0} << shift++;
      }
    }
    const std::uint64_t all = low_bits(count);
    if (bits == 0) return {0, kFalseId};
    if (bits == all) return {0, kTrueId};
  } else {
    if (is_test) return {0, kNoId};
    std::int64_t entries[kMaxIntegers];
    std::size_t num_entries = 0;
    for (const std::int64_t row : values[0]) {
      for (const std::int64_t column : values[1]) {
        entries[num_entries++] =
            table.at((index[0]->base + row) * stride + index[1]->base + column);
      }
    }
    const auto [least, most] = std::minmax_element(entries, entries + num_entries);
    base = *least;
    if (!is_small(*least) || !is_small(*most) || *most - *least >= (1 << 16)) return {0, kNoId};
    if (*least == *most) return {base, kZeroId};
    for (std::size_t i = 0; i < num_entries; ++i, shift += 16) {
      bits |= static_cast<std::uint64_t>(entries[i] - base) << shift;
    }
  }
  const auto find = [&] {
    return intern({static_cast<std::int64_t>(bits),
                   step.value,
                   {index[0]->id, index[1]->id, 0},
                   static_cast<std::int32_t>(step.op)},
                  Local{0, is_test ? 1 : (1 << 16) - 1, true});
  };
  if (count > static_cast<std::int64_t>(kMemoBits) || !is_test) return {base, find()};
  if (memo.ids[0] != index[0]->id || memo.ids[1] != index[1]->id) {
    memo.ids[0] = index[0]->id;
    memo.ids[1] = index[1]->id;
    memo.number_of.assign(std::size_t{1} << count, kNoId);
    memo.number_of.front() = kFalseId;
    memo.number_of.back() = kTrueId;
    for (int d = 0; d < 2; ++d) {
      memo.first[d] = -values[d].front();
      memo.last[d] = (d < step.num_children ? table.extents[d] : 1) - 1 - values[d].back();
    }
    std::size_t next = 0;
    for (const std::int64_t row : values[0]) {
      for (const std::int64_t column : values[1]) {
        memo.offsets[next++] = row * stride + column;
      }
    }
  }
  std::int32_t& known = memo.number_of[static_cast<std::size_t>(bits)];
  if (known == kNoId) known = find();
  return {base, known};
}

// A table for `count` tiles. While index classes are those of the memo, entries are read at once.
void TileNumbers::Worker::tables(const Step& step, const Operand* operands, std::size_t count,
                                 TableMemo& memo, Number* out) {
  const IrTable& table = numbers_.program_.tables().table(step.value);
  const Number zero{0, kZeroId};
  const Operand none{&zero, 0};
  const Operand a = step.num_children > 0 ? operands[0] : none;
  const Operand b = step.num_children > 1 ? operands[1] : none;
  const std::int64_t stride = step.num_children == 2 ? table.extents[1] : 1;
  const auto* bytes = static_cast<const std::uint8_t*>(table.data);
  for (std::size_t i = 0; i < count; ++i) {
    i = known_tables(memo, bytes, stride, a, b, i, count, out);
    if (i < count) out[i] = table_number(step, a.at(i), b.at(i), memo);
  }
}

// Numbers tiles from `i` on while the memo has them, and returns the first one that it has not. A
// memo has numbers of boolean tables only.
std::size_t TileNumbers::Worker::known_tables(const TableMemo& memo, const std::uint8_t* bytes,
                                              std::int64_t stride, const Operand& a,
                                              const Operand& b, std::size_t i, std::size_t count,
                                              Number* out) {
  if (memo.number_of.empty()) return i;
  const std::int32_t row_id = memo.ids[0], column_id = memo.ids[1];
  const std::int64_t first_row = memo.first[0], last_row = memo.last[0];
  const std::int64_t first_column = memo.first[1], last_column = memo.last[1];
  const std::int32_t* number_of = memo.number_of.data();
  std::int64_t offsets[8];
  std::copy_n(memo.offsets, 8, offsets);
  int num_entries = 0;
  while ((std::size_t{1} << num_entries) < memo.number_of.size()) ++num_entries;
  for (; i < count; ++i) {
    const Number row = a.at(i), column = b.at(i);
    if (row.id != row_id || column.id != column_id || row.base < first_row || row.base > last_row ||
        column.base < first_column || column.base > last_column) {
      return i;
    }
    const std::uint8_t* entries = bytes + row.base * stride + column.base;
    std::size_t bits = 0;
    if (num_entries == 4) {  // two by two
      bits = std::size_t{entries[offsets[0]] != 0} | std::size_t{entries[offsets[1]] != 0} << 1 |
             std::size_t{entries[offsets[2]] != 0} << 2 |
             std::size_t{entries[offsets[3]] != 0} << 3;
    } else {
      for (int e = 0; e < num_entries; ++e) bits |= std::size_t{entries[offsets[e]] != 0} << e;
    }
    const std::int32_t id = number_of[bits];
    if (id == kNoId) return i;
    out[i] = {0, id};
  }
  return i;
}

bool TileNumbers::Worker::is_bounded(const Local& local) {
  return local.lo > -kLimit && local.hi < kLimit;
}

std::uint64_t TileNumbers::Worker::hash_of(const Key& key) {
  std::uint64_t hash = mix(static_cast<std::uint64_t>(key.op), static_cast<std::uint64_t>(key.a));
  hash = mix(hash, static_cast<std::uint64_t>(key.b));
  hash = mix(hash, (static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.ids[0])) << 32) |
                       static_cast<std::uint32_t>(key.ids[1]));
  return mix(hash, static_cast<std::uint32_t>(key.ids[2]));
}

// The slot of a key, or the free one where it belongs.
TileNumbers::Worker::Slot& TileNumbers::Worker::slot_of(const Key& key) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash_of(key) & mask;
  while (slots_[at].id != kNone && !(slots_[at].key == key)) at = (at + 1) & mask;
  return slots_[at];
}

std::int32_t TileNumbers::Worker::intern(const Key& key, const Local& local) {
  Slot& slot = slot_of(key);
  if (slot.id != kNone) return slot.id;
  if (locals_.size() >= kMaxNumbers) return kNone;
  const auto id = static_cast<std::int32_t>(locals_.size());
  slot = {key, id};
  locals_.push_back(local);
  if (2 * ++num_slots_used_ > slots_.size()) {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& kept : old) {
      if (kept.id != kNone) slot_of(kept.key) = kept;
    }
  }
  return id;
}

}  // namespace fdma::box
