// Evaluates single tiles of a program.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "lower/work_meter.hpp"
#include "periodic/plan.hpp"

namespace fdma::periodic {

/// What a tile holds: kEmptyTile, kFullTile, or the index of a bitmap in a TileStore.
using Contents = std::int32_t;
/// The contents of a tile whose cells are not known yet.
inline constexpr Contents kUndecidedTile = -3;

/// Distinct bitmaps of partial tiles.
class TileStore {
 public:
  explicit TileStore(BlockShape block)
      : words_per_bitmap_(std::int64_t{block.block_q} * block.block_kv / 64) {}
  Contents intern(const std::uint64_t* words);
  std::int64_t size() const { return std::ssize(hashes_); }
  const std::uint64_t* words(Contents index) const {
    return words_.data() + index * words_per_bitmap_;
  }
  std::uint64_t hash(Contents index) const { return hashes_[static_cast<std::size_t>(index)]; }

 private:
  std::int64_t words_per_bitmap_;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> hashes_;
  DataIndex index_;
};

/// The program of the cells [q0, q0 + q_len) x [k0, k0 + kv_len), counted from the first one.
IrProgram move_program(const IrProgram& program, std::int64_t q0, std::int64_t k0,
                       std::int64_t q_len, std::int64_t kv_len);

/// The contents of slots, which are row-major. Neighbouring ones are evaluated together, as small
/// masks, by box form.
///
/// Errors      those of box form
/// Cost        that of box form for each group of neighbours
Result<std::vector<Contents>> evaluate_slots(const IrProgram& program, BlockShape block,
                                             std::span<const Slot> slots, TileStore& store,
                                             WorkMeter& meter);

}  // namespace fdma::periodic
