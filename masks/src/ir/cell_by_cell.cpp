// A program is split into lists of nodes in ascending order: nodes without variables, those of q, those
// of k, and for each loop those that mention its variable and no variable of a loop inside it. A list
// is evaluated from front to back; a loop evaluates its own list once a turn.
#include "fdma/masks/cell_by_cell.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <unordered_map>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "ir/arithmetic.hpp"

namespace fdma {
namespace {

/// Booleans are 0 and 1.
struct Known {
  std::int64_t value = 0;
  bool is_defined = false;
};
constexpr Known kUndefinedValue{};
Known known(std::int64_t value) { return {value, true}; }

}  // namespace

class CellEvaluator::Impl {
 public:
  explicit Impl(const IrProgram& program) : program_(program), values_(program.nodes.size()) {
    split();
    evaluate(constants_);
  }

  Value at(std::int64_t q, std::int64_t k) {
    k_ = k;
    if (q != q_) {
      q_ = q;
      evaluate(queries_);
    }
    evaluate(cells_);
    const Known& root = values_[static_cast<std::size_t>(program_.root)];
    if (!root.is_defined) return Value::undefined;
    return root.value != 0 ? Value::allowed : Value::masked;
  }

 private:
  using List = std::vector<IrId>;

  void split() {
    // The variables of loops that each node mentions and that are not bound below it.
    std::vector<std::vector<std::int64_t>> open(program_.nodes.size());
    std::vector<std::uint8_t> mentions(program_.nodes.size(), 0);  // 1: q, 2: k
    std::unordered_map<std::int64_t, IrId> loop_of;                // by variable
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      const IrNode& node = program_.nodes[i];
      if (node.op == IrOp::q) mentions[i] = 1;
      if (node.op == IrOp::k) mentions[i] = 2;
      if (node.op == IrOp::loop) open[i].push_back(node.value);
      for (int c = 0; c < node.num_children; ++c) {
        const auto child = static_cast<std::size_t>(node.children[c]);
        mentions[i] |= mentions[child];
        open[i].insert(open[i].end(), open[child].begin(), open[child].end());
      }
      std::sort(open[i].begin(), open[i].end());
      open[i].erase(std::unique(open[i].begin(), open[i].end()), open[i].end());
      if (node.op == IrOp::any_of || node.op == IrOp::all_of) {
        std::erase(open[i], node.value);
        loop_of[node.value] = static_cast<IrId>(i);
      }
    }
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      const auto id = static_cast<IrId>(i);
      if (open[i].empty()) {
        (mentions[i] == 0 ? constants_ : mentions[i] == 1 ? queries_ : cells_).push_back(id);
        continue;
      }
      // The innermost loop is that whose node comes first: it is an operand of the others.
      const std::int64_t variable = *std::min_element(
          open[i].begin(), open[i].end(),
          [&](std::int64_t a, std::int64_t b) { return loop_of[a] < loop_of[b]; });
      bodies_[variable].push_back(id);
    }
  }

  void evaluate(const List& list) {
    for (const IrId id : list) values_[static_cast<std::size_t>(id)] = value(program_.node(id));
  }

  Known value(const IrNode& node) {
    const auto child = [&](int c) -> const Known& {
      return values_[static_cast<std::size_t>(node.children[c])];
    };
    switch (node.op) {
      case IrOp::constant:
      case IrOp::boolean:
        return known(node.value);
      case IrOp::q:
        return known(q_);
      case IrOp::k:
        return known(k_);
      case IrOp::loop:
        return known(turns_[node.value]);
      case IrOp::lookup:
      case IrOp::test:
        return entry(node);
      case IrOp::any_of:
      case IrOp::all_of:
        return quantifier(node);
      case IrOp::where:
      case IrOp::where_condition:
        if (!child(0).is_defined) return kUndefinedValue;
        return child(0).value != 0 ? child(1) : child(2);
      case IrOp::logical_and:
      case IrOp::logical_or: {
        const std::int64_t decisive = node.op == IrOp::logical_or ? 1 : 0;
        for (int c = 0; c < 2; ++c) {
          if (child(c).is_defined && child(c).value == decisive) return child(c);
        }
        return child(0).is_defined ? child(1) : kUndefinedValue;
      }
      default:
        break;
    }
    const Known& a = child(0);
    const Known& b = node.num_children > 1 ? child(1) : a;
    if (!a.is_defined || !b.is_defined) return kUndefinedValue;
    switch (node.op) {
      case IrOp::from_bool:
        return a;
      case IrOp::logical_not:
        return known(1 - a.value);
      case IrOp::logical_xor:
      case IrOp::not_equal:
        return known(a.value != b.value ? 1 : 0);
      case IrOp::equal:
        return known(a.value == b.value ? 1 : 0);
      case IrOp::less:
        return known(a.value < b.value ? 1 : 0);
      case IrOp::less_equal:
        return known(a.value <= b.value ? 1 : 0);
      default: {
        Known result{0, true};
        if (apply_integer(node.op, a.value, b.value, result.value) != Defect::none) {
          return kUndefinedValue;
        }
        return result;
      }
    }
  }

  Known entry(const IrNode& node) const {
    const IrTable& table = program_.tables[static_cast<std::size_t>(node.value)];
    std::int64_t flat = 0;
    for (int d = 0; d < node.num_children; ++d) {
      const Known& index = values_[static_cast<std::size_t>(node.children[d])];
      if (!index.is_defined || index.value < 0 || index.value >= table.extents[d]) {
        return kUndefinedValue;
      }
      flat = flat * table.extents[d] + index.value;
    }
    const std::int64_t value = table.at(flat);
    return known(node.op == IrOp::test ? (value != 0 ? 1 : 0) : value);
  }

  Known quantifier(const IrNode& node) {
    const Known bound = values_[static_cast<std::size_t>(node.children[0])];
    if (!bound.is_defined) return kUndefinedValue;
    const std::int64_t decisive = node.op == IrOp::any_of ? 1 : 0;
    const List& body = bodies_[node.value];
    bool is_defined = true;
    for (std::int64_t turn = 0; turn < bound.value; ++turn) {
      turns_[node.value] = turn;
      evaluate(body);
      const Known& condition = values_[static_cast<std::size_t>(node.children[1])];
      if (condition.is_defined && condition.value == decisive) return known(decisive);
      is_defined = is_defined && condition.is_defined;
    }
    return is_defined ? known(1 - decisive) : kUndefinedValue;
  }

  const IrProgram& program_;
  std::int64_t q_ = -1;
  std::int64_t k_ = -1;
  List constants_, queries_, cells_;
  std::unordered_map<std::int64_t, List> bodies_;         // by variable
  std::unordered_map<std::int64_t, std::int64_t> turns_;  // by variable
  std::vector<Known> values_;
};

CellEvaluator::CellEvaluator(const IrProgram& program) : impl_(std::make_unique<Impl>(program)) {}
CellEvaluator::~CellEvaluator() = default;
CellEvaluator::CellEvaluator(CellEvaluator&&) noexcept = default;
CellEvaluator::Value CellEvaluator::at(std::int64_t q, std::int64_t k) { return impl_->at(q, k); }

Result<BlockMask> lower_cell_by_cell(
    const MaskIr& ir, BlockShape block,
    const std::function<void(std::int64_t done, std::int64_t total)>& on_progress) {
  FDMA_TRY_VOID(validate(block));
  FDMA_TRY_VOID(validate(ir.shape));
  std::int64_t total = 0;
  for (const IrProgram& program : ir.programs) total += program.q_len;
  std::int64_t done = 0;
  std::vector<SegmentMask> masks;
  try {
    for (const IrProgram& program : ir.programs) {
      CellEvaluator cells(program);
      SegmentBuilder builder(program.q_len, program.kv_len, block);
      const auto num_tiles = static_cast<std::int32_t>(ceil_div(program.kv_len, block.block_kv));
      const std::int64_t stride = std::int64_t{num_tiles} * block.block_kv;
      std::vector<std::uint8_t> rows(static_cast<std::size_t>(stride * block.block_q));
      for (std::int64_t begin = 0; begin < program.q_len; begin += block.block_q) {
        const std::int64_t end = std::min<std::int64_t>(program.q_len, begin + block.block_q);
        std::fill(rows.begin(), rows.end(), std::uint8_t{0});
        for (std::int64_t q = begin; q < end; ++q) {
          for (std::int64_t k = 0; k < program.kv_len; ++k) {
            const CellEvaluator::Value value = cells.at(q, k);
            if (value == CellEvaluator::Value::undefined) {
              return Error{ErrorCode::invalid_argument,
                           fmt::format("mask undefined at q = {}, k = {}", q, k)};
            }
            rows[static_cast<std::size_t>((q - begin) * stride + k)] =
                value == CellEvaluator::Value::allowed ? 1 : 0;
          }
          if (on_progress) on_progress(++done, total);
        }
        const TileRange all{0, num_tiles, false};
        builder.add_tile_row(
            std::span(&all, num_tiles > 0 ? 1 : 0),
            [&](std::int32_t tile, std::uint64_t* words) {
              for (std::int64_t r = 0; r < block.block_q; ++r) {
                const std::uint8_t* from =
                    rows.data() + r * stride + std::int64_t{tile} * block.block_kv;
                for (std::int64_t c = 0; c < block.block_kv; ++c) {
                  const std::int64_t bit = r * block.block_kv + c;
                  words[bit / 64] |= std::uint64_t{from[c]} << (bit % 64);
                }
              }
            },
            true);
      }
      masks.push_back(builder.finish());
    }
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "evaluating cells: out of memory"};
  }
  BlockMask mask = make_block_mask(ir.shape, block, std::move(masks), ir.program_of);
  mask.is_per_batch = ir.is_per_batch;
  mask.is_per_head = ir.is_per_head;
  return mask;
}

}  // namespace fdma
