// The steps are the nodes of the outputs' cone in order, so children come first. A loop is one
// step. The nodes that mention its variable, and no variable of an inner loop, form its body, which
// runs once per value. Values of undefined lanes are arbitrary but harmless: divisors, shifts and
// table indices are checked lane by lane unless the facts prove them valid for every cell.
//
// Longer than most files: one kernel per operator, all in one place.
#include "boxes/lane_eval.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "boxes/row_bits.hpp"
#include "ir/arithmetic.hpp"

namespace fdma::box {
namespace {

/// Integers up to this divide exactly in doubles: the rounding error of the quotient is below its
/// distance to the next integer.
constexpr std::int64_t kExactDouble = std::int64_t{1} << 51;
/// Evaluations between two calls of the meter, some milliseconds.
constexpr std::int64_t kWorkBetweenQuestions = std::int64_t{1} << 22;
/// Evaluations after which the turns of a loop so far predict the cost of the others.
constexpr std::int64_t kTrialWork = std::int64_t{1} << 24;

// A table that a named mask derives is called "tree(parents=@t) exit". For a message, the user's
// table "t" and ", in tree(parents=@t)". A table of the user has no owner.
std::pair<std::string, std::string> table_and_owner(const std::string& name) {
  const std::size_t at = name.find("=@");
  const std::size_t close = name.find(')');
  if (at == std::string::npos || close == std::string::npos) return {name, {}};
  return {name.substr(at + 2, name.find_first_of(",)", at) - at - 2),
          fmt::format(", in {}", name.substr(0, close + 1))};
}

bool is_loop(IrOp op) { return op == IrOp::any_of || op == IrOp::all_of; }

using arithmetic::as_signed;
using arithmetic::as_unsigned;

bool test_bit(const std::uint64_t* bits, int i) { return ((bits[i / 64] >> (i % 64)) & 1) != 0; }
void set_bit(std::uint64_t* bits, int i) { bits[i / 64] |= std::uint64_t{1} << (i % 64); }

}  // namespace

LaneEvaluator::LaneEvaluator(const BoxProgram& program, std::span<const IrId> outputs,
                             std::span<const IrId> inputs, WorkMeter* meter, std::int64_t num_runs)
    : program_(program),
      meter_(meter),
      num_runs_(static_cast<double>(num_runs)),
      slot_index_(static_cast<std::size_t>(program.num_nodes()), -1) {
  std::vector<IrId> cone;
  std::vector<IrId> stack(outputs.begin(), outputs.end());
  std::vector<bool> is_input(slot_index_.size(), false);
  for (const IrId id : inputs) is_input[static_cast<std::size_t>(id)] = true;
  while (!stack.empty()) {
    const IrId id = stack.back();
    stack.pop_back();
    if (reaches(id)) continue;
    slot_index_[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(cone.size());
    cone.push_back(id);
    if (is_input[static_cast<std::size_t>(id)]) continue;
    const IrNode& node = program.node(id);
    const bool is_given = node.op == IrOp::q || node.op == IrOp::k || node.op == IrOp::constant;
    if (program.open_loops(id).empty() && !is_given) {
      steps_.push_back(id);
    }
    for (int c = 0; c < node.num_children; ++c) stack.push_back(node.children[c]);
  }
  std::sort(steps_.begin(), steps_.end());
  constexpr std::size_t kSlotWords = kLanes + 2 * kWords;
  storage_.resize(cone.size() * kSlotWords);
  slots_.resize(cone.size());
  for (std::size_t i = 0; i < cone.size(); ++i) {
    std::uint64_t* words = storage_.data() + i * kSlotWords;
    auto* values = reinterpret_cast<std::int64_t*>(words + 2 * kWords);
    slots_[i] = {values, values, words, words + kWords};
    const IrNode& node = program.node(cone[i]);
    if (is_loop(node.op)) bodies_[cone[i]] = body_of(cone[i]);
    if (node.op == IrOp::constant) std::fill_n(values, kLanes, node.value);
  }
}

std::vector<IrId> LaneEvaluator::body_of(IrId loop) const {
  const std::int64_t variable = program_.node(loop).value;
  const auto outer = program_.open_loops(loop);
  std::vector<IrId> body;
  std::vector<IrId> stack{program_.node(loop).children[1]};
  std::vector<IrId> seen;
  while (!stack.empty()) {
    const IrId id = stack.back();
    stack.pop_back();
    const auto open = program_.open_loops(id);
    if (!std::binary_search(open.begin(), open.end(), variable)) continue;
    const auto place = std::lower_bound(seen.begin(), seen.end(), id);
    if (place != seen.end() && *place == id) continue;
    seen.insert(place, id);
    const bool is_here = std::all_of(open.begin(), open.end(), [&](std::int64_t v) {
      return v == variable || std::binary_search(outer.begin(), outer.end(), v);
    });
    if (is_here) body.push_back(id);
    const IrNode& node = program_.node(id);
    for (int c = 0; c < node.num_children; ++c) stack.push_back(node.children[c]);
  }
  std::sort(body.begin(), body.end());
  return body;
}

void LaneEvaluator::fill(IrId id, std::int64_t value, bool is_undefined) {
  Slot& s = slot(id);
  s.values = s.own_values;
  std::fill_n(s.own_values, kLanes, value);
  std::fill_n(s.own_first, kWords, is_undefined ? ~std::uint64_t{0} : 0);
}

void LaneEvaluator::fill_condition(IrId id, bool is_true, bool is_false) {
  Slot& s = slot(id);
  std::fill_n(s.own_first, kWords, is_true ? ~std::uint64_t{0} : 0);
  std::fill_n(s.own_second, kWords, is_false ? ~std::uint64_t{0} : 0);
}

void LaneEvaluator::fill_ramp(IrId id, std::int64_t first, std::int64_t step) {
  Slot& s = slot(id);
  for (int i = 0; i < kLanes; ++i) s.own_values[i] = first + i * step;
}

void LaneEvaluator::run(int num_lanes) {
  num_lanes_ = num_lanes;
  num_words_ = (num_lanes + 63) / 64;
  run_steps(steps_);
}

void LaneEvaluator::run_steps(const std::vector<IrId>& steps) {
  for (const IrId id : steps) step(id);
}

void LaneEvaluator::step(IrId id) {
  const IrNode& node = program_.node(id);
  Slot& out = slot(id);
  switch (node.op) {
    case IrOp::q:
    case IrOp::k:
    case IrOp::loop:
    case IrOp::constant:
      return;  // given, or set by loop_step
    case IrOp::boolean:
      std::fill_n(out.own_first, kWords, node.value != 0 ? ~std::uint64_t{0} : 0);
      std::fill_n(out.own_second, kWords, node.value != 0 ? 0 : ~std::uint64_t{0});
      return;
    case IrOp::lookup:
    case IrOp::test:
      return lookup_step(id, node, out);
    case IrOp::where: {
      const Slot& condition = child(node, 0);
      const Slot& a = child(node, 1);
      const Slot& b = child(node, 2);
      for (int w = 0; w < num_words_; ++w) {
        const std::uint64_t is_true = condition.own_first[w];
        const std::uint64_t is_false = condition.own_second[w];
        out.own_first[w] =
            ~(is_true | is_false) | (is_true & a.own_first[w]) | (is_false & b.own_first[w]);
      }
      for (int i = 0; i < num_lanes_; ++i) {
        out.own_values[i] = test_bit(condition.own_first, i) ? a.values[i] : b.values[i];
      }
      return;
    }
    case IrOp::from_bool: {
      const Slot& condition = child(node, 0);
      for (int w = 0; w < num_words_; ++w) {
        out.own_first[w] = ~(condition.own_first[w] | condition.own_second[w]);
      }
      for (int i = 0; i < num_lanes_; ++i) out.own_values[i] = test_bit(condition.own_first, i);
      return;
    }
    case IrOp::less:
    case IrOp::less_equal:
    case IrOp::equal:
    case IrOp::not_equal:
      return compare_step(node, out);
    case IrOp::logical_and:
    case IrOp::logical_or:
    case IrOp::logical_xor:
    case IrOp::logical_not:
    case IrOp::where_condition:
      return logic_step(node, out);
    case IrOp::any_of:
    case IrOp::all_of:
      return loop_step(id, node, out);
    default:
      return integer_step(node, out, program_.facts(id).range.may_be_undefined);
  }
}

void LaneEvaluator::integer_step(const IrNode& node, Slot& out, bool is_checked) {
  const Slot& a = child(node, 0);
  const Slot& b = node.num_children > 1 ? child(node, 1) : a;
  for (int w = 0; w < num_words_; ++w) out.own_first[w] = a.own_first[w] | b.own_first[w];
  if (node.op == IrOp::floor_div || node.op == IrOp::mod) {
    return division_step(node, out, is_checked);
  }
  const int n = num_lanes_;
  std::int64_t* const to = out.own_values;
  const std::int64_t* const x = a.values;
  const std::int64_t* const y = b.values;
  const auto apply = [&]<class Operator>(Operator) {
    if constexpr (requires { Operator::wrapped(0, 0); }) {
      if (Operator::is_total || !is_checked) {
        for (int i = 0; i < n; ++i) to[i] = Operator::wrapped(x[i], y[i]);
        return;
      }
    }
    for (int i = 0; i < n; ++i) {
      std::int64_t value = 0;
      if (Operator::value(x[i], y[i], value) != Defect::none) set_bit(out.own_first, i);
      to[i] = value;
    }
  };
  switch (node.op) {
#define FDMA_ARITHMETIC(name, ...) \
  case IrOp::name:                 \
    return apply(arithmetic::name{});
#include "fdma/masks/operators.def"
    default:
      break;
  }
}

void LaneEvaluator::division_step(const IrNode& node, Slot& out, bool is_checked) {
  const int n = num_lanes_;
  std::int64_t* const to = out.own_values;
  const std::int64_t* const x = child(node, 0).values;
  const std::int64_t* const y = child(node, 1).values;
  const IrNode& divisor = program_.node(node.children[1]);
  const NodeRange& range = program_.facts(node.children[0]).range;
  const bool is_exact = !is_checked && divisor.op == IrOp::constant && divisor.value > 0 &&
                        divisor.value < kExactDouble && range.lo > -kExactDouble &&
                        range.hi < kExactDouble;
  if (!is_exact) {
    for (int i = 0; i < n; ++i) {
      std::int64_t value = 0;
      if (apply_integer(node.op, x[i], y[i], value) != Defect::none) set_bit(out.own_first, i);
      to[i] = value;
    }
    return;
  }
  const std::int64_t d = divisor.value;
  if ((d & (d - 1)) == 0) {
    const int shift = std::countr_zero(as_unsigned(d));
    if (node.op == IrOp::floor_div) {
      for (int i = 0; i < n; ++i) to[i] = x[i] >> shift;
    } else {
      for (int i = 0; i < n; ++i) to[i] = x[i] & (d - 1);
    }
    return;
  }
  if (range.lo >= 0 && range.hi < (std::int64_t{1} << 31) && d < (std::int64_t{1} << 31)) {
    // x < 2^31: floor(x / d) is the high part of x * ceil(2^(32 + s) / d), 2^s >= d.
    const int shift = 32 + std::bit_width(as_unsigned(d - 1));
    const std::uint64_t reciprocal =
        static_cast<std::uint64_t>(((__extension__ static_cast<unsigned __int128>(1) << shift) +
                                    static_cast<std::uint64_t>(d) - 1) /
                                   static_cast<std::uint64_t>(d));
    // reciprocal < 2^33 and x < 2^31: the product fits 64 bits.
    if (node.op == IrOp::floor_div) {
      for (int i = 0; i < n; ++i) to[i] = as_signed((as_unsigned(x[i]) * reciprocal) >> shift);
    } else {
      for (int i = 0; i < n; ++i) {
        const std::int64_t quotient = as_signed((as_unsigned(x[i]) * reciprocal) >> shift);
        to[i] = x[i] - quotient * d;
      }
    }
    return;
  }
  const auto as_double = static_cast<double>(d);
  for (int i = 0; i < n; ++i) {
    const auto quotient =
        static_cast<std::int64_t>(std::floor(static_cast<double>(x[i]) / as_double));
    to[i] = node.op == IrOp::floor_div ? quotient : x[i] - quotient * d;
  }
}

void LaneEvaluator::lookup_step(IrId id, const IrNode& node, Slot& out) {
  const IrTable& table = program_.tables().table(node.value);
  const int n = num_lanes_;
  std::int64_t flat[kLanes];
  std::uint64_t undefined[kWords] = {};
  std::fill_n(flat, n, 0);
  for (int c = 0; c < node.num_children; ++c) {
    const Slot& index = child(node, c);
    const std::int64_t extent = table.extents[c];
    for (int w = 0; w < num_words_; ++w) undefined[w] |= index.own_first[w];
    for (int i = 0; i < n; ++i)
      flat[i] =
          as_signed(as_unsigned(flat[i]) * as_unsigned(extent) + as_unsigned(index.values[i]));
    const NodeRange& range = program_.facts(node.children[c]).range;
    if (range.may_be_undefined || range.lo < 0 || range.hi >= extent) {
      for (int i = 0; i < n; ++i) {
        if (as_unsigned(index.values[i]) >= as_unsigned(extent)) set_bit(undefined, i);
      }
    }
  }
  if (program_.facts(id).range.may_be_undefined) {
    for (int i = 0; i < n; ++i) {
      if (test_bit(undefined, i)) flat[i] = 0;
    }
  }
  std::int64_t count = 1;
  for (int c = 0; c < table.rank; ++c) count *= table.extents[c];
  std::int64_t* const to = out.own_values;
  const auto gather = [&](const auto* data) {
    for (int i = 0; i < n; ++i) to[i] = static_cast<std::int64_t>(data[flat[i]]);
  };
  if (count == 0) {
    std::fill_n(to, n, 0);
  } else if (table.is_runs()) {
    // Indices mostly ascend, so the run of the lane before is tried first.
    std::size_t run = 0;
    for (int i = 0; i < n; ++i) {
      const std::int64_t at = flat[i];
      if (at >= table.run_ends[run] || (run > 0 && at < table.run_ends[run - 1])) {
        const bool is_next = run + 1 < table.run_ends.size() && at >= table.run_ends[run] &&
                             at < table.run_ends[run + 1];
        run = is_next ? run + 1
                      : static_cast<std::size_t>(
                            std::upper_bound(table.run_ends.begin(), table.run_ends.end(), at) -
                            table.run_ends.begin());
      }
      to[i] = table.run_values[run];
    }
  } else {
    switch (table.dtype) {
      case DType::int8:
        gather(static_cast<const std::int8_t*>(table.data));
        break;
      case DType::int16:
        gather(static_cast<const std::int16_t*>(table.data));
        break;
      case DType::int32:
        gather(static_cast<const std::int32_t*>(table.data));
        break;
      case DType::int64:
        gather(static_cast<const std::int64_t*>(table.data));
        break;
      case DType::uint16:
        gather(static_cast<const std::uint16_t*>(table.data));
        break;
      case DType::uint32:
        gather(static_cast<const std::uint32_t*>(table.data));
        break;
      case DType::uint64:
        gather(static_cast<const std::uint64_t*>(table.data));
        break;
      default:
        gather(static_cast<const std::uint8_t*>(table.data));
        break;
    }
  }
  if (node.op == IrOp::lookup) {
    std::copy_n(undefined, kWords, out.own_first);
    return;
  }
  for (int w = 0; w < num_words_; ++w) {
    std::uint64_t is_true = 0;
    for (int i = 0; i < std::min(64, n - 64 * w); ++i) {
      is_true |= std::uint64_t{to[64 * w + i] != 0} << i;
    }
    out.own_first[w] = is_true & ~undefined[w];
    out.own_second[w] = ~is_true & ~undefined[w];
  }
}

void LaneEvaluator::compare_step(const IrNode& node, Slot& out) {
  const RowKernels& kernels = row_kernels();
  const bool is_swapped = node.op == IrOp::less_equal;  // a <= b is not (b < a)
  const Slot& a = child(node, is_swapped ? 1 : 0);
  const Slot& b = child(node, is_swapped ? 0 : 1);
  const bool is_less = node.op == IrOp::less || node.op == IrOp::less_equal;
  std::uint64_t holds[kWords];
  (is_less ? kernels.less_pairs : kernels.equal_pairs)(holds, a.values, b.values, num_words_);
  const bool is_inverted = is_swapped || node.op == IrOp::not_equal;
  for (int w = 0; w < num_words_; ++w) {
    const std::uint64_t defined = ~(a.own_first[w] | b.own_first[w]);
    const std::uint64_t value = is_inverted ? ~holds[w] : holds[w];
    out.own_first[w] = value & defined;
    out.own_second[w] = ~value & defined;
  }
}

void LaneEvaluator::logic_step(const IrNode& node, Slot& out) {
  const Slot& a = child(node, 0);
  const Slot& b = node.num_children > 1 ? child(node, 1) : a;
  for (int w = 0; w < num_words_; ++w) {
    const std::uint64_t a1 = a.own_first[w];
    const std::uint64_t a0 = a.own_second[w];
    const std::uint64_t b1 = b.own_first[w];
    const std::uint64_t b0 = b.own_second[w];
    switch (node.op) {
      case IrOp::logical_and:
        out.own_first[w] = a1 & b1;
        out.own_second[w] = a0 | b0;
        break;
      case IrOp::logical_or:
        out.own_first[w] = a1 | b1;
        out.own_second[w] = a0 & b0;
        break;
      case IrOp::logical_xor:
        out.own_first[w] = (a1 & b0) | (a0 & b1);
        out.own_second[w] = (a1 & b1) | (a0 & b0);
        break;
      case IrOp::logical_not:
        out.own_first[w] = a0;
        out.own_second[w] = a1;
        break;
      default: {
        const Slot& c = child(node, 2);
        out.own_first[w] = (a1 & b1) | (a0 & c.own_first[w]);
        out.own_second[w] = (a1 & b0) | (a0 & c.own_second[w]);
      }
    }
  }
}

void LaneEvaluator::set_variable(IrId loop, std::int64_t value) {
  for (const IrId id : bodies_.at(loop)) {
    const IrNode& node = program_.node(id);
    if (node.op == IrOp::loop && node.value == program_.node(loop).value) fill(id, value, false);
  }
}

// Counts the work of a loop. False once the meter has stopped all work.
bool LaneEvaluator::spend(std::int64_t evaluations, std::int64_t turns) {
  work_ += evaluations;
  if (meter_ == nullptr) return true;
  if (work_ - work_counted_ < kWorkBetweenQuestions) return !meter_->has_stopped();
  const std::int64_t added = work_ - std::exchange(work_counted_, work_);
  return meter_->spend(added, turns);
}

void LaneEvaluator::loop_step(IrId id, const IrNode& node, Slot& out) {
  // The bound is a number, because BoxProgram replaces loops with an undefined bound.
  const bool is_any = node.op == IrOp::any_of;
  const std::vector<IrId>& body = bodies_.at(id);
  const std::int64_t bound = program_.node(node.children[0]).value;
  const std::int64_t count = body.empty() ? std::min<std::int64_t>(bound, 1) : bound;
  const Slot& term = child(node, 1);
  std::fill_n(out.own_first, kWords, is_any ? 0 : ~std::uint64_t{0});
  std::fill_n(out.own_second, kWords, is_any ? ~std::uint64_t{0} : 0);
  const std::int64_t work_per_turn = std::int64_t{num_lanes_} * std::ssize(body);
  const std::int64_t work_before = work_;
  const double outer_turns = outer_turns_;
  bool was_tried = false;
  for (std::int64_t i = 0; i < count; ++i) {
    set_variable(id, i);
    outer_turns_ = outer_turns * static_cast<double>(count - i);
    run_steps(body);
    outer_turns_ = outer_turns;
    if (!spend(work_per_turn, count)) return;
    if (!was_tried && work_ - work_before >= kTrialWork && meter_ != nullptr) {
      was_tried = true;
      const double per_turn = static_cast<double>(work_ - work_before) / static_cast<double>(i + 1);
      const double rest = per_turn * static_cast<double>(count - i - 1);
      if (!meter_->expect(rest * outer_turns * num_runs_, count)) return;
    }
    bool is_decided = true;
    for (int w = 0; w < num_words_; ++w) {
      std::uint64_t& is_true = out.own_first[w];
      std::uint64_t& is_false = out.own_second[w];
      is_true = is_any ? is_true | term.own_first[w] : is_true & term.own_first[w];
      is_false = is_any ? is_false & term.own_second[w] : is_false | term.own_second[w];
      const std::uint64_t lanes = low_bits(num_lanes_ - 64 * w);
      is_decided = is_decided && ((is_any ? is_true : is_false) & lanes) == lanes;
    }
    if (is_decided) return;
  }
}

std::string LaneEvaluator::culprit(IrId id) {
  const auto is_undefined = [&](IrId n) {
    const Slot& s = slot(n);
    if (!is_condition(program_.node(n).op)) return (s.own_first[0] & 1) != 0;
    return ((s.own_first[0] | s.own_second[0]) & 1) == 0;
  };
  for (;;) {
    const IrNode& node = program_.node(id);
    if (is_loop(node.op)) {
      // Some value of the variable leaves the body undefined; this runs up to the first such value.
      const std::int64_t bound = program_.node(node.children[0]).value;
      for (std::int64_t i = 0; i < bound; ++i) {
        set_variable(id, i);
        run_steps(bodies_.at(id));
        if (is_undefined(node.children[1])) break;
      }
      id = node.children[1];
      continue;
    }
    if (node.op == IrOp::where || node.op == IrOp::where_condition) {
      const IrId condition = node.children[0];
      id = is_undefined(condition)              ? condition
           : (slot(condition).own_first[0] & 1) ? node.children[1]
                                                : node.children[2];
      continue;
    }
    IrId below = -1;
    for (int c = 0; c < node.num_children && below < 0; ++c) {
      if (is_undefined(node.children[c])) below = node.children[c];
    }
    if (below >= 0) {
      id = below;
      continue;
    }
    if (node.op == IrOp::lookup || node.op == IrOp::test) {
      const IrTable& table = program_.tables().table(node.value);
      for (int c = 0; c < node.num_children; ++c) {
        const std::int64_t index = child(node, c).values[0];
        if (index >= 0 && index < table.extents[c]) continue;
        const auto [name, owner] = table_and_owner(table.name);
        return fmt::format("index {} of table @{} is outside [0, {}){}{}", index, name,
                           table.extents[c],
                           table.rank > 1 ? fmt::format(" in dimension {}", c) : "", owner);
      }
    }
    const std::int64_t a = node.num_children > 0 ? child(node, 0).values[0] : 0;
    const std::int64_t b = node.num_children > 1 ? child(node, 1).values[0] : 0;
    std::int64_t value = 0;
    switch (apply_integer(node.op, a, b, value)) {
      case Defect::divisor:
        return fmt::format("division by {}", b);
      case Defect::shift:
        return fmt::format("shift by {} is outside [0, {}]", b, kMaxShift);
      default:
        break;
    }
    switch (node.op) {
#define FDMA_ARITHMETIC(name, spelling, word, binds, least, most, types, parameters, python, \
                        meaning, overflow)                                                   \
  case IrOp::name:                                                                           \
    return fmt::format("overflow in " overflow, a, b);
#include "fdma/masks/operators.def"
      default:
        return "an operator without a value";
    }
  }
}

}  // namespace fdma::box
