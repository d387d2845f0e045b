#include "boxes/box_fixture.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

namespace fdma::box_test {
namespace {

__extension__ typedef __int128 Wide;

struct Value {
  bool is_defined = true;
  std::int64_t number = 0;
};

std::optional<std::int64_t> checked(Wide value) {
  if (value < std::numeric_limits<std::int64_t>::min() ||
      value > std::numeric_limits<std::int64_t>::max()) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(value);
}

Value make(std::optional<std::int64_t> value) { return {value.has_value(), value.value_or(0)}; }

Value arithmetic(IrOp op, std::int64_t a, std::int64_t b) {
  Wide quotient = b > 0 ? Wide{a} / b : 0;
  if (b > 0 && quotient * b > a) --quotient;
  switch (op) {
    case IrOp::add:
      return make(checked(Wide{a} + b));
    case IrOp::sub:
      return make(checked(Wide{a} - b));
    case IrOp::mul:
      return make(checked(Wide{a} * b));
    case IrOp::floor_div:
      return b <= 0 ? Value{false} : make(checked(quotient));
    case IrOp::mod:
      return b <= 0 ? Value{false} : make(checked(a - quotient * b));
    case IrOp::min:
      return {true, std::min(a, b)};
    case IrOp::max:
      return {true, std::max(a, b)};
    case IrOp::abs:
      return make(checked(a < 0 ? -Wide{a} : Wide{a}));
    case IrOp::shl:
      return b < 0 || b > 62 ? Value{false} : make(checked(Wide{a} * (std::int64_t{1} << b)));
    case IrOp::shr:
      return b < 0 || b > 62 ? Value{false} : Value{true, a >> b};
    case IrOp::bit_and:
      return {true, a & b};
    case IrOp::bit_or:
      return {true, a | b};
    default:
      return {true, a ^ b};
  }
}

struct Evaluator {
  const IrProgram& program;
  std::int64_t q;
  std::int64_t k;
  std::map<std::int64_t, std::int64_t> loops;

  Value of(IrId id) {
    const IrNode& n = program.node(id);
    const auto child = [&](int c) { return of(n.children[c]); };
    switch (n.op) {
      case IrOp::constant:
      case IrOp::boolean:
        return {true, n.value};
      case IrOp::q:
        return {true, q};
      case IrOp::k:
        return {true, k};
      case IrOp::loop:
        return {true, loops.at(n.value)};
      case IrOp::lookup:
      case IrOp::test: {
        const IrTable& table = program.tables[static_cast<std::size_t>(n.value)];
        std::int64_t flat = 0;
        for (int c = 0; c < n.num_children; ++c) {
          const Value index = child(c);
          if (!index.is_defined || index.number < 0 || index.number >= table.extents[c]) {
            return {false};
          }
          flat = flat * table.extents[c] + index.number;
        }
        return {true, table.at(flat)};
      }
      case IrOp::where:
      case IrOp::where_condition: {
        const Value condition = child(0);
        if (!condition.is_defined) return {false};
        return child(condition.number != 0 ? 1 : 2);
      }
      case IrOp::from_bool:
        return child(0);
      case IrOp::logical_not: {
        const Value a = child(0);
        return {a.is_defined, a.number == 0 ? 1 : 0};
      }
      case IrOp::logical_and:
      case IrOp::logical_or: {
        const std::int64_t decisive = n.op == IrOp::logical_or ? 1 : 0;
        const Value a = child(0);
        const Value b = child(1);
        if ((a.is_defined && a.number == decisive) || (b.is_defined && b.number == decisive)) {
          return {true, decisive};
        }
        return {a.is_defined && b.is_defined, 1 - decisive};
      }
      case IrOp::any_of:
      case IrOp::all_of: {
        const std::int64_t decisive = n.op == IrOp::any_of ? 1 : 0;
        const Value bound = child(0);
        if (!bound.is_defined) return {false};
        bool is_defined = true;
        for (std::int64_t i = 0; i < bound.number; ++i) {
          loops[n.value] = i;
          const Value body = child(1);
          if (body.is_defined && body.number == decisive) return {true, decisive};
          is_defined = is_defined && body.is_defined;
        }
        return {is_defined, 1 - decisive};
      }
      default:
        break;
    }
    const Value a = child(0);
    const Value b = n.num_children > 1 ? child(1) : a;
    if (!a.is_defined || !b.is_defined) return {false};
    switch (n.op) {
      case IrOp::less:
        return {true, a.number < b.number};
      case IrOp::less_equal:
        return {true, a.number <= b.number};
      case IrOp::equal:
        return {true, a.number == b.number};
      case IrOp::not_equal:
        return {true, a.number != b.number};
      case IrOp::logical_xor:
        return {true, a.number ^ b.number};
      default:
        return arithmetic(n.op, a.number, b.number);
    }
  }
};

template <class T>
std::shared_ptr<const void> store(const std::vector<std::int64_t>& values) {
  auto data = std::make_shared<std::vector<T>>(values.begin(), values.end());
  return {data, data->data()};
}

}  // namespace

ProgramBuilder::ProgramBuilder(std::int64_t q_len, std::int64_t kv_len) {
  program.q_len = q_len;
  program.kv_len = kv_len;
}

IrId ProgramBuilder::add(IrOp op, std::initializer_list<IrId> children, std::int64_t value) {
  IrNode node{op};
  for (const IrId child : children) node.children[node.num_children++] = child;
  node.value = value;
  program.nodes.push_back(node);
  return static_cast<IrId>(program.nodes.size()) - 1;
}

std::int64_t ProgramBuilder::table(std::string name, std::vector<std::int64_t> extents,
                                   std::vector<std::int64_t> values, DType dtype) {
  IrTable table;
  table.name = std::move(name);
  table.rank = static_cast<int>(extents.size());
  std::copy(extents.begin(), extents.end(), table.extents);
  table.dtype = dtype;
  switch (dtype) {
    case DType::boolean:
      table.owner = store<std::uint8_t>(values);
      break;
    case DType::int8:
      table.owner = store<std::int8_t>(values);
      break;
    case DType::int16:
      table.owner = store<std::int16_t>(values);
      break;
    case DType::int32:
      table.owner = store<std::int32_t>(values);
      break;
    default:
      table.owner = store<std::int64_t>(values);
      break;
  }
  table.data = table.owner.get();
  program.tables.push_back(std::move(table));
  return std::ssize(program.tables) - 1;
}

std::int64_t ProgramBuilder::runs(std::string name, std::vector<std::int64_t> ends,
                                  std::vector<std::int64_t> values) {
  IrTable table;
  table.name = std::move(name);
  table.rank = 1;
  table.extents[0] = ends.back();
  table.run_ends = std::move(ends);
  table.run_values = std::move(values);
  program.tables.push_back(std::move(table));
  return std::ssize(program.tables) - 1;
}

const IrProgram& ProgramBuilder::finish(IrId root) {
  program.root = root;
  return program;
}

std::optional<bool> evaluate_cell(const IrProgram& program, std::int64_t q, std::int64_t k) {
  const Value value = Evaluator{program, q, k, {}}.of(program.root);
  if (!value.is_defined) return std::nullopt;
  return value.number != 0;
}

std::vector<std::uint8_t> cells_of(const SegmentMask& mask) {
  std::vector<std::uint8_t> cells(static_cast<std::size_t>(mask.q_len * mask.kv_len), 0);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(mask.words_per_bitmap()));
  for (std::int32_t row = 0; row < mask.num_tile_rows(); ++row) {
    for (const TileSegment& segment : segments_of_row(mask, row)) {
      for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col) {
        std::fill(words.begin(), words.end(), 0);
        tile_cells(mask, segment, row, col, words.data());
        for (std::int64_t r = 0; r < mask.block.block_q; ++r) {
          for (std::int64_t c = 0; c < mask.block.block_kv; ++c) {
            const std::int64_t bit = r * mask.block.block_kv + c;
            const std::int64_t q = std::int64_t{row} * mask.block.block_q + r;
            const std::int64_t k = std::int64_t{col} * mask.block.block_kv + c;
            if (q >= mask.q_len || k >= mask.kv_len) continue;
            cells[static_cast<std::size_t>(q * mask.kv_len + k)] =
                (words[static_cast<std::size_t>(bit / 64)] >> (bit % 64)) & 1;
          }
        }
      }
    }
  }
  return cells;
}

}  // namespace fdma::box_test
