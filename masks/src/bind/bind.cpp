// Binding: finds which (batch, head) pairs share a program, and makes the programs.
//
// A program depends on a pair only through the element's lengths, the tables that are read per
// element or head, and the values of the subexpressions that mention b or h but no cell. These
// values are computed for every pair (a few nanoseconds each), and one program is made per distinct
// set of them: `q - k < 16 * shl(1, h % 8)` with 2,048 heads makes 8 programs. Programs that turn
// out to be equal, with tables compared by content, are stored once.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "bind/check.hpp"
#include "bind/instance.hpp"
#include "bind/program_form.hpp"
#include "bind/tables.hpp"
#include "bind/written_with.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "ir/range.hpp"

namespace fdma {
namespace {

// Values of the nodes that mention no cell, for one pair at a time.
class ScalarValues {
 public:
  ScalarValues(const CheckedExpr& checked, const BoundTables& tables)
      : checked_(checked), tables_(tables), values_(checked.facts.size()) {
    std::vector<bool> is_maximal(checked.facts.size(), false);
    is_maximal[static_cast<std::size_t>(checked.expr->root())] = true;
    for (std::size_t id = 0; id < checked.facts.size(); ++id) {
      const NodeFacts& facts = checked.facts[id];
      if (!facts.is_reachable || facts.is_argument) continue;
      if (facts.is_scalar) {
        scalars_.push_back(static_cast<ExprId>(id));
        continue;
      }
      for (const ExprId child : checked.expr->nodes()[id].children)
        is_maximal[static_cast<std::size_t>(child)] = true;
    }
    for (const ExprId id : scalars_)
      if (is_maximal[static_cast<std::size_t>(id)] && checked.fact(id).varies) keys_.push_back(id);
    if (keys_.empty()) scalars_.clear();
  }

  bool vary() const { return !keys_.empty(); }

  void append_to(std::vector<std::int64_t>& key, const BoundPair& pair) {
    for (const ExprId id : scalars_) values_[static_cast<std::size_t>(id)] = evaluate(id, pair);
    for (const ExprId id : keys_) {
      const Folded& scalar = values_[static_cast<std::size_t>(id)];
      key.push_back(scalar.is_defined ? scalar.value : 0);
      key.push_back(scalar.is_defined ? 1 : 0);
    }
  }

 private:
  Folded evaluate(ExprId id, const BoundPair& pair);

  const CheckedExpr& checked_;
  const BoundTables& tables_;
  std::vector<Folded> values_;
  std::vector<Folded> operands_;
  std::vector<ExprId> scalars_;  // in evaluation order
  std::vector<ExprId> keys_;     // those that others are computed from
};

Folded ScalarValues::evaluate(ExprId id, const BoundPair& pair) {
  const ExprNode& node = checked_.node(id);
  operands_.clear();
  for (const ExprId child : node.children)
    operands_.push_back(values_[static_cast<std::size_t>(child)]);
  switch (node.op) {
    case ExprOp::literal:
    case ExprOp::boolean:
      return {node.value, true};
    case ExprOp::variable:
      return {node.symbol == "b"       ? pair.b
              : node.symbol == "h"     ? pair.h
              : node.symbol == "q_len" ? pair.q_len
                                       : pair.kv_len,
              true};
    case ExprOp::table: {
      const IrTable& table = tables_.whole(node.symbol);
      std::int64_t flat = 0;
      for (std::size_t d = 0; d < operands_.size(); ++d) {
        const Folded& index = operands_[d];
        if (!index.is_defined || index.value < 0 || index.value >= table.extents[d]) return {};
        flat = flat * table.extents[d] + index.value;
      }
      return {table.at(flat), true};
    }
    default:
      break;
  }
  const bool on_conditions = checked_.fact(node.children.back()).is_condition;
  return fold_expr(node.op, on_conditions, operands_);
}

std::uint64_t mix(std::uint64_t hash, std::int64_t value) {
  hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 32);
}

struct KeyHash {
  std::size_t operator()(const std::vector<std::int64_t>& key) const {
    std::uint64_t hash = 1;
    for (const std::int64_t value : key) hash = mix(hash, value);
    return static_cast<std::size_t>(hash);
  }
};

std::uint64_t hash_of(const IrProgram& program) {
  std::uint64_t hash = mix(mix(3, program.q_len), program.kv_len);
  for (const IrNode& node : program.nodes) {
    hash = mix(mix(hash, static_cast<std::int64_t>(node.op)), node.value);
    for (int i = 0; i < node.num_children; ++i) hash = mix(hash, node.children[i]);
  }
  for (const IrTable& table : program.tables) {
    std::int64_t count = 1;
    for (int d = 0; d < table.rank; ++d) count *= table.extents[d];
    hash = mix(hash, count);
    constexpr std::int64_t kSamples = 16;
    if (count > 0)
      for (std::int64_t i = 0; i < kSamples; ++i)
        hash = mix(hash, table.at(count / kSamples * i + count % kSamples * i / kSamples));
  }
  return hash;
}

bool same_table(const IrTable& a, const IrTable& b) {
  if (a.rank != b.rank || a.dtype != b.dtype || a.is_runs() != b.is_runs() ||
      !std::equal(a.extents, a.extents + 4, b.extents))
    return false;
  if (a.is_runs()) return a.run_ends == b.run_ends && a.run_values == b.run_values;
  if (a.data == b.data) return true;
  std::size_t bytes = static_cast<std::size_t>(size_bytes(a.dtype));
  for (int d = 0; d < a.rank; ++d) bytes *= static_cast<std::size_t>(a.extents[d]);
  return std::memcmp(a.data, b.data, bytes) == 0;
}

bool same_program(const IrProgram& a, const IrProgram& b) {
  const auto same_node = [](const IrNode& x, const IrNode& y) {
    return x.op == y.op && x.value == y.value && std::equal(x.children, x.children + 4, y.children);
  };
  return a.q_len == b.q_len && a.kv_len == b.kv_len &&
         std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), same_node) &&
         std::equal(a.tables.begin(), a.tables.end(), b.tables.begin(), b.tables.end(), same_table);
}

}  // namespace

Result<MaskIr> bind(const MaskExpr& expr, const Tables& tables, const MaskShape& shape) {
  if (expr.empty() || expr.root() < 0)
    return Error{ErrorCode::invalid_argument, "bind: the mask expression is empty"};
  FDMA_TRY_VOID(validate(shape));
  FDMA_TRY_VOID(check_supported(expr));
  FDMA_TRY(BoundTables bound, BoundTables::make(tables, mentioned_tables(expr), shape));
  FDMA_TRY(CheckedExpr checked, check_expr(expr, bound));
  Instantiator instantiator(checked, bound, shape);
  ScalarValues scalars(checked, bound);

  MaskIr ir;
  ir.shape = shape;
  const WrittenWith marks = written_with(expr, tables);
  ir.is_per_batch = marks.batch;
  ir.is_per_head = marks.head;
  ir.program_of.reserve(static_cast<std::size_t>(shape.num_batches * shape.num_heads));
  std::unordered_map<std::vector<std::int64_t>, std::int32_t, KeyHash> program_of_key;
  std::unordered_multimap<std::uint64_t, std::int32_t> program_of_hash;
  std::vector<std::int64_t> key;
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      if (h > 0 && !scalars.vary() && !checked.table_varies_by_head) {
        ir.program_of.push_back(ir.program_of.back());
        continue;
      }
      const BoundPair pair{b, h, shape.q_len(b), shape.kv_len(b)};
      key = {pair.q_len, pair.kv_len, checked.table_varies_by_batch ? b : 0,
             checked.table_varies_by_head ? h : 0};
      scalars.append_to(key, pair);
      const auto known = program_of_key.find(key);
      if (known != program_of_key.end()) {
        ir.program_of.push_back(known->second);
        continue;
      }
      FDMA_TRY(IrProgram program, instantiator.make(pair));
      const std::uint64_t hash = hash_of(program);
      std::int32_t index = -1;
      const auto [first, last] = program_of_hash.equal_range(hash);
      for (auto candidate = first; candidate != last && index < 0; ++candidate)
        if (same_program(ir.programs[static_cast<std::size_t>(candidate->second)], program))
          index = candidate->second;
      if (index < 0) {
        index = static_cast<std::int32_t>(ir.programs.size());
        ir.programs.push_back(std::move(program));
        program_of_hash.emplace(hash, index);
      }
      program_of_key.emplace(key, index);
      ir.program_of.push_back(index);
    }
  }
  return ir;
}

}  // namespace fdma
