// Builds programs node by node. Equal nodes are one node, and every node is simplified when it is
// made (simplify.hpp has the resulting form), so one pass in evaluation order suffices.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "ir/range.hpp"

namespace fdma {

/// A table with the facts that the builder needs.
struct PreparedTable {
  IrTable table;
  NodeRange range;         ///< of its entries
  std::uint64_t hash = 0;  ///< of name, extents and a sample of the entries
};
using TableRef = std::shared_ptr<const PreparedTable>;

/// Prepares each table once. The slices of one bind are shared by its programs.
class TableStore {
 public:
  /// Finds the range and the runs: a 1-dimensional table whose runs take at most a sixteenth of its
  /// entries becomes a run table. Tables with the same storage and extents are prepared once.
  TableRef prepare(const IrTable& table);

 private:
  using Key =
      std::tuple<const void*, DType, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  std::map<Key, TableRef> prepared_;
};

/// The order of the terms of a loop that is written out.
enum class TermOrder : std::uint8_t {
  canonical,  ///< that of canonical form; terms join where they can
  of_turns,   ///< of the loop's turns, so that the first undefined term is the cause
};

/// Nodes of one program under construction.
///
/// Invariants  every node returned is in canonical form; ids are stable until reset
class IrBuilder {
 public:
  explicit IrBuilder(TableStore& store);
  /// Drops all nodes and begins a program of these lengths.
  void reset(std::int64_t q_len, std::int64_t kv_len);

  IrId constant(std::int64_t value);
  IrId boolean(bool value);
  IrId q() const { return q_; }
  IrId k() const { return k_; }
  /// The variable of a loop over [0, bound), bound > 0. One id must always have the same bound.
  IrId loop(std::int64_t id, std::int64_t bound);
  /// lookup, or test for boolean tables; one index per dimension.
  IrId lookup(const TableRef& table, std::span<const IrId> indices);
  /// Any operator of one to three operands except the ones above and the quantifiers.
  IrId make(IrOp op, IrId a, IrId b = -1, IrId c = -1);
  /// any_of or all_of over [0, bound); the loop node in the body has this id. A bound that is
  /// always undefined gives an always undefined condition.
  IrId quantifier(IrOp op, std::int64_t loop_id, IrId bound, IrId body);

  /// The nodes of a loop's body that mention its variable, in evaluation order.
  std::vector<IrId> nodes_of_loop(IrId body, std::int64_t loop_id) const;
  /// any_of or all_of over [0, count) written out. `copied` are the body's nodes_of_loop.
  IrId write_out(IrOp op, std::int64_t count, IrId body, std::span<const IrId> copied,
                 TermOrder order);

  // By value, because making a node moves the others.
  IrNode node(IrId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  NodeRange range(IrId id) const { return info_[static_cast<std::size_t>(id)].range; }
  std::uint8_t mentions(IrId id) const { return info_[static_cast<std::size_t>(id)].mentions; }
  bool is_constant(IrId id) const { return node(id).op == IrOp::constant; }
  std::int64_t num_nodes() const { return static_cast<std::int64_t>(nodes_.size()); }

  /// The canonical program of a condition: the nodes that the root needs, in post-order.
  IrProgram finish(IrId root) const;

 private:
  struct Info {
    NodeRange range;
    std::uint64_t hash = 0;
    std::uint8_t mentions = 0;
    bool is_exact = false;  ///< add, sub, mul: cannot overflow
  };
  struct Term {
    IrId atom;
    std::int64_t factor;
  };
  struct Sum;

  // ir/builder.cpp
  IrId raw(IrOp op, IrId a, IrId b = -1, IrId c = -1, std::int64_t value = 0);
  IrId intern(const IrNode& node, const NodeRange& variable = {});
  bool precedes(IrId a, IrId b) const;
  IrId raw_commutative(IrOp op, IrId a, IrId b);
  std::int64_t index_of(const TableRef& table);
  bool is_defined(IrId id) const { return !range(id).may_be_undefined; }
  bool is_value(IrId id, std::int64_t value) const {
    return node(id).op == IrOp::constant && node(id).value == value;
  }
  IrId quotient(IrOp op, IrId a, IrId b);
  IrId extremum(IrOp op, IrId a, IrId b);
  IrId absolute(IrId a);
  IrId shift_or_bits(IrOp op, IrId a, IrId b);
  IrId choice(IrId c, IrId a, IrId b);
  void grow_index();

  // linear.cpp
  IrId sum(IrOp op, IrId a, IrId b);
  IrId product(IrId a, IrId b);
  bool collect(IrId id, std::int64_t factor, Sum& into) const;
  bool settle(Sum& sum) const;
  IrId build(const Sum& sum);
  IrId exact(IrOp op, IrId a, IrId b);
  IrId compare(IrOp op, IrId a, IrId b);
  IrId compare_from_bool(IrOp op, IrId a, IrId b);
  IrId compare_abs(IrOp op, IrId a, IrId b);
  IrId compare_extremum(IrOp op, IrId a, IrId b);
  IrId compare_remainder(IrOp op, IrId a, IrId b);
  IrId compare_sums(IrOp op, IrId a, IrId b);
  IrId merge_inequalities(IrOp op, IrId a, IrId b);

  // logic.cpp
  bool is_implied(IrId inequality, IrId conjunction) const;
  IrId conjunction(IrOp op, IrId a, IrId b);
  IrId exclusive_or(IrId a, IrId b);
  IrId negation(IrId a);
  IrId condition_choice(IrId c, IrId a, IrId b);
  bool is_boolean(IrId id, bool value) const {
    return node(id).op == IrOp::boolean && node(id).value == (value ? 1 : 0);
  }
  bool is_negation_of(IrId a, IrId b) const {
    return node(a).op == IrOp::logical_not && node(a).children[0] == b;
  }

  TableStore& store_;
  std::int64_t q_len_ = 0, kv_len_ = 0;
  std::vector<IrNode> nodes_;
  std::vector<Info> info_;
  std::vector<std::int32_t> index_;  ///< open addressing: node ids, -1 where free
  std::vector<TableRef> tables_;
  std::unordered_multimap<std::uint64_t, std::int64_t> table_index_;  ///< by table_key
  IrId q_ = -1, k_ = -1;
  int sum_depth_ = 0;    ///< current nesting of comparisons that were made again by separating
  int split_depth_ = 0;  ///< current nesting of comparisons that were split into two
};

}  // namespace fdma
