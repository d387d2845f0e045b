// Interval form: masks that are, per query row, a union of a few key intervals (or, per key, of
// query intervals).
//
// In canonical form (simplify.hpp) a comparison that separates has one side that mentions only k
// and one that mentions only q. Each side is a Piecewise, a function that is linear on a few
// pieces. A pair of pieces gives a trapezoid of cells: k <= q + 5 is a half plane, k // 64 == q //
// 64 a row of squares, t[k] == t[q] with contiguous ids one square per document. Unions,
// intersections and complements of trapezoids are again such sets (region.hpp), so the whole
// expression is evaluated symbolically, at a cost that follows the number of pieces and not of
// cells. A conjunction evaluates its later operands only inside the hull of each band of the
// earlier ones. Within one document, `prefix` is thus one interval and not one per document, and a
// guard in front keeps a lookup inside its table.
//
// The rows of the bands are queries. If that does not work they are keys, which gives the column
// table at once (cache eviction: k <= q & q < @end[k] is one query interval per key, but up to
// kv_len / 2 key intervals per query).
//
// Fits        causal & documents(lengths=@t) & window(512): two bands a document
// Does not    (q - k) % 4 == 0 (too many intervals per row); @seen[q // 64, k // 64] (does not
//             separate); box form handles these
// Declines    also wherever a cell might be undefined; box form then finds the cell, or proves that
//             there is none
// Memory      Everything that grows has a budget that is checked first: the intervals of a region,
//             the pieces of all functions together, the intervals of all keys. A mask beyond a
//             budget is left to box form, and so is one that takes too many steps
//             (effort.hpp).
// Length      The file is longer than most: rows and columns share the sweep and its budgets.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/formats/segment_from_columns.hpp"
#include "intervals/region.hpp"
#include "ir/node_text.hpp"
#include "ir/range.hpp"
#include "lower/engines.hpp"

namespace fdma {
namespace {

constexpr int kMaxDepth = 200;  // nesting of different logical operators; bounds the recursion
constexpr std::size_t kLightWeight =
    8;  // a condition of at most this many pieces is evaluated once for all bands
constexpr std::size_t kMaxHeavyBands =
    8192;  // a heavier one is evaluated inside each band if there are at most this many
// The most pieces of all kept functions together (24 bytes each), with an addition for each query
// row and key; likewise query intervals of all keys (8 bytes each).
constexpr std::size_t kFreePieces = std::size_t{1} << 20;
constexpr std::size_t kPiecesPerPosition = 6;
// The most pieces that bit operators may read and write together, likewise. Functions made of single
// bits have a piece for each position and rows with many intervals, so it is not worth while to make
// all of them.
constexpr std::size_t kFreeBitPieces = std::size_t{1} << 18;
constexpr std::size_t kBitPiecesPerPosition = 4;
constexpr std::size_t kFreeColumnIntervals = std::size_t{1} << 20;
constexpr std::size_t kColumnIntervalsPerKey = 16;

// The part that both orientations share: the function of every node that mentions one variable
// only.
struct Analysis {
  const IrProgram& program;
  std::vector<std::uint8_t> mentions;
  // Null for nodes that mention both variables, and for those that only other functions need.
  std::vector<PiecewisePtr> functions;
  std::vector<std::size_t> weights;  // pieces that are visited to evaluate a condition
  std::vector<int> depths;           // of nested different logical operators
  IrId without_form = -1;            // a node that the engine cannot express
  bool has_too_many_bits = false;
  IrId without_function = -1;  // a node whose function has too many pieces or no value

  explicit Analysis(const IrProgram& p) : program(p) {}
};

bool is_comparison(IrOp op) {
  return op == IrOp::less || op == IrOp::less_equal || op == IrOp::equal || op == IrOp::not_equal;
}
bool is_logical(IrOp op) {
  return op == IrOp::logical_and || op == IrOp::logical_or || op == IrOp::logical_xor ||
         op == IrOp::logical_not || op == IrOp::where_condition;
}

bool is_bit_operator(IrOp op) {
  return op == IrOp::bit_and || op == IrOp::bit_or || op == IrOp::bit_xor || op == IrOp::shl ||
         op == IrOp::shr;
}

constexpr std::uint8_t kBoth = kMentionsQ | kMentionsK;

// The first node that this engine cannot express; -1 if there is none. Reads no table.
IrId node_without_form(const IrProgram& program, const std::vector<std::uint8_t>& mentions) {
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const auto id = static_cast<IrId>(i);
    const IrNode& node = program.nodes[i];
    if ((mentions[i] & kMentionsLoop) != 0 || node.op == IrOp::any_of || node.op == IrOp::all_of) {
      return id;
    }
    if ((mentions[i] & kBoth) == kBoth && !is_comparison(node.op) && !is_logical(node.op))
      return id;
    if (mentions[i] == 0 && node.op != IrOp::constant && node.op != IrOp::boolean) return id;
    if (is_comparison(node.op) && (mentions[i] & kBoth) == kBoth) {
      for (int c = 0; c < 2; ++c) {
        if (mentions[static_cast<std::size_t>(node.children[c])] == kBoth) return id;
      }
    }
  }
  return -1;
}

// The pieces that bit operators on functions of positions alone (no table) will read and write, to
// within a small factor: shr(q, 2) has a quarter as many pieces as rows, and bitand keeps the pieces
// of its operand, or has one for each row where the operand is q itself.
std::size_t expected_bit_pieces(const IrProgram& program,
                                const std::vector<std::uint8_t>& mentions) {
  std::vector<std::size_t> pieces(program.nodes.size(), 1);  // 1: linear, or not known
  std::size_t total = 0;
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const IrNode& node = program.nodes[i];
    if (mentions[i] != kMentionsQ && mentions[i] != kMentionsK) continue;
    if (node.op == IrOp::lookup || node.op == IrOp::test) continue;
    const auto length =
        static_cast<std::size_t>(mentions[i] == kMentionsQ ? program.q_len : program.kv_len);
    const bool cuts =
        is_bit_operator(node.op) || node.op == IrOp::floor_div || node.op == IrOp::mod;
    std::size_t num_read = 0;
    for (int c = 0; c < node.num_children; ++c) {
      num_read += pieces[static_cast<std::size_t>(node.children[c])];
    }
    pieces[i] = std::min(num_read, length);
    const IrNode& first = program.node(node.children[0]);
    if (cuts && (first.op == IrOp::q || first.op == IrOp::k)) {
      const std::int64_t by = node.num_children == 2 ? program.node(node.children[1]).value : 0;
      if (node.op == IrOp::shr) {
        pieces[i] = by >= 0 && by < 62 ? (length >> by) + 1 : 1;
      } else if (node.op != IrOp::shl) {
        pieces[i] = node.op == IrOp::floor_div || node.op == IrOp::mod
                        ? length / static_cast<std::size_t>(std::max<std::int64_t>(by, 1)) + 1
                        : length;
      }
    }
    if (is_bit_operator(node.op)) total += num_read + pieces[i];
  }
  return total;
}

// The last node that reads the function of each node; the end for nodes that regions are made of.
std::vector<std::size_t> last_readers(const Analysis& a) {
  const IrProgram& program = a.program;
  const std::size_t size = program.nodes.size();
  std::vector<std::size_t> last(size, 0);
  for (std::size_t i = 0; i < size; ++i) {
    const IrNode& node = program.nodes[i];
    for (int c = 0; c < node.num_children; ++c) {
      std::size_t& reader = last[static_cast<std::size_t>(node.children[c])];
      reader = std::max(reader, a.mentions[i] == kBoth ? size : i);
    }
  }
  last[static_cast<std::size_t>(program.root)] = size;
  return last;
}

bool analyse(Analysis& a, IntervalEffort& effort) {
  const IrProgram& program = a.program;
  a.mentions = node_mentions(program);
  a.without_form = node_without_form(program, a.mentions);
  if (a.without_form >= 0) return false;
  const std::size_t size = program.nodes.size();
  a.functions.resize(size);
  a.weights.assign(size, 0);
  a.depths.assign(size, 0);
  const std::vector<std::size_t> last_reader = last_readers(a);
  const std::size_t max_pieces =
      kFreePieces + kPiecesPerPosition * static_cast<std::size_t>(program.q_len + program.kv_len);
  std::size_t num_pieces = 0;  // of the kept functions
  std::size_t num_bit_pieces = 0;
  const std::size_t max_bit_pieces =
      kFreeBitPieces +
      kBitPiecesPerPosition * static_cast<std::size_t>(program.q_len + program.kv_len);
  a.has_too_many_bits = expected_bit_pieces(program, a.mentions) > max_bit_pieces;
  if (a.has_too_many_bits) return false;
  const auto constant_on = [&](std::int64_t n, const IrNode& node) {
    return std::make_shared<const Piecewise>(Piecewise::constant(n, node.value));
  };
  for (std::size_t i = 0; i < size; ++i) {
    const IrNode& node = program.nodes[i];
    const auto child = [&](int c) { return static_cast<std::size_t>(node.children[c]); };
    if (a.mentions[i] == kBoth) {
      for (int c = 0; c < node.num_children; ++c) {
        // A chain of one of these operators is evaluated as a whole.
        const bool is_chain = program.nodes[child(c)].op == node.op &&
                              (node.op == IrOp::logical_and || node.op == IrOp::logical_or ||
                               node.op == IrOp::logical_xor);
        a.depths[i] = std::max(a.depths[i], a.depths[child(c)] + (is_chain ? 0 : 1));
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
    std::size_t num_read = 0;
    for (int c = 0; c < node.num_children; ++c) {
      operands.push_back(a.mentions[child(c)] == 0 ? constant_on(n, program.nodes[child(c)])
                                                   : a.functions[child(c)]);
      num_read += operands.back()->pieces().size();
    }
    const bool is_table = node.op == IrOp::lookup || node.op == IrOp::test;
    a.functions[i] =
        apply(node.op, operands,
              is_table ? &program.tables[static_cast<std::size_t>(node.value)] : nullptr, effort);
    if (a.functions[i] == nullptr) {
      a.without_function = static_cast<IrId>(i);
      return false;
    }
    a.weights[i] = a.functions[i]->pieces().size();
    num_pieces += a.weights[i];
    if (is_bit_operator(node.op)) num_bit_pieces += num_read + a.weights[i];
    if (num_pieces > max_pieces || num_bit_pieces > max_bit_pieces ||
        !effort.spend(num_read + a.weights[i])) {
      a.without_function = static_cast<IrId>(i);
      return false;
    }
    for (int c = 0; c < node.num_children; ++c) {
      PiecewisePtr& read = a.functions[child(c)];
      if (read == nullptr || last_reader[child(c)] != i ||
          program.nodes[child(c)].num_children == 0) {
        continue;
      }
      num_pieces -= read->pieces().size();
      read = nullptr;
    }
  }
  return true;
}

// Evaluates the program's conditions as Regions whose rows are queries or keys.
class RegionEvaluator {
 public:
  RegionEvaluator(const Analysis& analysis, bool rows_are_queries, IntervalEffort& effort)
      : a_(analysis),
        effort_(effort),
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

  // The cells of `domain` where condition `id` holds, or its negation if `negate`.
  std::optional<Region> evaluate(IrId id, bool negate, const Rectangle& domain) {
    if (domain.is_empty()) return Region{};
    if (!effort_.spend(1)) return std::nullopt;
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
      case IrOp::logical_xor:
        return exclusion(id, negate, domain);
      case IrOp::where_condition: {
        auto chosen = evaluate(node.children[0], false, domain);
        if (!chosen) return std::nullopt;
        auto left = evaluate(node.children[1], negate, domain);
        if (!left) return std::nullopt;
        auto right = evaluate(node.children[2], negate, domain);
        if (!right) return std::nullopt;
        auto inside = combine(*left, *chosen, kIntersection, effort_);
        auto outside = combine(*right, *chosen, kDifference, effort_);
        if (!inside || !outside) return std::nullopt;
        return combine(*inside, *outside, kUnion, effort_);
      }
      default:
        return evaluate_comparison(node, negate, domain);
    }
  }

  // A condition on the row or on the column alone. Its function is 1 where it holds.
  std::optional<Region> evaluate_single(IrId id, bool negate, const Rectangle& domain) {
    const Piecewise& function = *a_.functions[static_cast<std::size_t>(id)];
    const bool is_row = mentions(id) == row_bit_;
    return equal_region(is_row ? function : zero_rows_, 1, is_row ? zero_cols_ : function, 1,
                        negate ? 0 : 1, domain, effort_);
  }

  std::optional<Region> evaluate_comparison(const IrNode& node, bool negate,
                                            const Rectangle& domain) {
    // a < b is a - b < 0; not (a < b) is b - a < 1; likewise the other comparisons.
    const bool a_is_row = mentions(node.children[0]) == row_bit_;
    const Piecewise& a = *a_.functions[static_cast<std::size_t>(node.children[0])];
    const Piecewise& b = *a_.functions[static_cast<std::size_t>(node.children[1])];
    const Piecewise& rows = a_is_row ? a : b;
    const Piecewise& cols = a_is_row ? b : a;
    if (node.op == IrOp::equal || node.op == IrOp::not_equal) {
      auto equal = equal_region(rows, 1, cols, -1, 0, domain, effort_);
      if (!equal || (node.op == IrOp::equal) != negate) return equal;
      return combine(Region::rectangle(domain), *equal, kDifference, effort_);
    }
    const int sign = negate ? -1 : 1;  // of a
    const std::int64_t limit = (node.op == IrOp::less) != negate ? 0 : 1;
    return less_region(rows, a_is_row ? sign : -sign, cols, a_is_row ? -sign : sign, limit, domain,
                       effort_);
  }

  // The operands of a chain of one logical operator, the cheapest to evaluate first.
  std::vector<IrId> operands_of(IrId id) const {
    const IrOp op = program_.node(id).op;
    std::vector<IrId> pending{id}, operands;
    std::vector<bool> is_seen(static_cast<std::size_t>(id) + 1, false);  // x & x is x
    while (!pending.empty()) {
      const IrId next = pending.back();
      pending.pop_back();
      if (is_seen[static_cast<std::size_t>(next)]) continue;
      is_seen[static_cast<std::size_t>(next)] = true;
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
        all = combine(*all, *next, kIntersection, effort_);
        continue;
      }
      Region inside;
      for (const RowBand& band : all->bands()) {
        const auto next = evaluate(operands[i], negate, all->hull(band));
        if (!next) return std::nullopt;
        Region one;
        one.append(*all, band);
        const auto both = combine(one, *next, kIntersection, effort_);
        if (!both) return std::nullopt;
        for (const RowBand& part : both->bands()) {
          inside.append(*both, part);
          if (!inside.is_within_budget()) return std::nullopt;
        }
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
      any = combine(*any, *next, kUnion, effort_);
      if (!any) return std::nullopt;
    }
    return any;
  }

  // A chain of `xor`, with its operands joined in pairs. Operands that occur twice cancel out.
  std::optional<Region> exclusion(IrId id, bool negate, const Rectangle& domain) {
    std::map<IrId, bool, std::greater<>> is_odd{{id, true}};  // of nodes still to be taken apart
    std::vector<std::pair<int, Region>> joined;               // 2^first operands each, descending
    while (!is_odd.empty()) {
      const auto [next, odd] = *is_odd.begin();
      is_odd.erase(is_odd.begin());
      if (!odd) continue;
      const IrNode& node = program_.node(next);
      if (node.op == IrOp::logical_xor && mentions(next) == kBoth) {
        for (int c = 0; c < 2; ++c) is_odd[node.children[c]] = !is_odd[node.children[c]];
        continue;
      }
      auto operand = evaluate(next, std::exchange(negate, false), domain);
      if (!operand) return std::nullopt;
      joined.emplace_back(0, *std::move(operand));
      while (joined.size() > 1 && joined[joined.size() - 2].first == joined.back().first) {
        if (!join_last(joined)) return std::nullopt;
      }
    }
    if (joined.empty()) return negate ? Region::rectangle(domain) : Region{};
    while (joined.size() > 1) {
      if (!join_last(joined)) return std::nullopt;
    }
    return std::move(joined.back().second);
  }

  bool join_last(std::vector<std::pair<int, Region>>& joined) {
    auto both = combine(joined[joined.size() - 2].second, joined.back().second,
                        kSymmetricDifference, effort_);
    if (!both) return false;
    joined.pop_back();
    joined.back() = {joined.back().first + 1, *std::move(both)};
    return true;
  }

  const Analysis& a_;
  IntervalEffort& effort_;
  const IrProgram& program_;
  const std::uint8_t row_bit_;
  const std::int64_t num_rows_;
  const std::int64_t num_cols_;
  const Piecewise zero_rows_;
  const Piecewise zero_cols_;
};

// Keys whose intervals are found at a time, so that their bands stay in the cache.
constexpr std::int64_t kKeysPerChunk = 8192;

// The mask as query intervals per key.
std::optional<SegmentMask> lower_by_key(const Analysis& analysis, BlockShape block,
                                        WorkMeter& meter) {
  const std::int64_t q_len = analysis.program.q_len, kv_len = analysis.program.kv_len;
  const std::size_t max_intervals =
      kFreeColumnIntervals + kColumnIntervalsPerKey * static_cast<std::size_t>(kv_len);
  std::vector<std::int64_t> offsets;
  offsets.reserve(static_cast<std::size_t>(kv_len) + 1);
  offsets.push_back(0);
  std::vector<Interval> intervals;
  intervals.reserve(static_cast<std::size_t>(kv_len));
  for (std::int64_t begin = 0; begin < kv_len; begin += kKeysPerChunk) {
    if (meter.must_stop()) return std::nullopt;
    IntervalEffort effort(&meter);
    const auto region = RegionEvaluator(analysis, false, effort)
                            .run(begin, std::min(begin + kKeysPerChunk, kv_len));
    if (!region) return std::nullopt;
    for (const RowBand& band : region->bands()) {
      const auto num_added = static_cast<std::size_t>(band.num_intervals) *
                             static_cast<std::size_t>(band.q_end - band.q_begin);
      if (intervals.size() + num_added > max_intervals) return std::nullopt;
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
                              [&meter] { return meter.must_stop(); });
}

// Why the engine declines.
std::string reason_to_decline(const Analysis& a) {
  const auto text = [&](IrId id) {
    return node_text([&](IrId i) -> const IrNode& { return a.program.node(i); }, a.program.tables,
                     id);
  };
  if (a.without_form >= 0) {
    return fmt::format("{} is no comparison of a function of q with one of k",
                       text(a.without_form));
  }
  if (a.has_too_many_bits) return "the functions of single bits have a piece for each position";
  if (a.without_function >= 0) {
    return fmt::format("{} is not linear on few pieces, or not defined everywhere",
                       text(a.without_function));
  }
  return "the rows have too many intervals, or some cell may be undefined";
}

}  // namespace

std::optional<SegmentMask> lower_intervals(const IrProgram& program, BlockShape block,
                                           WorkMeter& meter, ProgramReport* report) {
  Analysis analysis(program);
  IntervalEffort effort(&meter);
  const auto fill_report = [&](std::string method) {
    if (report == nullptr) return;
    report->engine = LoweringEngine::interval;
    report->method = std::move(method);
  };
  const bool is_analysed = analyse(analysis, effort);
  if (is_analysed) {
    if (auto by_query = RegionEvaluator(analysis, true, effort).run(0, program.q_len)) {
      fill_report(fmt::format("bands of rows: {}, key intervals: {}", by_query->bands().size(),
                              by_query->row_bands().intervals.size()));
      return segment_from_bands(std::move(*by_query).to_row_bands(program.q_len, program.kv_len),
                                block);
    }
    if (!meter.has_stopped()) {
      if (auto by_key = lower_by_key(analysis, block, meter)) {
        fill_report("query intervals of every key");
        return by_key;
      }
    }
  }
  if (report != nullptr) {
    report->declined.push_back({LoweringEngine::interval, reason_to_decline(analysis)});
  }
  return std::nullopt;
}

}  // namespace fdma
