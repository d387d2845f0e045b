#include "boxes/box_fixture.hpp"

#include <algorithm>
#include <cstring>

#include "ir/ir_interpreter.hpp"

namespace fdma::box_test {
namespace {

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
  const reference::Value value = ir_test::IrInterpreter(program).cell(q, k);
  return value.is_defined ? std::optional(value.value != 0) : std::nullopt;
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
