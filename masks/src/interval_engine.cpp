// Interval form: masks that are, per query row, a union of a few key intervals (or, per key, of
// query intervals).
//
// In canonical form (simplify.hpp) a comparison that separates has a side that mentions only k and
// a side that mentions only q. Either is a Piecewise, a function that is linear on a few pieces,
// and a pair of pieces meets in a trapezoid of cells: k <= q + 5 is a half plane, k // 64 == q //
// 64 a row of squares, t[k] == t[q] with contiguous ids one square per document. Unions,
// intersections and complements of trapezoids stay such sets (region.hpp), so the whole expression
// is evaluated symbolically, at a cost of the number of pieces and not of cells. A conjunction
// evaluates its later operands only inside the hull of each band of the earlier ones: within one
// document, `prefix` is one interval and not one per document; and a guard in front keeps a lookup
// inside its table.
//
// The rows of the bands are queries; if that does not work, keys, which then gives the column table
// at once (cache eviction: k <= q & q < @end[k] is one query interval per key, but up to kv_len / 2
// key intervals per query).
//
// Fits        causal & documents(lengths=@t) & window(512): two bands a document
// Does not    (q - k) % 4 == 0 (too many intervals per row); @seen[q // 64, k // 64] (does not
// separate): box form takes those Declines    also wherever a cell might be undefined: box form
// finds the cell, or proves that there is none
#include <algorithm>

#include "engines.hpp"
#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/formats/segment_from_columns.hpp"
#include "range.hpp"
#include "region.hpp"

namespace fdma {
namespace {

constexpr int kMaxDepth = 200;  // nesting of unlike logical operators: bounds the recursion
constexpr std::size_t kLightWeight =
    8;  // pieces up to which a condition is evaluated once for all bands
constexpr std::size_t kMaxHeavyBands =
    8192;  // bands up to which a heavier one is evaluated inside each

// What both orientations share: the function of every node that mentions one variable only.
struct Analysis {
  const IrProgram& program;
  std::vector<std::uint8_t> mentions;
  std::vector<PiecewisePtr> functions;  // null for nodes that mention both variables
  std::vector<std::size_t> weights;     // pieces that evaluating a condition looks at
  std::vector<int> depths;              // of nested unlike logical operators

  explicit Analysis(const IrProgram& p) : program(p) {}
};

bool is_comparison(IrOp op) {
  return op == IrOp::less || op == IrOp::less_equal || op == IrOp::equal || op == IrOp::not_equal;
}
bool is_logical(IrOp op) {
  return op == IrOp::logical_and || op == IrOp::logical_or || op == IrOp::logical_xor ||
         op == IrOp::logical_not || op == IrOp::where_condition;
}

constexpr std::uint8_t kBoth = kMentionsQ | kMentionsK;

// True iff every node is one that this engine can express; looks at no table.
bool has_interval_shape(const IrProgram& program, const std::vector<std::uint8_t>& mentions) {
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const IrNode& node = program.nodes[i];
    if ((mentions[i] & kMentionsLoop) != 0 || node.op == IrOp::any_of || node.op == IrOp::all_of) {
      return false;
    }
    if ((mentions[i] & kBoth) == kBoth && !is_comparison(node.op) && !is_logical(node.op))
      return false;
    if (mentions[i] == 0 && node.op != IrOp::constant && node.op != IrOp::boolean) return false;
    if (is_comparison(node.op) && (mentions[i] & kBoth) == kBoth) {
      for (int c = 0; c < 2; ++c) {
        if (mentions[static_cast<std::size_t>(node.children[c])] == kBoth) return false;
      }
    }
  }
  return true;
}

bool analyse(Analysis& a) {
  const IrProgram& program = a.program;
  a.mentions = node_mentions(program);
  if (!has_interval_shape(program, a.mentions)) return false;
  const std::size_t size = program.nodes.size();
  a.functions.resize(size);
  a.weights.assign(size, 0);
  a.depths.assign(size, 0);
  const auto constant_on = [&](std::int64_t n, const IrNode& node) {
    return std::make_shared<const Piecewise>(Piecewise::constant(n, node.value));
  };
  for (std::size_t i = 0; i < size; ++i) {
    const IrNode& node = program.nodes[i];
    const auto child = [&](int c) { return static_cast<std::size_t>(node.children[c]); };
    if (a.mentions[i] == kBoth) {
      for (int c = 0; c < node.num_children; ++c) {
        const bool is_same = program.nodes[child(c)].op == node.op;
        a.depths[i] = std::max(a.depths[i], a.depths[child(c)] + (is_same ? 0 : 1));
        a.weights[i] +=
            a.functions[child(c)] ? a.functions[child(c)]->pieces().size() : a.weights[child(c)];
      }
      if (a.depths[i] > kMaxDepth) return false;
      continue;
    }
    if (a.mentions[i] == 0) {
      if (std::abs(node.value) >= Piecewise::kMaxValue) return false;
      continue;  // made where it is used, as long as the other operand
    }
    const std::int64_t n = a.mentions[i] == kMentionsQ ? program.q_len : program.kv_len;
    if (node.op == IrOp::q || node.op == IrOp::k) {
      a.functions[i] = std::make_shared<const Piecewise>(Piecewise::identity(n));
      continue;
    }
    std::vector<PiecewisePtr> operands;
    for (int c = 0; c < node.num_children; ++c) {
      operands.push_back(a.mentions[child(c)] == 0 ? constant_on(n, program.nodes[child(c)])
                                                   : a.functions[child(c)]);
    }
    const bool is_table = node.op == IrOp::lookup || node.op == IrOp::test;
    a.functions[i] =
        apply(node.op, operands,
              is_table ? &program.tables[static_cast<std::size_t>(node.value)] : nullptr);
    if (a.functions[i] == nullptr) return false;
    a.weights[i] = a.functions[i]->pieces().size();
  }
  return true;
}

// Evaluates the program's conditions as Regions whose rows are queries or keys.
class RegionEvaluator {
 public:
  RegionEvaluator(const Analysis& analysis, bool rows_are_queries)
      : a_(analysis),
        program_(analysis.program),
        row_bit_(rows_are_queries ? kMentionsQ : kMentionsK),
        num_rows_(rows_are_queries ? program_.q_len : program_.kv_len),
        num_cols_(rows_are_queries ? program_.kv_len : program_.q_len),
        zero_rows_(Piecewise::constant(num_rows_, 0)),
        zero_cols_(Piecewise::constant(num_cols_, 0)) {}

  /// The mask's cells in rows [begin, end).
  std::optional<Region> run(std::int64_t begin, std::int64_t end) {
    return evaluate(program_.root, false, {begin, end, 0, num_cols_});
  }

 private:
  std::uint8_t mentions(IrId id) const { return a_.mentions[static_cast<std::size_t>(id)]; }

  // The cells of `domain` where condition `id` (its negation, if `negate`) holds.
  std::optional<Region> evaluate(IrId id, bool negate, const Rectangle& domain) {
    if (domain.is_empty()) return Region{};
    const IrNode& node = program_.node(id);
    if (node.op == IrOp::boolean) {
      return (node.value != 0) != negate ? Region::rectangle(domain) : Region{};
    }
    if (mentions(id) != kBoth) return evaluate_single(id, negate, domain);
    switch (node.op) {
      case IrOp::logical_and:
      case IrOp::logical_or:
        return (node.op == IrOp::logical_and) != negate ? conjunction(id, negate, domain)
                                                        : disjunction(id, negate, domain);
      case IrOp::logical_not:
        return evaluate(node.children[0], !negate, domain);
      case IrOp::logical_xor: {
        auto left = evaluate(node.children[0], negate, domain);
        if (!left) return std::nullopt;
        auto right = evaluate(node.children[1], false, domain);
        if (!right) return std::nullopt;
        return combine(*left, *right, SetOp::symmetric_difference);
      }
      case IrOp::where_condition: {
        auto chosen = evaluate(node.children[0], false, domain);
        if (!chosen) return std::nullopt;
        auto left = evaluate(node.children[1], negate, domain);
        if (!left) return std::nullopt;
        auto right = evaluate(node.children[2], negate, domain);
        if (!right) return std::nullopt;
        auto inside = combine(*left, *chosen, SetOp::intersection);
        auto outside = combine(*right, *chosen, SetOp::difference);
        if (!inside || !outside) return std::nullopt;
        return combine(*inside, *outside, SetOp::unite);
      }
      default:
        return evaluate_comparison(node, negate, domain);
    }
  }

  // A condition on the row or on the column alone: its function is 1 where it holds.
  std::optional<Region> evaluate_single(IrId id, bool negate, const Rectangle& domain) {
    const Piecewise& function = *a_.functions[static_cast<std::size_t>(id)];
    const bool is_row = mentions(id) == row_bit_;
    return equal_region(is_row ? function : zero_rows_, 1, is_row ? zero_cols_ : function, 1,
                        negate ? 0 : 1, domain);
  }

  std::optional<Region> evaluate_comparison(const IrNode& node, bool negate,
                                            const Rectangle& domain) {
    // a < b is a - b < 0; not (a < b) is b - a < 1; and so on.
    const bool a_is_row = mentions(node.children[0]) == row_bit_;
    const Piecewise& a = *a_.functions[static_cast<std::size_t>(node.children[0])];
    const Piecewise& b = *a_.functions[static_cast<std::size_t>(node.children[1])];
    const Piecewise& rows = a_is_row ? a : b;
    const Piecewise& cols = a_is_row ? b : a;
    if (node.op == IrOp::equal || node.op == IrOp::not_equal) {
      auto equal = equal_region(rows, 1, cols, -1, 0, domain);
      if (!equal || (node.op == IrOp::equal) != negate) return equal;
      return combine(Region::rectangle(domain), *equal, SetOp::difference);
    }
    const int sign = negate ? -1 : 1;  // of a
    const std::int64_t limit = (node.op == IrOp::less) != negate ? 0 : 1;
    return less_region(rows, a_is_row ? sign : -sign, cols, a_is_row ? -sign : sign, limit, domain);
  }

  // The operands of a chain of one logical operator, those that are cheapest to evaluate first.
  std::vector<IrId> operands_of(IrId id) const {
    const IrOp op = program_.node(id).op;
    std::vector<IrId> pending{id}, operands;
    while (!pending.empty()) {
      const IrId next = pending.back();
      pending.pop_back();
      const IrNode& node = program_.node(next);
      if (node.op == op && mentions(next) == kBoth) {
        pending.push_back(node.children[1]);
        pending.push_back(node.children[0]);
      } else {
        operands.push_back(next);
      }
    }
    const auto rank = [&](IrId i) {
      const bool is_nested = mentions(i) == kBoth && is_logical(program_.node(i).op);
      return std::pair{is_nested, a_.weights[static_cast<std::size_t>(i)]};
    };
    std::stable_sort(operands.begin(), operands.end(),
                     [&](IrId x, IrId y) { return rank(x) < rank(y); });
    return operands;
  }

  std::optional<Region> conjunction(IrId id, bool negate, const Rectangle& domain) {
    const std::vector<IrId> operands = operands_of(id);
    auto all = evaluate(operands[0], negate, domain);
    for (std::size_t i = 1; all && i < operands.size(); ++i) {
      const std::size_t weight = a_.weights[static_cast<std::size_t>(operands[i])];
      const std::size_t num_bands = all->bands().size();
      if (weight <= kLightWeight || num_bands == 1 || num_bands > kMaxHeavyBands) {
        const auto next = evaluate(operands[i], negate, all->hull());
        if (!next) return std::nullopt;
        all = combine(*all, *next, SetOp::intersection);
        continue;
      }
      Region inside;
      for (const RowBand& band : all->bands()) {
        const auto next = evaluate(operands[i], negate, all->hull(band));
        if (!next) return std::nullopt;
        Region one;
        one.append(*all, band);
        const auto both = combine(one, *next, SetOp::intersection);
        if (!both) return std::nullopt;
        for (const RowBand& part : both->bands()) inside.append(*both, part);
      }
      all = std::move(inside);
    }
    return all;
  }

  std::optional<Region> disjunction(IrId id, bool negate, const Rectangle& domain) {
    std::optional<Region> any = Region{};
    for (const IrId operand : operands_of(id)) {
      const auto next = evaluate(operand, negate, domain);
      if (!next) return std::nullopt;
      any = combine(*any, *next, SetOp::unite);
      if (!any) return std::nullopt;
    }
    return any;
  }

  const Analysis& a_;
  const IrProgram& program_;
  const std::uint8_t row_bit_;
  const std::int64_t num_rows_;
  const std::int64_t num_cols_;
  const Piecewise zero_rows_;
  const Piecewise zero_cols_;
};

// Keys whose intervals are found at a time: their bands stay in the cache.
constexpr std::int64_t kKeysPerChunk = 8192;

// The mask as query intervals per key.
std::optional<SegmentMask> lower_by_key(const Analysis& analysis, BlockShape block,
                                        const std::function<bool()>& is_cancelled) {
  const std::int64_t q_len = analysis.program.q_len, kv_len = analysis.program.kv_len;
  RegionEvaluator evaluator(analysis, false);
  std::vector<std::int64_t> offsets;
  offsets.reserve(static_cast<std::size_t>(kv_len) + 1);
  offsets.push_back(0);
  std::vector<Interval> intervals;
  intervals.reserve(static_cast<std::size_t>(kv_len));
  for (std::int64_t begin = 0; begin < kv_len; begin += kKeysPerChunk) {
    if (is_cancelled && is_cancelled()) return std::nullopt;
    const auto region = evaluator.run(begin, std::min(begin + kKeysPerChunk, kv_len));
    if (!region) return std::nullopt;
    for (const RowBand& band : region->bands()) {
      offsets.resize(static_cast<std::size_t>(band.q_begin) + 1, offsets.back());
      for (std::int64_t k = band.q_begin; k < band.q_end; ++k) {
        for (const AffineInterval& i : region->intervals(band)) {
          intervals.push_back({static_cast<std::int32_t>(i.lo_base + i.lo_slope * k),
                               static_cast<std::int32_t>(i.hi_base + i.hi_slope * k)});
        }
        offsets.push_back(static_cast<std::int64_t>(intervals.size()));
      }
    }
  }
  offsets.resize(static_cast<std::size_t>(kv_len) + 1, offsets.back());
  return segment_from_columns(q_len, kv_len, block, std::move(offsets), std::move(intervals),
                              is_cancelled);
}

}  // namespace

std::optional<SegmentMask> lower_intervals(const IrProgram& program, BlockShape block,
                                           const std::function<bool()>& is_cancelled) {
  Analysis analysis(program);
  if (!analyse(analysis)) return std::nullopt;
  if (auto by_query = RegionEvaluator(analysis, true).run(0, program.q_len)) {
    return segment_from_bands(std::move(*by_query).to_row_bands(program.q_len, program.kv_len),
                              block);
  }
  return lower_by_key(analysis, block, is_cancelled);
}

}  // namespace fdma
