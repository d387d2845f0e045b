// Comparison of a number per query with a number per key.
//
// Separation  Both sides are split into sums of terms that depend on the query or on the key only:
//             `q - t[k] < u[q] + 5` becomes `-t[k] < u[q] + 5 - q`. Terms are gathered only through
//             additions and subtractions that cannot overflow. `abs(q // 64 - k // 64) < 3` is no
//             such sum; a cell atom handles it.
// Form        `key <= bound` or `key == value`, perhaps inverted. Keys are stored in the narrowest
//             integer type that holds them.
// Rows        The first that fits is taken: a constant where the bound lies outside the keys'
//             range; a window on a constant bit string where keys ascend, since every row is then a
//             prefix or an interval; a cached row if few bounds are distinct; else one vector
//             comparison (8192 16-bit keys: about 100 ns), skipped if the row before had the same
//             bound.
// Undefined   A row whose number is undefined is undefined. Undefined keys clear both planes.
#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <variant>

#include "boxes/row_atom.hpp"
#include "boxes/row_cache.hpp"
#include "boxes/shifted_bits.hpp"
#include "boxes/tile_pyramid.hpp"

namespace fdma::box {
namespace {

constexpr std::int64_t kMaxSum = std::int64_t{1} << 61;
constexpr std::size_t kMaxTerms = 64;
constexpr std::int64_t kMaxCacheBytes = std::int64_t{32} << 20;

/// A sum of nodes that depend on the query or the key only.
struct SeparableSum {
  std::vector<std::pair<IrId, bool>> query_terms;  ///< node, is_negative
  std::vector<std::pair<IrId, bool>> key_terms;
};

/// Adds +-node to `sum`; false if it does not separate.
bool gather_terms(const BoxProgram& program, IrId id, bool is_negative, SeparableSum& sum) {
  std::vector<std::pair<IrId, bool>> stack{{id, is_negative}};
  while (!stack.empty()) {
    const auto [at, negative] = stack.back();
    stack.pop_back();
    const NodeFacts& facts = program.facts(at);
    if (facts.depends == kOnK) {
      sum.key_terms.emplace_back(at, negative);
    } else if (facts.depends != (kOnQ | kOnK)) {
      sum.query_terms.emplace_back(at, negative);
    } else {
      const IrNode& node = program.node(at);
      if (node.op != IrOp::add && node.op != IrOp::sub) return false;
      // The operator itself must not overflow. Undefined operands show in the terms.
      const NodeRange& a = program.facts(node.children[0]).range;
      const NodeRange& b = program.facts(node.children[1]).range;
      for (const NodeRange* side : {&a, &b}) {
        if (!side->has_values() || side->lo < -kMaxSum || side->hi > kMaxSum) return false;
      }
      stack.emplace_back(node.children[0], negative);
      stack.emplace_back(node.children[1], negative != (node.op == IrOp::sub));
    }
    if (sum.query_terms.size() + sum.key_terms.size() + stack.size() > kMaxTerms) return false;
  }
  return true;
}

/// The node of the sum of terms; empty if it could overflow.
std::optional<IrId> sum_node(BoxProgram& program, const std::vector<std::pair<IrId, bool>>& terms) {
  if (terms.size() == 1 && !terms[0].second) return terms[0].first;
  std::int64_t magnitude = 0;
  for (const auto& [id, negative] : terms) {
    const NodeRange& range = program.facts(id).range;
    if (!range.has_values()) continue;
    constexpr auto kTermLimit = static_cast<std::int64_t>(kMaxSum / kMaxTerms);
    if (range.lo < -kTermLimit || range.hi > kTermLimit) return std::nullopt;
    magnitude += std::max(range.hi, -range.lo);
  }
  if (magnitude > kMaxSum) return std::nullopt;
  IrId sum = program.intern_constant(0);
  for (const auto& [id, negative] : terms) {
    if (!negative && sum == program.intern_constant(0)) {
      sum = id;
      continue;
    }
    IrNode node{negative ? IrOp::sub : IrOp::add};
    node.num_children = 2;
    node.children[0] = sum;
    node.children[1] = id;
    sum = program.intern(node);
  }
  return sum;
}

using NarrowKeys = std::variant<std::vector<std::int8_t>, std::vector<std::int16_t>,
                                std::vector<std::int32_t>, std::vector<std::int64_t>>;

template <class T>
NarrowKeys narrow_to(const IntegerVector& keys) {
  std::vector<T> out(static_cast<std::size_t>((keys.length + 63) / 64 * 64));
  for (std::size_t i = 0; i < static_cast<std::size_t>(keys.length); ++i) {
    out[i] = static_cast<T>(keys.values[i]);  // undefined keys may wrap, because they are masked
  }
  return out;
}

NarrowKeys narrow(const IntegerVector& keys, const NodeRange& range) {
  const auto fits = [&](auto limit) {
    return range.lo >= std::numeric_limits<decltype(limit)>::min() &&
           range.hi <= std::numeric_limits<decltype(limit)>::max();
  };
  if (fits(std::int8_t{})) return narrow_to<std::int8_t>(keys);
  if (fits(std::int16_t{})) return narrow_to<std::int16_t>(keys);
  if (fits(std::int32_t{})) return narrow_to<std::int32_t>(keys);
  return narrow_to<std::int64_t>(keys);
}

void at_most(std::uint64_t* out, const std::vector<std::int8_t>& keys, std::int64_t first,
             std::int64_t bound, std::int64_t words) {
  row_kernels().at_most_8(out, keys.data() + first, static_cast<std::int8_t>(bound), words);
}
void at_most(std::uint64_t* out, const std::vector<std::int16_t>& keys, std::int64_t first,
             std::int64_t bound, std::int64_t words) {
  row_kernels().at_most_16(out, keys.data() + first, static_cast<std::int16_t>(bound), words);
}
void at_most(std::uint64_t* out, const std::vector<std::int32_t>& keys, std::int64_t first,
             std::int64_t bound, std::int64_t words) {
  row_kernels().at_most_32(out, keys.data() + first, static_cast<std::int32_t>(bound), words);
}
void at_most(std::uint64_t* out, const std::vector<std::int64_t>& keys, std::int64_t first,
             std::int64_t bound, std::int64_t words) {
  row_kernels().at_most_64(out, keys.data() + first, bound, words);
}
void equal_to(std::uint64_t* out, const std::vector<std::int8_t>& keys, std::int64_t first,
              std::int64_t value, std::int64_t words) {
  row_kernels().equal_8(out, keys.data() + first, static_cast<std::int8_t>(value), words);
}
void equal_to(std::uint64_t* out, const std::vector<std::int16_t>& keys, std::int64_t first,
              std::int64_t value, std::int64_t words) {
  row_kernels().equal_16(out, keys.data() + first, static_cast<std::int16_t>(value), words);
}
void equal_to(std::uint64_t* out, const std::vector<std::int32_t>& keys, std::int64_t first,
              std::int64_t value, std::int64_t words) {
  row_kernels().equal_32(out, keys.data() + first, static_cast<std::int32_t>(value), words);
}
void equal_to(std::uint64_t* out, const std::vector<std::int64_t>& keys, std::int64_t first,
              std::int64_t value, std::int64_t words) {
  row_kernels().equal_64(out, keys.data() + first, value, words);
}

class CompareAtom final : public RowAtom {
 public:
  /// Key `relation` query, where relation is at_most or equal, perhaps inverted. `is_strict`
  /// subtracts one from the query's number first.
  CompareAtom(const BoxProgram& program, IrId key, IrId query, bool is_equal, bool is_strict,
              bool is_inverted, BlockShape block)
      : program_(program), is_equal_(is_equal), is_strict_(is_strict), is_inverted_(is_inverted) {
    node_.op = is_equal ? IrOp::equal : is_strict ? IrOp::less : IrOp::less_equal;
    is_uniform_ = program.facts(query).depends == 0;
    if (const std::optional<SumWithConstant> sum = sum_with_constant(program, query)) {
      query = sum->operand;
      offset_ = sum->constant;
    }
    queries_ = shared_integer_vector(program, query);
    key_values_ = shared_integer_vector(program, key);
    const IntegerVector& keys = *key_values_;
    kv_len_ = keys.length;
    words_per_row_ = (kv_len_ + 63) / 64;
    if (is_uniform_) {
      uniform_range_ = queries_->range(0, 1);
    } else {
      query_ranges_ = make_pyramid(*queries_, block.block_q, 1);
    }
    key_ranges_ = make_pyramid(keys, block.block_kv, kAllLevels);
    all_keys_ = keys.range(0, keys.length);
    if (all_keys_.may_be_undefined) {
      defined_keys_.assign(static_cast<std::size_t>(words_per_row_) + kRowSlackBytes / 8, 0);
      for (std::size_t w = 0; w < static_cast<std::size_t>(words_per_row_); ++w) {
        defined_keys_[w] = ~keys.undefined[w];
      }
    }
  }

  bool may_be_undefined() const override {
    return !defined_keys_.empty() || !queries_->undefined.empty();
  }

  std::unique_ptr<AtomScratch> make_scratch(std::int64_t max_words) const override {
    return std::make_unique<Scratch>(max_words);
  }

  Planes row(const RowBlock& block, AtomScratch& base) const override {
    auto& scratch = static_cast<Scratch&>(base);
    const std::int64_t at = is_uniform_ ? 0 : block.q;
    if (queries_->is_undefined(at)) return {kNone, kNone};
    if (block.fills_caches) std::call_once(is_preparing_, [this] { prepare_rows(); });
    Plane holds =
        holds_at(queries_->values[static_cast<std::size_t>(at)] + offset_, block, scratch);
    if (is_inverted_) holds = holds.complement();
    if (defined_keys_.empty()) return defined(holds);
    const Plane exists = plane_of(defined_keys_.data() + block.first_word);
    return {masked(holds, exists, scratch.is_true, block),
            masked(holds.complement(), exists, scratch.is_false, block)};
  }

  Outcomes outcomes(const TileBox& box, AtomScratch&) const override {
    NodeRange sides[2] = {key_ranges_.at(box.level, box.index),
                          is_uniform_ ? uniform_range_ : query_ranges_.at(0, box.tile_row)};
    if (sides[1].has_values()) {
      sides[1].lo += offset_;
      sides[1].hi += offset_;
    }
    const Outcomes out = range_of(node_, sides).outcomes();
    return is_inverted_ ? not_outcomes(out) : out;
  }

  void mark_changes(std::vector<std::uint8_t>& changed) const override {
    if (is_uniform_) return;
    const std::int64_t* values = queries_->values.data();
    for (std::size_t q = 1; q < changed.size(); ++q) changed[q] |= values[q] != values[q - 1];
    if (queries_->undefined.empty()) return;
    for (std::size_t q = 1; q < changed.size(); ++q) {
      const auto at = static_cast<std::int64_t>(q);
      changed[q] |= queries_->is_undefined(at) != queries_->is_undefined(at - 1);
    }
  }

 private:
  struct Scratch final : AtomScratch {
    explicit Scratch(std::int64_t max_words)
        : holds(static_cast<std::size_t>(max_words)),
          is_true(static_cast<std::size_t>(max_words)),
          is_false(static_cast<std::size_t>(max_words)) {}
    std::vector<std::uint64_t> holds;
    std::vector<std::uint64_t> is_true;
    std::vector<std::uint64_t> is_false;
    std::int64_t value = 0;  ///< the value that `holds` was computed for
    std::int64_t first_word = -1;
    std::int64_t num_words = 0;
  };

  Plane masked(const Plane& plane, const Plane& exists, std::vector<std::uint64_t>& out,
               const RowBlock& block) const {
    if (plane == kNone) return kNone;
    if (plane == kEvery) return exists;
    row_kernels().and_rows(out.data(), plane.bits, plane.flip, exists.bits, exists.flip,
                           block.num_words);
    return plane_of(out.data());
  }

  /// The keys of a block that have the relation (not inverted) to a defined query number.
  Plane holds_at(std::int64_t value, const RowBlock& block, Scratch& scratch) const {
    if (!all_keys_.has_values()) return kNone;
    if (is_strict_) {
      if (value == std::numeric_limits<std::int64_t>::min()) return kNone;
      --value;
    }
    if (value < all_keys_.lo || (is_equal_ && value > all_keys_.hi)) return kNone;
    if (value >= all_keys_.hi && (!is_equal_ || all_keys_.lo == all_keys_.hi)) return kEvery;
    const bool has_rows = has_rows_.load(std::memory_order_acquire);
    if (has_rows && is_sorted_) {
      const Plane upto = prefix(num_at_most(value), block);
      if (!is_equal_) return upto;
      const Plane before = prefix(num_at_most(value - 1), block);
      if (before == kEvery || upto == kNone) return kNone;
      if (before == kNone) return upto;
      if (upto == kEvery) return before.complement();
      row_kernels().and_rows(scratch.holds.data(), upto.bits, upto.flip, before.bits, ~before.flip,
                             block.num_words);
      return plane_of(scratch.holds.data());
    }
    if (block.fills_caches && !cache_.empty()) {
      const std::uint64_t* words = cache_.get(is_uniform_ ? 0 : block.q, [&](std::uint64_t* out) {
        compute(keys_, out, value, 0, words_per_row_);
      });
      if (words != nullptr) return plane_of(words + block.first_word);
    }
    if (scratch.value != value || scratch.first_word != block.first_word ||
        scratch.num_words != block.num_words) {
      if (has_rows) {
        compute(keys_, scratch.holds.data(), value, block.first_word, block.num_words);
      } else {
        compute(key_values_->values, scratch.holds.data(), value, block.first_word,
                block.num_words);
      }
      scratch.value = value;
      scratch.first_word = block.first_word;
      scratch.num_words = block.num_words;
    }
    return plane_of(scratch.holds.data());
  }

  void compute(const NarrowKeys& keys, std::uint64_t* out, std::int64_t value,
               std::int64_t first_word, std::int64_t num_words) const {
    std::visit([&](const auto& narrow) { compute(narrow, out, value, first_word, num_words); },
               keys);
  }
  template <class T>
  void compute(const std::vector<T>& keys, std::uint64_t* out, std::int64_t value,
               std::int64_t first_word, std::int64_t num_words) const {
    if (is_equal_) {
      equal_to(out, keys, 64 * first_word, value, num_words);
    } else {
      at_most(out, keys, 64 * first_word, value, num_words);
    }
  }

  /// Brings the keys into the form in which whole rows are computed. Where tiles have numbers, few
  /// rows ever are, and none as a whole.
  void prepare_rows() const {
    if (!index_sorted(*key_values_)) {
      keys_ = narrow(*key_values_, all_keys_);
      make_cache(program_);
    }
    has_rows_.store(true, std::memory_order_release);
  }

  /// For keys that never descend: the number of keys <= value, for all values in their range.
  bool index_sorted(const IntegerVector& keys) const {
    if (!keys.undefined.empty() || keys.length == 0) return false;
    const auto first = keys.values.begin();
    const auto last = first + keys.length;
    if (all_keys_.lo < 0 ? all_keys_.hi > 4 * keys.length + all_keys_.lo + 1024
                         : all_keys_.hi - all_keys_.lo > 4 * keys.length + 1024) {
      return false;
    }
    if (!std::is_sorted(first, last)) return false;
    is_sorted_ = true;
    const auto num_values = static_cast<std::size_t>(all_keys_.hi - all_keys_.lo + 1);
    counts_.assign(num_values, 0);
    for (auto at = first; at != last; ++at) {
      counts_[static_cast<std::size_t>(*at - all_keys_.lo)] =
          static_cast<std::int32_t>(at - first) + 1;
    }
    for (std::size_t i = 1; i < num_values; ++i) counts_[i] = std::max(counts_[i], counts_[i - 1]);
    std::vector<std::uint64_t> ones(static_cast<std::size_t>(2 * words_per_row_) + 2, 0);
    std::fill_n(ones.begin(), words_per_row_, ~std::uint64_t{0});
    ones_then_zeros_ = ShiftedBits(ones, 128 * words_per_row_);
    return true;
  }

  std::int64_t num_at_most(std::int64_t value) const {
    if (value < all_keys_.lo) return 0;
    if (value >= all_keys_.hi) return kv_len_;
    return counts_[static_cast<std::size_t>(value - all_keys_.lo)];
  }

  /// Keys [0, count), relative to a block.
  Plane prefix(std::int64_t count, const RowBlock& block) const {
    const std::int64_t first = 64 * block.first_word;
    if (count <= first) return kNone;
    if (count >= std::min(kv_len_, first + 64 * block.num_words)) return kEvery;
    return {ones_then_zeros_.from(64 * words_per_row_ - count + first), 0};
  }

  void make_cache(const BoxProgram& program) const {
    std::vector<std::int64_t> values(queries_->values.begin(),
                                     queries_->values.begin() + queries_->length);
    for (std::int64_t i = 0; i < queries_->length; ++i) {
      // Bounds outside the keys' range need no row of their own.
      std::int64_t& value = values[static_cast<std::size_t>(i)];
      value = queries_->is_undefined(i) ? 0 : value + offset_;
      if (all_keys_.has_values()) {
        value = std::clamp(value, all_keys_.lo - (all_keys_.lo > INT64_MIN ? 1 : 0),
                           all_keys_.hi + (all_keys_.hi < INT64_MAX ? 1 : 0));
      }
    }
    cache_ = make_row_cache(program, values, 4, kMaxCacheBytes);
  }

  const BoxProgram& program_;
  bool is_equal_;
  bool is_strict_;
  bool is_inverted_;
  bool is_uniform_ = false;
  IrNode node_{IrOp::equal};
  std::int64_t kv_len_ = 0;
  std::int64_t words_per_row_ = 0;
  std::shared_ptr<const IntegerVector> queries_;
  std::int64_t offset_ = 0;  ///< of a query's number to queries_
  NodeRange uniform_range_;
  TilePyramid<NodeRange> query_ranges_;
  TilePyramid<NodeRange> key_ranges_;
  NodeRange all_keys_;
  std::vector<std::uint64_t> defined_keys_;  ///< empty if all are
  std::shared_ptr<const IntegerVector> key_values_;
  // What prepare_rows makes, once, before the first row that is computed as a whole.
  mutable std::once_flag is_preparing_;
  mutable std::atomic<bool> has_rows_{false};
  mutable bool is_sorted_ = false;
  mutable NarrowKeys keys_;
  mutable RowCache cache_;
  mutable std::vector<std::int32_t> counts_;
  mutable ShiftedBits ones_then_zeros_;
};

}  // namespace

std::unique_ptr<RowAtom> make_compare_atom(BoxProgram& program, IrId id, BlockShape block) {
  const IrNode node = program.node(id);
  const bool is_equal = node.op == IrOp::equal || node.op == IrOp::not_equal;
  if (!is_equal && node.op != IrOp::less && node.op != IrOp::less_equal) return nullptr;

  // Computes left - right, with the key's terms on the left and the query's, negated, on the right.
  SeparableSum sum;
  if (!gather_terms(program, node.children[0], false, sum) ||
      !gather_terms(program, node.children[1], true, sum)) {
    return nullptr;
  }
  // The form in which the key's first term is positive is preferred: it needs no new vector.
  const bool is_swapped = !sum.key_terms.empty() && sum.key_terms[0].second;
  for (auto& [term, negative] : sum.key_terms) negative = negative != is_swapped;
  for (auto& [term, negative] : sum.query_terms) negative = negative == is_swapped;
  const auto key = sum_node(program, sum.key_terms);
  const auto query = sum_node(program, sum.query_terms);
  if (!key || !query) return nullptr;

  // key < query (not swapped), or query < key, and likewise for the other relations.
  bool is_strict = false;
  bool is_inverted = node.op == IrOp::not_equal;
  if (node.op == IrOp::less) {
    is_strict = !is_swapped;
    is_inverted = is_swapped;  // query < key is not (key <= query)
  } else if (node.op == IrOp::less_equal) {
    is_strict = is_swapped;  // query <= key is not (key < query)
    is_inverted = is_swapped;
  }
  return std::make_unique<CompareAtom>(program, *key, *query, is_equal, is_strict, is_inverted,
                                       block);
}

}  // namespace fdma::box
