// Atoms that vary along one axis. A query atom makes a row constant. A key atom is the same bit row
// for every query. A diagonal atom is a window on one bit string that moves one bit to the left for
// each query. That string is kept eight times, shifted by 0..7 bits, so every window starts at a
// byte and no row needs work of its own.
#include <algorithm>
#include <bit>
#include <cstring>

#include "boxes/row_atom.hpp"
#include "boxes/shifted_bits.hpp"
#include "boxes/tile_pyramid.hpp"

namespace fdma::box {
namespace {

class QueryAtom final : public RowAtom {
 public:
  QueryAtom(ConditionVector vector, bool is_uniform, std::int64_t q_len, BlockShape block)
      : vector_(std::move(vector)), is_uniform_(is_uniform) {
    if (!is_uniform) {
      pyramid_ = make_pyramid(vector_, block.block_q, 1);
    } else {
      uniform_ = q_len > 0 ? vector_.outcome(0) : kFalse;
    }
  }
  bool may_be_undefined() const override { return !vector_.is_false.empty(); }
  std::unique_ptr<AtomScratch> make_scratch(std::int64_t) const override {
    return std::make_unique<AtomScratch>();
  }
  Planes row(const RowBlock& block, AtomScratch&) const override {
    const Outcomes outcome = is_uniform_ ? uniform_ : vector_.outcome(block.q);
    return {outcome == kTrue ? kEvery : kNone, outcome == kFalse ? kEvery : kNone};
  }
  Outcomes outcomes(const TileBox& box, AtomScratch&) const override {
    return is_uniform_ ? uniform_ : pyramid_.at(0, box.tile_row);
  }
  void mark_changes(std::vector<std::uint8_t>& changed) const override {
    if (is_uniform_) return;
    for (std::size_t q = 1; q < changed.size(); ++q) {
      const auto at = static_cast<std::int64_t>(q);
      changed[q] |= vector_.outcome(at) != vector_.outcome(at - 1);
    }
  }

 private:
  ConditionVector vector_;
  bool is_uniform_;
  Outcomes uniform_ = kFalse;
  TilePyramid<Outcomes> pyramid_;
};

class KeyAtom final : public RowAtom {
 public:
  KeyAtom(ConditionVector vector, BlockShape block)
      : vector_(std::move(vector)), pyramid_(make_pyramid(vector_, block.block_kv, kAllLevels)) {}
  bool may_be_undefined() const override { return !vector_.is_false.empty(); }
  std::unique_ptr<AtomScratch> make_scratch(std::int64_t) const override {
    return std::make_unique<AtomScratch>();
  }
  Planes row(const RowBlock& block, AtomScratch&) const override {
    const Plane is_true = plane_of(vector_.is_true.data() + block.first_word);
    if (!may_be_undefined()) return defined(is_true);
    return {is_true, plane_of(vector_.is_false.data() + block.first_word)};
  }
  Outcomes outcomes(const TileBox& box, AtomScratch&) const override {
    return pyramid_.at(box.level, box.index);
  }
  void mark_changes(std::vector<std::uint8_t>&) const override {}

 private:
  ConditionVector vector_;
  TilePyramid<Outcomes> pyramid_;
};

class DiagonalAtom final : public RowAtom {
 public:
  DiagonalAtom(const ConditionVector& vector, std::int64_t q_len, std::int64_t kv_len,
               BlockShape block)
      : q_len_(q_len), kv_len_(kv_len), block_(block), is_true_(vector.is_true, vector.length) {
    if (!vector.is_false.empty()) is_false_ = ShiftedBits(vector.is_false, vector.length);
  }
  bool may_be_undefined() const override { return !is_false_.empty(); }
  std::unique_ptr<AtomScratch> make_scratch(std::int64_t) const override {
    return std::make_unique<AtomScratch>();
  }
  Planes row(const RowBlock& block, AtomScratch&) const override {
    const std::int64_t begin = q_len_ - 1 - block.q + 64 * block.first_word;
    const Plane is_true{is_true_.from(begin), 0};
    if (is_false_.empty()) return defined(is_true);
    return {is_true, Plane{is_false_.from(begin), 0}};
  }
  Outcomes outcomes(const TileBox& box, AtomScratch&) const override {
    const std::int64_t q_begin = box.tile_row * block_.block_q;
    const std::int64_t q_end = std::min(q_len_, q_begin + block_.block_q);
    const std::int64_t k_begin = (box.index << box.level) * block_.block_kv;
    const std::int64_t k_end = std::min(kv_len_, ((box.index + 1) << box.level) * block_.block_kv);
    const std::int64_t begin = k_begin - (q_end - 1) + q_len_ - 1;
    const std::int64_t end = k_end - q_begin + q_len_ - 1;
    const std::int64_t num_true = is_true_.count(begin, end);
    const std::int64_t num_false =
        is_false_.empty() ? end - begin - num_true : is_false_.count(begin, end);
    Outcomes out = 0;
    if (num_true > 0) out |= kTrue;
    if (num_false > 0) out |= kFalse;
    if (num_true + num_false < end - begin) out |= kUndefined;
    return out;
  }
  void mark_changes(std::vector<std::uint8_t>& changed) const override {
    std::fill(changed.begin(), changed.end(), std::uint8_t{1});
  }

 private:
  std::int64_t q_len_;
  std::int64_t kv_len_;
  BlockShape block_;
  ShiftedBits is_true_;
  ShiftedBits is_false_;
};

}  // namespace

std::unique_ptr<RowAtom> make_axis_atom(const BoxProgram& program, IrId id, BlockShape block) {
  const Axis axis = program.axis(id);
  ConditionVector vector = condition_vector(program, id, axis);
  switch (axis) {
    case Axis::key:
      return std::make_unique<KeyAtom>(std::move(vector), block);
    case Axis::diagonal:
      return std::make_unique<DiagonalAtom>(vector, program.q_len(), program.kv_len(), block);
    default:
      return std::make_unique<QueryAtom>(std::move(vector), axis == Axis::none, program.q_len(),
                                         block);
  }
}

}  // namespace fdma::box
