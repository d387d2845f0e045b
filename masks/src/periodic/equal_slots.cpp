#include "periodic/equal_slots.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "boxes/program.hpp"
#include "boxes/tile_numbers.hpp"
#include "fdma/base/interval.hpp"
#include "ir/simplify.hpp"

namespace fdma::periodic {
namespace {

using Numbers = box::TileNumbers::Worker;

// Tile rows, or columns, ascending.
std::vector<std::int32_t> distinct(std::vector<std::int32_t> tiles) {
  std::sort(tiles.begin(), tiles.end());
  tiles.erase(std::unique(tiles.begin(), tiles.end()), tiles.end());
  return tiles;
}

std::int32_t position_of(const std::vector<std::int32_t>& tiles, std::int32_t tile) {
  return static_cast<std::int32_t>(std::lower_bound(tiles.begin(), tiles.end(), tile) -
                                   tiles.begin());
}

// The length of the listed tiles side by side, of which the last one may be cut off.
std::int64_t joint_length(const std::vector<std::int32_t>& tiles, std::int32_t size,
                          std::int64_t length) {
  const std::int64_t last = std::int64_t{tiles.back()} * size;
  return (std::ssize(tiles) - 1) * size + std::min<std::int64_t>(size, length - last);
}

// The program on the listed tile rows and columns alone, side by side.
class JoinedProgram {
 public:
  JoinedProgram(const IrProgram& program, BlockShape block, const std::vector<std::int32_t>& rows,
                const std::vector<std::int32_t>& cols) {
    joined_.q_len = joint_length(rows, block.block_q, program.q_len);
    joined_.kv_len = joint_length(cols, block.block_kv, program.kv_len);
    joined_.tables = program.tables;
    std::vector<IrId> ids;
    for (IrNode node : program.nodes) {
      for (int c = 0; c < node.num_children; ++c) {
        node.children[c] = ids[static_cast<std::size_t>(node.children[c])];
      }
      IrId id = append(node);
      if (node.op == IrOp::q) id = place(id, rows, block.block_q);
      if (node.op == IrOp::k) id = place(id, cols, block.block_kv);
      ids.push_back(id);
    }
    joined_.root = ids[static_cast<std::size_t>(program.root)];
  }

  IrProgram simplified() const { return simplify(joined_); }

 private:
  IrId append(const IrNode& node) {
    joined_.nodes.push_back(node);
    return static_cast<IrId>(joined_.nodes.size() - 1);
  }

  IrId append(IrOp op, std::initializer_list<IrId> children, std::int64_t value = 0) {
    IrNode node{op};
    node.value = value;
    for (const IrId child : children) node.children[node.num_children++] = child;
    return append(node);
  }

  // origins[at // size] + at % size
  IrId place(IrId at, const std::vector<std::int32_t>& tiles, std::int32_t size) {
    const auto origins = std::make_shared<std::vector<std::int64_t>>();
    for (const std::int32_t tile : tiles) origins->push_back(std::int64_t{tile} * size);
    IrTable table;
    table.rank = 1;
    table.extents[0] = std::ssize(*origins);
    table.data = origins->data();
    table.owner = origins;
    joined_.tables.push_back(std::move(table));
    const IrId length = append(IrOp::constant, {}, size);
    const IrId turn = append(IrOp::floor_div, {at, length});
    const IrId origin = append(IrOp::lookup, {turn}, std::ssize(joined_.tables) - 1);
    return append(IrOp::add, {origin, append(IrOp::mod, {at, length})});
  }

  IrProgram joined_;
};

}  // namespace

std::vector<std::int32_t> first_equal_slots(const IrProgram& program, BlockShape block,
                                            std::span<const Slot> slots, WorkMeter& meter) {
  std::vector<std::int32_t> first(slots.size());
  std::iota(first.begin(), first.end(), 0);
  std::vector<std::int32_t> rows, cols;
  for (const Slot& slot : slots) {
    rows.push_back(slot.row);
    cols.push_back(slot.col);
  }
  rows = distinct(std::move(rows));
  cols = distinct(std::move(cols));
  if (rows.empty()) return first;
  const IrProgram joined = JoinedProgram(program, block, rows, cols).simplified();
  const box::BoxProgram prepared(joined, &meter);
  if (prepared.is_too_nested()) return first;
  const box::TileNumbers tile_numbers(prepared, block);
  if (!tile_numbers.is_usable() || meter.must_stop()) return first;
  Numbers numbers(tile_numbers);
  const auto num_rows = static_cast<std::int32_t>(ceil_div(program.q_len, block.block_q));
  const auto num_cols = static_cast<std::int32_t>(ceil_div(program.kv_len, block.block_kv));
  std::vector<std::int32_t> known;  // the first slot by number, four a number: how it is cut off
  std::int32_t row = -1;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].row != row) {
      row = slots[i].row;
      numbers.begin_row(position_of(rows, row));
    }
    const std::int32_t col = position_of(cols, slots[i].col);
    std::int32_t number = Numbers::kNone;
    numbers.number(col, col + 1, &number);
    if (number == Numbers::kNone) continue;
    const bool is_last_row = row + 1 == num_rows, is_last_col = slots[i].col + 1 == num_cols;
    const auto key = static_cast<std::size_t>(4 * number + 2 * is_last_row + is_last_col);
    if (key >= known.size()) known.resize(key + 1, -1);
    if (known[key] < 0) known[key] = static_cast<std::int32_t>(i);
    first[i] = known[key];
  }
  return first;
}

}  // namespace fdma::periodic
