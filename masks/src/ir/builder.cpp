// Makes the nodes of a program: equal nodes are one, constants fold, and each operator has its rules
// that simplify.
//
// Longer than most files: the rules of all operators stand in one place.
#include "ir/builder.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ir/arithmetic.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kLeastRunTable = 64;  // shorter tables stay dense
constexpr std::int64_t kEntriesPerRun = 16;
// Tables of rank 2 and above with more entries than this are not scanned for their range.
constexpr std::int64_t kLargestScan = std::int64_t{1} << 20;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

// Finds the runs of count > 0 entries. False as soon as there are more than `limit`. Entries are
// compared in chunks, which vectorises.
template <class T>
bool collect_runs(const T* entries, std::int64_t count, std::size_t limit, IrTable& table) {
  constexpr std::int64_t kChunk = 256;
  const auto close_run = [&](std::int64_t end) {
    table.run_ends.push_back(end);
    table.run_values.push_back(static_cast<std::int64_t>(entries[end - 1]));
    return table.run_ends.size() <= limit;
  };
  for (std::int64_t begin = 1; begin < count; begin += kChunk) {
    const std::int64_t end = std::min(begin + kChunk, count);
    int changes = 0;
    for (std::int64_t i = begin; i < end; ++i) changes += entries[i] != entries[i - 1] ? 1 : 0;
    if (changes == 0) continue;
    for (std::int64_t i = begin; i < end; ++i)
      if (entries[i] != entries[i - 1] && !close_run(i)) return false;
  }
  return close_run(count);
}

bool collect_runs(const IrTable& table, std::size_t limit, IrTable& runs) {
  const auto collect = [&](auto entry) {
    return collect_runs(static_cast<const decltype(entry)*>(table.data), table.extents[0], limit,
                        runs);
  };
  switch (table.dtype) {
    case DType::boolean:
    case DType::uint8:
      return collect(std::uint8_t{});
    case DType::int8:
      return collect(std::int8_t{});
    case DType::int16:
      return collect(std::int16_t{});
    case DType::uint16:
      return collect(std::uint16_t{});
    case DType::int32:
      return collect(std::int32_t{});
    case DType::uint32:
      return collect(std::uint32_t{});
    default:
      return collect(std::int64_t{});
  }
}

// Turns a dense 1-dimensional table into runs if its runs are long enough.
void find_runs(IrTable& table) {
  const std::int64_t count = table.extents[0];
  if (table.rank != 1 || table.is_runs() || count < kLeastRunTable) return;
  IrTable runs;
  if (!collect_runs(table, static_cast<std::size_t>(count / kEntriesPerRun), runs)) return;
  table.run_ends = std::move(runs.run_ends);
  table.run_values = std::move(runs.run_values);
  if (table.dtype == DType::boolean)  // any byte but 0 is true
    for (std::int64_t& value : table.run_values) value = value != 0 ? 1 : 0;
  table.data = nullptr;
  table.owner = nullptr;
}

// Slices of one table share the name before the bracket, so that equal programs of two batch
// elements have equal hashes.
std::uint64_t sample_hash(const IrTable& table) {
  std::uint64_t hash = mix(17, static_cast<std::uint64_t>(table.rank));
  for (const char c : table.name.substr(0, table.name.find('[')))
    hash = mix(hash, static_cast<std::uint8_t>(c));
  std::int64_t count = 1;
  for (int d = 0; d < table.rank; ++d) {
    hash = mix(hash, static_cast<std::uint64_t>(table.extents[d]));
    count *= table.extents[d];
  }
  constexpr std::int64_t kSamples = 16;
  if (count > 0)
    for (std::int64_t i = 0; i < kSamples; ++i)
      hash = mix(hash, static_cast<std::uint64_t>(table.at((count - 1) / kSamples * i +
                                                           (count - 1) % kSamples * i / kSamples)));
  return hash;
}

}  // namespace

TableRef TableStore::prepare(const IrTable& table) {
  const Key key{table.data,       table.dtype,      table.rank,      table.extents[0],
                table.extents[1], table.extents[2], table.extents[3]};
  if (!table.is_runs()) {
    const auto found = prepared_.find(key);
    if (found != prepared_.end()) return found->second;
  }
  auto prepared = std::make_shared<PreparedTable>();
  prepared->table = table;
  find_runs(prepared->table);
  prepared->range = table_range(prepared->table, kLargestScan);
  prepared->hash = sample_hash(prepared->table);
  if (!table.is_runs() && table.owner == nullptr) prepared_.emplace(key, prepared);
  return prepared;
}

IrBuilder::IrBuilder(TableStore& store) : store_(store), index_(256, -1) {}

void IrBuilder::reset(std::int64_t q_len, std::int64_t kv_len) {
  q_len_ = q_len;
  kv_len_ = kv_len;
  nodes_.clear();
  info_.clear();
  tables_.clear();
  table_index_.clear();
  std::fill(index_.begin(), index_.end(), -1);
  const auto coordinate = [this](IrOp op, std::int64_t length) {
    return length == 1 ? constant(0)
                       : intern(IrNode{op}, {0, std::max<std::int64_t>(length, 1) - 1, false});
  };
  q_ = coordinate(IrOp::q, q_len);
  k_ = coordinate(IrOp::k, kv_len);
}

void IrBuilder::grow_index() {
  index_.assign(index_.size() * 2, -1);
  const std::size_t mask = index_.size() - 1;
  for (std::size_t id = 0; id < nodes_.size(); ++id) {
    std::size_t slot = info_[id].hash & mask;
    while (index_[slot] >= 0) slot = (slot + 1) & mask;
    index_[slot] = static_cast<std::int32_t>(id);
  }
}

IrId IrBuilder::intern(const IrNode& node, const NodeRange& variable) {
  const bool is_lookup = node.op == IrOp::lookup || node.op == IrOp::test;
  const PreparedTable* table =
      is_lookup ? tables_[static_cast<std::size_t>(node.value)].get() : nullptr;
  Info info;
  info.hash = mix(mix(29, static_cast<std::uint64_t>(node.op)),
                  is_lookup ? table->hash : static_cast<std::uint64_t>(node.value));
  for (int i = 0; i < node.num_children; ++i)
    info.hash = mix(info.hash, info_[static_cast<std::size_t>(node.children[i])].hash);

  const std::size_t mask = index_.size() - 1;
  std::size_t slot = info.hash & mask;
  for (; index_[slot] >= 0; slot = (slot + 1) & mask) {
    const IrNode& other = nodes_[static_cast<std::size_t>(index_[slot])];
    if (other.op == node.op && other.value == node.value &&
        std::equal(node.children, node.children + 4, other.children))
      return index_[slot];
  }

  NodeRange children[4];
  bool operands_defined = true;
  for (int i = 0; i < node.num_children; ++i) {
    children[i] = range(node.children[i]);
    operands_defined &= children[i].has_values();
    info.mentions |= mentions(node.children[i]);
  }
  if (node.op == IrOp::q) info.mentions = kMentionsQ;
  if (node.op == IrOp::k) info.mentions = kMentionsK;
  if (node.op == IrOp::loop) info.mentions = kMentionsLoop;
  switch (node.op) {
    case IrOp::q:
    case IrOp::k:
    case IrOp::loop:
      info.range = variable;
      break;
    case IrOp::lookup:
    case IrOp::test:
      info.range = lookup_range(table->table, table->range, children);
      break;
    default:
      info.range = range_of(node, children);
  }
  if (node.op == IrOp::add || node.op == IrOp::sub || node.op == IrOp::mul) {
    for (NodeRange& child : children) child.may_be_undefined = false;
    info.is_exact = operands_defined && !range_of(node, children).may_be_undefined;
  }
  if (info.range.is_constant() && node.op != IrOp::constant && node.op != IrOp::boolean &&
      node.num_children > 0)
    return is_condition(node.op) ? boolean(info.range.lo != 0) : constant(info.range.lo);

  const auto id = static_cast<IrId>(nodes_.size());
  index_[slot] = id;
  nodes_.push_back(node);
  info_.push_back(info);
  if (nodes_.size() * 2 > index_.size()) grow_index();
  return id;
}

IrId IrBuilder::raw(IrOp op, IrId a, IrId b, IrId c, std::int64_t value) {
  IrNode node{op};
  node.children[0] = a;
  node.children[1] = b;
  node.children[2] = c;
  node.num_children = static_cast<std::int8_t>(c >= 0 ? 3 : b >= 0 ? 2 : 1);
  node.value = value;
  return intern(node);
}

IrId IrBuilder::constant(std::int64_t value) {
  IrNode node{IrOp::constant};
  node.value = value;
  return intern(node);
}

IrId IrBuilder::boolean(bool value) {
  IrNode node{IrOp::boolean};
  node.value = value ? 1 : 0;
  return intern(node);
}

IrId IrBuilder::loop(std::int64_t id, std::int64_t bound) {
  IrNode node{IrOp::loop};
  node.value = id;
  return intern(node, {0, bound - 1, false});
}

// The place of a table among those of the program. Tables with the same storage, or the same runs
// and name, are one.
std::int64_t IrBuilder::index_of(const TableRef& table) {
  const IrTable& own = table->table;
  const auto is_same = [&](const PreparedTable& other) {
    const IrTable& its = other.table;
    if (own.is_runs() != its.is_runs() || own.dtype != its.dtype) return false;
    if (!own.is_runs())
      return its.data == own.data && its.rank == own.rank &&
             std::equal(its.extents, its.extents + 4, own.extents);
    return its.name == own.name && its.run_ends == own.run_ends && its.run_values == own.run_values;
  };
  const std::uint64_t key =
      own.is_runs() ? table->hash : mix(31, reinterpret_cast<std::uintptr_t>(own.data));
  const auto [first, last] = table_index_.equal_range(key);
  const auto known = std::find_if(first, last, [&](const auto& entry) {
    const TableRef& other = tables_[static_cast<std::size_t>(entry.second)];
    return other == table || is_same(*other);
  });
  if (known != last) return known->second;
  const auto index = static_cast<std::int64_t>(tables_.size());
  tables_.push_back(table);
  table_index_.emplace(key, index);
  return index;
}

IrId IrBuilder::lookup(const TableRef& table, std::span<const IrId> indices) {
  const IrTable& whole = table->table;
  const auto is_inside = [&](std::size_t d) {
    return is_constant(indices[d]) && node(indices[d]).value >= 0 &&
           node(indices[d]).value < whole.extents[d];
  };
  const bool is_boolean = whole.dtype == DType::boolean;
  std::size_t leading = 0;
  while (leading < indices.size() && is_inside(leading)) ++leading;
  if (leading == indices.size()) {
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < indices.size(); ++d)
      flat = flat * whole.extents[d] + node(indices[d]).value;
    return is_boolean ? boolean(whole.at(flat) != 0) : constant(whole.at(flat));
  }
  TableRef slice = table;
  if (leading > 0) {
    IrTable part = whole;
    std::int64_t flat = 0, entries = 1;
    part.name += '[';
    for (std::size_t d = 0; d < leading; ++d) {
      const std::int64_t index = node(indices[d]).value;
      flat = flat * whole.extents[d] + index;
      part.name += (d > 0 ? ", " : "") + std::to_string(index);
    }
    part.name += ']';
    part.rank = whole.rank - static_cast<int>(leading);
    for (int d = 0; d < 4; ++d)
      part.extents[d] = d < part.rank ? whole.extents[d + static_cast<int>(leading)] : 1;
    for (int d = 0; d < part.rank; ++d) entries *= part.extents[d];
    part.data = static_cast<const char*>(whole.data) + flat * entries * size_bytes(whole.dtype);
    slice = store_.prepare(part);
  }
  IrNode made{is_boolean ? IrOp::test : IrOp::lookup};
  made.value = index_of(slice);
  for (std::size_t d = leading; d < indices.size(); ++d) made.children[d - leading] = indices[d];
  made.num_children = static_cast<std::int8_t>(indices.size() - leading);
  return intern(made);
}

// Variables come first, then nodes by operator and structure, constants last. Among different nodes
// of one hash the older one comes first.
bool IrBuilder::precedes(IrId a, IrId b) const {
  const auto rank = [&](IrId id) {
    const IrOp op = node(id).op;
    if (op == IrOp::constant || op == IrOp::boolean) return 1000;
    return static_cast<int>(op);
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  const std::uint64_t hash_a = info_[static_cast<std::size_t>(a)].hash;
  const std::uint64_t hash_b = info_[static_cast<std::size_t>(b)].hash;
  return hash_a != hash_b ? hash_a < hash_b : a < b;
}

IrId IrBuilder::raw_commutative(IrOp op, IrId a, IrId b) {
  return precedes(b, a) ? raw(op, b, a) : raw(op, a, b);
}

IrId IrBuilder::make(IrOp op, IrId a, IrId b, IrId c) {
  switch (op) {
    case IrOp::add:
    case IrOp::sub:
      return sum(op, a, b);
    case IrOp::mul:
      return product(a, b);
    case IrOp::floor_div:
    case IrOp::mod:
      return quotient(op, a, b);
    case IrOp::min:
    case IrOp::max:
      return extremum(op, a, b);
    case IrOp::abs:
      return absolute(a);
    case IrOp::shl:
    case IrOp::shr:
    case IrOp::bit_and:
    case IrOp::bit_or:
    case IrOp::bit_xor:
      return shift_or_bits(op, a, b);
    case IrOp::where:
      return choice(a, b, c);
    case IrOp::from_bool:
      return raw(op, a);
    case IrOp::less:
    case IrOp::less_equal:
    case IrOp::equal:
    case IrOp::not_equal:
      return compare(op, a, b);
    case IrOp::logical_and:
    case IrOp::logical_or:
      return conjunction(op, a, b);
    case IrOp::logical_xor:
      return exclusive_or(a, b);
    case IrOp::logical_not:
      return negation(a);
    case IrOp::where_condition:
      return condition_choice(a, b, c);
    default:
      return raw(op, a, b, c);
  }
}

IrId IrBuilder::quotient(IrOp op, IrId a, IrId b) {
  if (!is_constant(b) || node(b).value <= 0) return raw(op, a, b);
  const std::int64_t divisor = node(b).value;
  if (op == IrOp::mod) {
    const NodeRange r = range(a);
    return r.has_values() && r.lo >= 0 && r.hi < divisor ? a : raw(op, a, b);
  }
  if (divisor == 1) return a;
  // (x // m) // n = x // (m * n)
  const IrNode inner = node(a);
  if (inner.op == IrOp::floor_div && is_constant(inner.children[1]) &&
      node(inner.children[1]).value > 0) {
    std::int64_t both = 0;
    const IrId x = inner.children[0];
    if (!__builtin_mul_overflow(node(inner.children[1]).value, divisor, &both))
      return raw(op, x, constant(both));
  }
  return raw(op, a, b);
}

IrId IrBuilder::extremum(IrOp op, IrId a, IrId b) {
  if (a == b) return a;
  if (is_defined(a) && is_defined(b)) {
    const bool is_min = op == IrOp::min;
    if (range(a).hi <= range(b).lo) return is_min ? a : b;
    if (range(b).hi <= range(a).lo) return is_min ? b : a;
  }
  return raw_commutative(op, a, b);
}

IrId IrBuilder::shift_or_bits(IrOp op, IrId a, IrId b) {
  if (op == IrOp::shl || op == IrOp::shr) {
    if (!is_constant(b) || node(b).value < 0 || node(b).value > kMaxShift) return raw(op, a, b);
    if (node(b).value == 0) return a;
    return op == IrOp::shl ? product(a, constant(std::int64_t{1} << node(b).value)) : raw(op, a, b);
  }
  if (a == b && op != IrOp::bit_xor) return a;
  if (is_value(a, 0)) std::swap(a, b);
  if (is_value(b, 0) && op != IrOp::bit_and) return a;
  return raw_commutative(op, a, b);
}

IrId IrBuilder::choice(IrId c, IrId a, IrId b) {
  if (node(c).op == IrOp::boolean) return node(c).value != 0 ? a : b;
  if (node(c).op == IrOp::logical_not) {
    c = node(c).children[0];
    std::swap(a, b);
  }
  if (a == b && is_defined(c)) return a;
  if (is_value(a, 1) && is_value(b, 0)) return make(IrOp::from_bool, c);
  if (is_value(a, 0) && is_value(b, 1)) return make(IrOp::from_bool, negation(c));
  return raw(IrOp::where, c, a, b);
}

IrId IrBuilder::quantifier(IrOp op, std::int64_t loop_id, IrId bound, IrId body) {
  if (!is_constant(bound)) return compare(IrOp::equal, bound, constant(0));
  if (node(bound).value <= 0) return boolean(op == IrOp::all_of);
  if ((mentions(body) & kMentionsLoop) == 0) return body;
  return raw(op, bound, body, -1, loop_id);
}

std::vector<IrId> IrBuilder::nodes_of_loop(IrId body, std::int64_t loop_id) const {
  std::vector<IrId> below{body};
  std::unordered_map<IrId, bool> has_variable{{body, false}};
  for (std::size_t i = 0; i < below.size(); ++i) {
    const IrNode made = node(below[i]);
    for (int c = 0; c < made.num_children; ++c)
      if ((mentions(made.children[c]) & kMentionsLoop) != 0 &&
          has_variable.emplace(made.children[c], false).second)
        below.push_back(made.children[c]);
  }
  std::sort(below.begin(), below.end());
  std::erase_if(below, [&](IrId id) {
    const IrNode made = node(id);
    bool& has = has_variable[id];
    has = made.op == IrOp::loop && made.value == loop_id;
    for (int c = 0; c < made.num_children; ++c) {
      const auto child = has_variable.find(made.children[c]);
      has = has || (child != has_variable.end() && child->second);
    }
    return !has;
  });
  return below;
}

IrId IrBuilder::write_out(IrOp op, std::int64_t count, IrId body, std::span<const IrId> copied,
                          TermOrder order) {
  const bool is_any = op == IrOp::any_of;
  IrId result = boolean(!is_any);
  std::unordered_map<IrId, IrId> copy_of;
  for (std::int64_t i = 0; i < count && !is_boolean(result, is_any); ++i) {
    for (const IrId id : copied) {
      IrNode made = node(id);
      for (int c = 0; c < made.num_children; ++c) {
        const auto copy = copy_of.find(made.children[c]);
        if (copy != copy_of.end()) made.children[c] = copy->second;
      }
      IrId& copy = copy_of[id];
      if (made.op == IrOp::loop)
        copy = constant(i);
      else if (made.op == IrOp::lookup || made.op == IrOp::test)
        copy = lookup(tables_[static_cast<std::size_t>(made.value)],
                      {made.children, static_cast<std::size_t>(made.num_children)});
      else if (made.op == IrOp::any_of || made.op == IrOp::all_of)
        copy = quantifier(made.op, made.value, made.children[0], made.children[1]);
      else
        copy = make(made.op, made.children[0], made.children[1], made.children[2]);
    }
    const IrId term = copy_of[body];
    const IrOp join = is_any ? IrOp::logical_or : IrOp::logical_and;
    if (order == TermOrder::canonical)
      result = make(join, result, term);
    else if (is_boolean(result, !is_any) || is_boolean(term, is_any))
      result = term;
    else if (!is_boolean(term, !is_any) && term != result)
      result = raw(join, result, term);
  }
  return result;
}

IrProgram IrBuilder::finish(IrId root) const {
  IrProgram program;
  program.q_len = q_len_;
  program.kv_len = kv_len_;
  std::vector<IrId> renamed(nodes_.size(), -1);
  std::vector<std::int64_t> table_of(tables_.size(), -1);
  std::vector<std::pair<std::int64_t, std::int64_t>> loops;  // old id, new id
  std::vector<std::pair<IrId, int>> stack = {{root, 0}};
  while (!stack.empty()) {
    auto& [id, next] = stack.back();
    const IrNode old = node(id);
    if (next < old.num_children) {
      const IrId child = old.children[next++];
      if (renamed[static_cast<std::size_t>(child)] < 0) stack.emplace_back(child, 0);
      continue;
    }
    IrNode made = old;
    for (int i = 0; i < made.num_children; ++i)
      made.children[i] = renamed[static_cast<std::size_t>(made.children[i])];
    if (made.op == IrOp::lookup || made.op == IrOp::test) {
      std::int64_t& index = table_of[static_cast<std::size_t>(made.value)];
      if (index < 0) {
        index = static_cast<std::int64_t>(program.tables.size());
        program.tables.push_back(tables_[static_cast<std::size_t>(made.value)]->table);
      }
      made.value = index;
    } else if (made.op == IrOp::loop || made.op == IrOp::any_of || made.op == IrOp::all_of) {
      auto known = std::find_if(loops.begin(), loops.end(),
                                [&](const auto& entry) { return entry.first == made.value; });
      if (known == loops.end())
        known = loops.emplace(loops.end(), made.value, static_cast<std::int64_t>(loops.size()));
      made.value = known->second;
    }
    renamed[static_cast<std::size_t>(id)] = static_cast<IrId>(program.nodes.size());
    program.nodes.push_back(made);
    stack.pop_back();
  }
  program.root = static_cast<IrId>(program.nodes.size()) - 1;
  return program;
}

}  // namespace fdma
