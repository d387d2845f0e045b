#include "periodic/tiles.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "fdma/base/interval.hpp"
#include "ir/simplify.hpp"
#include "lower/engines.hpp"

namespace fdma::periodic {
namespace {

/// The most tiles without a slot that a group holds between two of its slots.
constexpr std::int32_t kMostGap = 2;

/// Slots [first, end), in tiles [first_col, end_col) of tile row `row`.
struct Group {
  std::size_t first;
  std::size_t end;
  std::int32_t row;
  std::int32_t first_col;
  std::int32_t end_col;
};

std::vector<Group> group_slots(std::span<const Slot> slots) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot& slot = slots[i];
    if (!groups.empty() && groups.back().row == slot.row &&
        slot.col - groups.back().end_col <= kMostGap) {
      groups.back().end = i + 1;
      groups.back().end_col = slot.col + 1;
    } else {
      groups.push_back({i, i + 1, slot.row, slot.col, slot.col + 1});
    }
  }
  return groups;
}

}  // namespace

Contents TileStore::intern(const std::uint64_t* words) {
  const std::uint64_t hash = hash_words(words, words_per_bitmap_);
  const std::int32_t found = index_.find(hash, [&](std::int32_t index) {
    return std::memcmp(this->words(index), words,
                       static_cast<std::size_t>(words_per_bitmap_) * 8) == 0;
  });
  if (found >= 0) return found;
  const auto index = static_cast<Contents>(hashes_.size());
  words_.insert(words_.end(), words, words + words_per_bitmap_);
  hashes_.push_back(hash);
  index_.insert(hash, index);
  return index;
}

IrProgram move_program(const IrProgram& program, std::int64_t q0, std::int64_t k0,
                       std::int64_t q_len, std::int64_t kv_len) {
  IrProgram moved;
  moved.q_len = q_len;
  moved.kv_len = kv_len;
  moved.tables = program.tables;
  std::vector<IrId> ids;
  const auto append = [&](const IrNode& node) {
    moved.nodes.push_back(node);
    return static_cast<IrId>(moved.nodes.size() - 1);
  };
  for (IrNode node : program.nodes) {
    for (int c = 0; c < node.num_children; ++c) {
      node.children[c] = ids[static_cast<std::size_t>(node.children[c])];
    }
    IrId id = append(node);
    if (node.op == IrOp::q || node.op == IrOp::k) {
      IrNode origin{IrOp::constant};
      origin.value = node.op == IrOp::q ? q0 : k0;
      IrNode sum{IrOp::add, 2};
      sum.children[0] = id;
      sum.children[1] = append(origin);
      id = append(sum);
    }
    ids.push_back(id);
  }
  moved.root = ids[static_cast<std::size_t>(program.root)];
  return simplify(moved);
}

Result<std::vector<Contents>> evaluate_slots(const IrProgram& program, BlockShape block,
                                             std::span<const Slot> slots, TileStore& store,
                                             WorkMeter& meter) {
  std::vector<Contents> contents(slots.size(), kEmptyTile);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(block.block_q) *
                                   static_cast<std::size_t>(block.block_kv) / 64);
  for (const Group& group : group_slots(slots)) {
    if (meter.must_stop()) return meter.error();
    const std::int64_t q0 = std::int64_t{group.row} * block.block_q;
    const std::int64_t k0 = std::int64_t{group.first_col} * block.block_kv;
    const IrProgram moved =
        move_program(program, q0, k0, std::min<std::int64_t>(block.block_q, program.q_len - q0),
                     std::min(program.kv_len, std::int64_t{group.end_col} * block.block_kv) - k0);
    FDMA_TRY(const SegmentMask mask, lower_boxes(moved, block, 1, meter));
    const std::vector<TileSegment> segments = segments_of_row(mask, 0);
    auto segment = segments.begin();
    for (std::size_t i = group.first; i < group.end; ++i) {
      const std::int32_t col = slots[i].col - group.first_col;
      while (segment != segments.end() && segment->end_tile <= col) ++segment;
      if (segment == segments.end()) break;
      if (segment->first_tile > col) continue;
      if (segment->kind == SegmentKind::full) {
        contents[i] = kFullTile;
        continue;
      }
      tile_cells(mask, *segment, 0, col, words.data());
      contents[i] = store.intern(words.data());
    }
  }
  return contents;
}

}  // namespace fdma::periodic
