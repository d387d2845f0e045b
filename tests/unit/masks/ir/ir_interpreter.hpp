// A slow interpreter of bound programs, cell by cell, with which binding and simplification are
// compared. Values follow tests/reference/three_valued.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "three_valued.hpp"

namespace fdma::ir_test {

class IrInterpreter {
 public:
  explicit IrInterpreter(const IrProgram& program) : program_(program) {}

  reference::Value cell(std::int64_t q, std::int64_t k) {
    q_ = q;
    k_ = k;
    return evaluate(program_.root);
  }

  /// Returns every cell, row-major: 0, 1, or 2 where it is undefined.
  std::vector<std::uint8_t> cells() {
    std::vector<std::uint8_t> out;
    for (std::int64_t q = 0; q < program_.q_len; ++q) {
      for (std::int64_t k = 0; k < program_.kv_len; ++k) {
        const reference::Value value = cell(q, k);
        out.push_back(!value.is_defined ? std::uint8_t{2} : value.value != 0 ? 1 : 0);
      }
    }
    return out;
  }

 private:
  reference::Value evaluate(IrId id);
  reference::Value look_up(const IrNode& node);
  reference::Value quantify(const IrNode& node);

  const IrProgram& program_;
  std::int64_t q_ = 0, k_ = 0;
  std::vector<reference::Value> loops_;  // by loop id
};

inline reference::Value IrInterpreter::look_up(const IrNode& node) {
  const IrTable& table = program_.tables[static_cast<std::size_t>(node.value)];
  std::int64_t flat = 0;
  for (int d = 0; d < node.num_children; ++d) {
    const reference::Value index = evaluate(node.children[d]);
    if (!index.is_defined || index.value < 0 || index.value >= table.extents[d])
      return reference::kUndefined;
    flat = flat * table.extents[d] + index.value;
  }
  return reference::integer(table.at(flat));
}

inline reference::Value IrInterpreter::quantify(const IrNode& node) {
  const reference::Value bound = evaluate(node.children[0]);
  if (!bound.is_defined) return reference::kUndefined;
  const bool is_any = node.op == IrOp::any_of;
  reference::Value result = reference::condition(!is_any);
  if (loops_.size() <= static_cast<std::size_t>(node.value))
    loops_.resize(static_cast<std::size_t>(node.value) + 1);
  for (std::int64_t i = 0; i < bound.value; ++i) {
    loops_[static_cast<std::size_t>(node.value)] = reference::integer(i);
    const reference::Value one = evaluate(node.children[1]);
    result = is_any ? reference::logical_or(result, one) : reference::logical_and(result, one);
  }
  return result;
}

inline reference::Value IrInterpreter::evaluate(IrId id) {
  const IrNode& node = program_.node(id);
  const auto x = [&](int i) { return evaluate(node.children[i]); };
  const auto apply = [&]<class Rule>(Rule rule) {
    if constexpr (std::is_invocable_v<Rule, reference::Value, reference::Value>)
      return rule(x(0), x(1));
    else
      return rule(x(0));
  };
  switch (node.op) {
    case IrOp::constant:
    case IrOp::boolean:
      return reference::integer(node.value);
    case IrOp::q:
      return reference::integer(q_);
    case IrOp::k:
      return reference::integer(k_);
    case IrOp::loop:
      return loops_[static_cast<std::size_t>(node.value)];
    case IrOp::lookup:
    case IrOp::test:
      return look_up(node);
#define FDMA_ARITHMETIC(name, ...) \
  case IrOp::name:                 \
    return apply(                  \
        [](auto... v) -> decltype(reference::name(v...)) { return reference::name(v...); });
#include "fdma/masks/operators.def"
    case IrOp::where:
    case IrOp::where_condition: {
      const reference::Value which = x(0);
      if (!which.is_defined) return reference::kUndefined;
      return which.is_true() ? x(1) : x(2);
    }
    case IrOp::from_bool:
      return x(0);
    case IrOp::less:
      return reference::less(x(0), x(1));
    case IrOp::less_equal:
      return reference::less_equal(x(0), x(1));
    case IrOp::equal:
      return reference::equal(x(0), x(1));
    case IrOp::not_equal:
      return reference::logical_not(reference::equal(x(0), x(1)));
    case IrOp::logical_and:
      return reference::logical_and(x(0), x(1));
    case IrOp::logical_or:
      return reference::logical_or(x(0), x(1));
    case IrOp::logical_xor:
      return reference::logical_xor(x(0), x(1));
    case IrOp::logical_not:
      return reference::logical_not(x(0));
    case IrOp::any_of:
    case IrOp::all_of:
      return quantify(node);
  }
  return reference::kUndefined;
}

}  // namespace fdma::ir_test
