// Any condition, evaluated cell by cell in batches of 256 keys, for conditions that no faster atom
// fits, such as `(q * k) % 7 == 3` or `abs(q // 64 - k // 64) < 3`.
//
// The largest parts of the condition that vary along one axis are evaluated once as vectors; only
// the operators above them run per cell. A row is a function of the tuple of its per-query parts
// (here q // 64). Rows are therefore cached by that tuple where tuples repeat, unless a part
// depends on the diagonal.
#include <algorithm>
#include <mutex>

#include "boxes/lane_eval.hpp"
#include "boxes/row_atom.hpp"
#include "boxes/row_cache.hpp"
#include "boxes/tile_pyramid.hpp"

namespace fdma::box {
namespace {

constexpr std::int64_t kMaxCacheBytes = std::int64_t{64} << 20;
constexpr std::int64_t kWordsPerBatch = LaneEvaluator::kWords;
/// Words of a row between two calls of must_stop.
constexpr std::int64_t kWordsAtOnce = 256 * kWordsPerBatch;

/// A part that varies along one axis.
struct Part {
  IrId id;
  Axis axis;
  bool is_condition;
  std::shared_ptr<const IntegerVector> integers;
  ConditionVector conditions;
  TilePyramid<NodeRange> integer_ranges;
  TilePyramid<Outcomes> condition_ranges;
};

class CellAtom final : public RowAtom {
 public:
  CellAtom(const BoxProgram& program, IrId id, BlockShape block) : program_(program), root_(id) {
    words_per_row_ = (program.kv_len() + 63) / 64;
    split(block);
    is_repeated_ = std::none_of(parts_.begin(), parts_.end(),
                                [](const Part& part) { return part.axis == Axis::diagonal; });
  }

  bool may_be_undefined() const override { return program_.facts(root_).range.may_be_undefined; }
  std::unique_ptr<AtomScratch> make_scratch(std::int64_t max_words) const override {
    return std::make_unique<Scratch>(*this, max_words);
  }

  Planes row(const RowBlock& block, AtomScratch& base) const override {
    auto& scratch = static_cast<Scratch&>(base);
    const std::uint64_t* is_true = nullptr;
    const std::uint64_t* is_false = nullptr;
    if (block.fills_caches && is_repeated_) {
      std::call_once(cache_is_made_, [this] { make_cache(); });
    }
    if (block.fills_caches && !cache_.empty()) {
      const std::uint64_t* words = cache_.get(block.q, [&](std::uint64_t* out) {
        compute({block.q, 0, words_per_row_}, scratch, out, out + words_per_row_);
      });
      if (words != nullptr) {
        is_true = words + block.first_word;
        is_false = is_true + words_per_row_;
      }
    }
    if (is_true == nullptr) {
      compute(block, scratch, scratch.is_true.data(), scratch.is_false.data());
      is_true = scratch.is_true.data();
      is_false = scratch.is_false.data();
    }
    return may_be_undefined() ? Planes{plane_of(is_true), plane_of(is_false)}
                              : defined(plane_of(is_true));
  }

  Outcomes outcomes(const TileBox& box, AtomScratch& base) const override {
    std::vector<NodeRange>& values = static_cast<Scratch&>(base).values;
    std::size_t next = 0;
    for (const Part& part : parts_) {
      const int level = part.axis == Axis::key ? box.level : 0;
      const std::int64_t index = part.axis == Axis::key     ? box.index
                                 : part.axis == Axis::query ? box.tile_row
                                                            : 0;
      values[next++] = part.is_condition
                           ? NodeRange::of_outcomes(part.condition_ranges.at(level, index))
                           : part.integer_ranges.at(level, index);
    }
    for (const RangeStep& step : range_steps_) {
      if (step.is_fixed) {
        values[next++] = program_.facts(step.id).range;
        continue;
      }
      NodeRange children[4];
      const IrNode& node = program_.node(step.id);
      for (std::size_t c = 0; c < 4 && step.children[c] >= 0; ++c) {
        children[c] = values[static_cast<std::size_t>(step.children[c])];
      }
      const bool is_lookup = node.op == IrOp::lookup || node.op == IrOp::test;
      values[next++] =
          is_lookup ? program_.tables().lookup(node.value, children) : range_of(node, children);
    }
    return values[next - 1].outcomes();
  }

  void mark_changes(std::vector<std::uint8_t>& changed) const override {
    if (!is_repeated_) {
      std::fill(changed.begin(), changed.end(), std::uint8_t{1});
      return;
    }
    for (const Part& part : parts_) {
      if (part.axis != Axis::query) continue;
      for (std::size_t q = 1; q < changed.size(); ++q) {
        const auto at = static_cast<std::int64_t>(q);
        changed[q] |=
            part.is_condition
                ? part.conditions.outcome(at) != part.conditions.outcome(at - 1)
                : part.integers->values[q] != part.integers->values[q - 1] ||
                      part.integers->is_undefined(at) != part.integers->is_undefined(at - 1);
      }
    }
  }

 private:
  /// A node above the parts, with the way to bound it from earlier entries.
  struct RangeStep {
    IrId id;
    bool is_fixed;  ///< a loop variable or constant, with its global range
    std::int32_t children[4];
  };

  struct Scratch final : AtomScratch {
    Scratch(const CellAtom& atom, std::int64_t max_words)
        : lanes(atom.program_, std::vector<IrId>{atom.root_}, atom.part_ids_, atom.program_.meter(),
                ceil_div(atom.program_.kv_len(), std::int64_t{LaneEvaluator::kLanes})),
          is_true(static_cast<std::size_t>(max_words)),
          is_false(static_cast<std::size_t>(max_words)),
          values(atom.parts_.size() + atom.range_steps_.size()) {}
    LaneEvaluator lanes;
    std::vector<std::uint64_t> is_true;
    std::vector<std::uint64_t> is_false;
    std::vector<NodeRange> values;
  };

  /// Numbers the distinct tuples of per-query parts, part after part.
  void make_cache() const {
    const auto num_rows = static_cast<std::size_t>(program_.q_len());
    const std::int64_t row_bytes = 16 * words_per_row_;
    const std::int64_t limit = std::max<std::int64_t>(
        1, std::min(program_.q_len() - program_.q_len() / 8,
                    cache_limit(program_.q_len(), row_bytes, 1,
                                std::min(kMaxCacheBytes, program_.cache_bytes_left()))));
    std::vector<std::uint32_t> ids(num_rows, 0);
    std::int64_t num_ids = 1;
    std::vector<std::int64_t> rows;  // for each query: id so far, value, whether it is undefined
    for (const Part& part : parts_) {
      if (part.axis != Axis::query) continue;
      rows.resize(3 * num_rows);
      for (std::size_t q = 0; q < num_rows; ++q) {
        std::int64_t* row = rows.data() + 3 * q;
        const auto at = static_cast<std::int64_t>(q);
        row[0] = ids[q];
        row[2] = part.is_condition ? 0 : part.integers->is_undefined(at);
        row[1] = part.is_condition ? part.conditions.outcome(at)
                 : row[2] != 0     ? 0
                                   : part.integers->values[q];
      }
      ids = number_distinct(rows, 3, limit, num_ids);
      if (ids.empty()) return;
    }
    if (ids.empty() || !program_.take_cache_bytes(num_ids * row_bytes)) return;
    cache_ = RowCache(std::move(ids), num_ids, 2 * words_per_row_);
  }

  /// Finds the parts and the nodes above them.
  void split(BlockShape block) {
    std::vector<std::int32_t> place(static_cast<std::size_t>(program_.num_nodes()), -1);
    std::vector<IrId> above;
    std::vector<bool> is_seen(place.size(), false);
    std::vector<IrId> stack{root_};
    while (!stack.empty()) {
      const IrId id = stack.back();
      stack.pop_back();
      if (is_seen[static_cast<std::size_t>(id)]) continue;
      is_seen[static_cast<std::size_t>(id)] = true;
      const IrNode& node = program_.node(id);
      const Axis axis = program_.axis(id);
      const bool is_leaf = !program_.facts(id).is_open && axis != Axis::cell && axis != Axis::none;
      if (is_leaf && id != root_) {
        place[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(parts_.size());
        add_part(id, axis, block);
        continue;
      }
      above.push_back(id);
      for (int c = 0; c < node.num_children; ++c) stack.push_back(node.children[c]);
    }
    std::sort(above.begin(), above.end());
    for (const IrId id : above) {
      const IrNode& node = program_.node(id);
      RangeStep step{id, node.num_children == 0 && node.op != IrOp::boolean, {-1, -1, -1, -1}};
      for (int c = 0; c < node.num_children; ++c) {
        step.children[c] = place[static_cast<std::size_t>(node.children[c])];
      }
      place[static_cast<std::size_t>(id)] =
          static_cast<std::int32_t>(parts_.size() + range_steps_.size());
      range_steps_.push_back(step);
    }
  }

  void add_part(IrId id, Axis axis, BlockShape block) {
    Part part{id, axis, is_condition(program_.node(id).op), {}, {}, {}, {}};
    const std::int64_t tile = axis == Axis::key     ? block.block_kv
                              : axis == Axis::query ? block.block_q
                                                    : program_.num_diagonals();
    const int num_levels = axis == Axis::key ? kAllLevels : 1;
    if (part.is_condition) {
      part.conditions = condition_vector(program_, id, axis);
      part.condition_ranges = make_pyramid(part.conditions, tile, num_levels);
    } else {
      part.integers = shared_integer_vector(program_, id);
      part.integer_ranges = make_pyramid(*part.integers, tile, num_levels);
    }
    parts_.push_back(std::move(part));
    part_ids_.push_back(id);
  }

  void compute(const RowBlock& block, Scratch& scratch, std::uint64_t* is_true,
               std::uint64_t* is_false) const {
    LaneEvaluator& lanes = scratch.lanes;
    for (const Part& part : parts_) {
      if (part.axis != Axis::query) continue;
      if (part.is_condition) {
        const Outcomes outcome = part.conditions.outcome(block.q);
        lanes.fill_condition(part.id, outcome == kTrue, outcome == kFalse);
      } else {
        lanes.fill(part.id, part.integers->values[static_cast<std::size_t>(block.q)],
                   part.integers->is_undefined(block.q));
      }
    }
    for (std::int64_t w = 0; w < block.num_words; w += kWordsPerBatch) {
      if (w % kWordsAtOnce == 0 ? program_.must_stop() : program_.has_stopped()) return;
      const std::int64_t first = 64 * (block.first_word + w);
      const std::int64_t count = std::min<std::int64_t>(
          {LaneEvaluator::kLanes, program_.kv_len() - first, 64 * (block.num_words - w)});
      for (const Part& part : parts_) {
        if (part.axis == Axis::query) continue;
        const std::int64_t at =
            part.axis == Axis::key ? first : program_.q_len() - 1 - block.q + first;
        load(part, at, count, lanes);
      }
      lanes.run(static_cast<int>(count));
      const std::int64_t num_words = std::min(kWordsPerBatch, block.num_words - w);
      std::copy_n(lanes.true_bits(root_), num_words, is_true + w);
      std::copy_n(lanes.false_bits(root_), num_words, is_false + w);
    }
  }

  static void load(const Part& part, std::int64_t at, std::int64_t count, LaneEvaluator& lanes) {
    if (!part.is_condition) {
      lanes.set_values(part.id, part.integers->values.data() + at);
      if (!part.integers->undefined.empty()) {
        copy_bits(lanes.undefined_bits(part.id), part.integers->undefined.data(), at, count);
      }
      return;
    }
    copy_bits(lanes.true_bits(part.id), part.conditions.is_true.data(), at, count);
    if (!part.conditions.is_false.empty()) {
      copy_bits(lanes.false_bits(part.id), part.conditions.is_false.data(), at, count);
      return;
    }
    for (int i = 0; i < LaneEvaluator::kWords; ++i) {
      lanes.false_bits(part.id)[i] = ~lanes.true_bits(part.id)[i];
    }
  }

  const BoxProgram& program_;
  IrId root_;
  std::int64_t words_per_row_ = 0;
  bool is_repeated_ = false;
  std::vector<Part> parts_;
  std::vector<IrId> part_ids_;
  std::vector<RangeStep> range_steps_;
  mutable std::once_flag cache_is_made_;  // before the first whole row
  mutable RowCache cache_;
};

}  // namespace

std::unique_ptr<RowAtom> make_cell_atom(const BoxProgram& program, IrId id, BlockShape block) {
  return std::make_unique<CellAtom>(program, id, block);
}

}  // namespace fdma::box
