#include "boxes/axis_vector.hpp"

#include <algorithm>
#include <limits>

#include "boxes/lane_eval.hpp"
#include "boxes/row_bits.hpp"
#include "fdma/base/interval.hpp"

namespace fdma::box {
namespace {

/// Batches between two calls of must_stop.
constexpr std::int64_t kBatchesAtOnce = 64;

std::int64_t num_batches(const BoxProgram& program, Axis axis) {
  return ceil_div(axis_length(program, axis), std::int64_t{LaneEvaluator::kLanes});
}

/// Runs `lanes` over the whole axis; `load(first, count)` sets the inputs of each batch that are not q
/// and k, `take(first, count)` reads its outputs. When the
/// work is stopped, the rest of a vector stays 0.
template <class Load, class Take>
void run_along(const BoxProgram& program, Axis axis, LaneEvaluator& lanes, Load load, Take take) {
  const std::int64_t length = axis_length(program, axis);
  const bool has_q = lanes.reaches(program.q_node());
  const bool has_k = lanes.reaches(program.k_node());
  const std::int64_t last_row = program.q_len() - 1;
  for (std::int64_t first = 0; first < length; first += LaneEvaluator::kLanes) {
    if (program.has_stopped()) return;
    if (first % (kBatchesAtOnce * LaneEvaluator::kLanes) == 0 && program.must_stop()) return;
    const std::int64_t count = std::min<std::int64_t>(LaneEvaluator::kLanes, length - first);
    if (axis == Axis::diagonal) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t shift = first + i - last_row;  // k - q
        if (has_q) lanes.values(program.q_node())[i] = shift < 0 ? -shift : 0;
        if (has_k) lanes.values(program.k_node())[i] = shift > 0 ? shift : 0;
      }
    } else {
      if (has_q) lanes.fill_ramp(program.q_node(), first, 1);
      if (has_k) lanes.fill_ramp(program.k_node(), first, 1);
    }
    load(first, count);
    lanes.run(static_cast<int>(count));
    take(first, count);
  }
}

// The operand of a sum or difference with a number, if it varies along the axis; else -1. `k + 2` and
// `k - 2` then share the vector of k.
IrId shared_operand(const BoxProgram& program, IrId id, Axis axis) {
  const IrNode& node = program.node(id);
  if (node.op != IrOp::add && node.op != IrOp::sub) return -1;
  for (int c = 0; c < 2; ++c) {
    const IrId operand = node.children[c];
    if (program.axis(node.children[1 - c]) == Axis::none && program.axis(operand) == axis &&
        program.node(operand).num_children > 0) {
      return operand;
    }
  }
  return -1;
}

std::size_t padded_words(std::int64_t length) {
  return static_cast<std::size_t>((length + 63) / 64 + kRowSlackBytes / 8 + 1);
}

}  // namespace

std::int64_t axis_length(const BoxProgram& program, Axis axis) {
  switch (axis) {
    case Axis::query:
      return program.q_len();
    case Axis::key:
      return program.kv_len();
    case Axis::diagonal:
      return program.num_diagonals();
    default:
      return 1;
  }
}

IntegerVector integer_vector(const BoxProgram& program, IrId id, Axis axis) {
  IntegerVector out;
  out.length = axis_length(program, axis);
  out.values.resize(static_cast<std::size_t>(out.length) + LaneEvaluator::kLanes);
  const IrId outputs[] = {id};
  const IrId operand = shared_operand(program, id, axis);
  std::shared_ptr<const IntegerVector> values;
  std::vector<IrId> inputs;
  if (operand >= 0) {
    values = shared_integer_vector(program, operand);
    inputs.push_back(operand);
  }
  LaneEvaluator lanes(program, outputs, inputs, program.meter(), num_batches(program, axis));
  const bool may_be_undefined = program.facts(id).range.may_be_undefined;
  if (may_be_undefined) out.undefined.resize(padded_words(out.length));
  bool is_undefined = false;
  const auto load = [&](std::int64_t first, std::int64_t count) {
    if (operand < 0) return;
    lanes.set_values(operand, values->values.data() + first);
    if (!values->undefined.empty()) {
      copy_bits(lanes.undefined_bits(operand), values->undefined.data(), first, count);
    }
  };
  run_along(program, axis, lanes, load, [&](std::int64_t first, std::int64_t count) {
    std::copy_n(lanes.values(id), count, out.values.data() + first);
    if (!may_be_undefined) return;
    for (std::int64_t w = 0; 64 * w < count; ++w) {
      const std::uint64_t word = lanes.undefined_bits(id)[w] & low_bits(count - 64 * w);
      out.undefined[static_cast<std::size_t>(first / 64 + w)] = word;
      is_undefined = is_undefined || word != 0;
    }
  });
  if (!is_undefined) out.undefined.clear();
  return out;
}

ConditionVector condition_vector(const BoxProgram& program, IrId id, Axis axis) {
  ConditionVector out;
  out.length = axis_length(program, axis);
  out.is_true.resize(padded_words(out.length));
  const IrId outputs[] = {id};
  LaneEvaluator lanes(program, outputs, {}, program.meter(), num_batches(program, axis));
  const bool may_be_undefined = program.facts(id).range.may_be_undefined;
  if (may_be_undefined) out.is_false.resize(padded_words(out.length));
  bool is_undefined = false;
  run_along(
      program, axis, lanes, [](std::int64_t, std::int64_t) {},
      [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t w = 0; 64 * w < count; ++w) {
          const std::uint64_t exists = low_bits(count - 64 * w);
          const auto at = static_cast<std::size_t>(first / 64 + w);
          out.is_true[at] = lanes.true_bits(id)[w] & exists;
          if (!may_be_undefined) continue;
          out.is_false[at] = lanes.false_bits(id)[w] & exists;
          is_undefined = is_undefined || (out.is_true[at] | out.is_false[at]) != exists;
        }
      });
  if (!is_undefined) out.is_false.clear();
  return out;
}

std::optional<SumWithConstant> sum_with_constant(const BoxProgram& program, IrId id) {
  constexpr std::int64_t kMost = std::int64_t{1} << 59;
  const IrNode& node = program.node(id);
  if (node.op != IrOp::add) return std::nullopt;
  const IrNode& second = program.node(node.children[1]);
  if (second.op != IrOp::constant || program.axis(node.children[0]) != program.axis(id)) {
    return std::nullopt;
  }
  for (const IrId each : {id, node.children[0]}) {
    const NodeRange& range = program.facts(each).range;
    if (!range.has_values() || range.may_be_undefined || range.lo < -kMost || range.hi > kMost) {
      return std::nullopt;
    }
  }
  return SumWithConstant{node.children[0], second.value};
}

std::shared_ptr<const IntegerVector> shared_integer_vector(const BoxProgram& program, IrId id) {
  std::weak_ptr<const IntegerVector>& known = program.known_vector(id);
  if (auto vector = known.lock()) return vector;
  auto vector =
      std::make_shared<const IntegerVector>(integer_vector(program, id, program.axis(id)));
  known = vector;
  program.keep_vector(vector);
  return vector;
}

NodeRange IntegerVector::range(std::int64_t begin, std::int64_t end) const {
  std::int64_t lo = std::numeric_limits<std::int64_t>::max();
  std::int64_t hi = std::numeric_limits<std::int64_t>::min();
  const auto take = [&](std::int64_t i) {
    const std::int64_t value = values[static_cast<std::size_t>(i)];
    lo = std::min(lo, value);
    hi = std::max(hi, value);
  };
  bool may_be_undefined = false;
  if (undefined.empty()) {
    for (std::int64_t i = begin; i < end; ++i) take(i);
  } else {
    for (std::int64_t i = begin; i < end; ++i) {
      const bool is_here = is_undefined(i);
      may_be_undefined |= is_here;
      if (!is_here) take(i);
    }
  }
  return lo <= hi ? NodeRange{lo, hi, may_be_undefined} : NodeRange{1, 0, may_be_undefined};
}

Outcomes ConditionVector::outcome(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i / 64);
  if (((is_true[at] >> (i % 64)) & 1) != 0) return kTrue;
  if (is_false.empty()) return kFalse;
  return ((is_false[at] >> (i % 64)) & 1) != 0 ? kFalse : kUndefined;
}

Outcomes ConditionVector::range(std::int64_t begin, std::int64_t end) const {
  Outcomes out = 0;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t count = std::min(end - at, 64 - at % 64);
    const std::uint64_t exists = low_bits(count);
    const auto word = static_cast<std::size_t>(at / 64);
    const std::uint64_t t = (is_true[word] >> (at % 64)) & exists;
    const std::uint64_t f = is_false.empty() ? ~t & exists : (is_false[word] >> (at % 64)) & exists;
    if (t != 0) out |= kTrue;
    if (f != 0) out |= kFalse;
    if ((t | f) != exists) out |= kUndefined;
    at += count;
  }
  return out;
}

}  // namespace fdma::box
