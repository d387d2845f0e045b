// Once its scores are known, a topk is a mask of query intervals per key, and the language can
// write such a mask. Expressions with topk are therefore compiled in two steps. First `among` of
// each topk is compiled like any mask and its keys are selected (select_topk). Then the node
// becomes one of
//
//   intervals(begin=@[topk 0].begin, end=@[topk 0].end)
//   any(i in n : @[topk 0].begin[b, h, i, k] <= q & q < @[topk 0].end[..])
//
// the first for one selection for all, the second for one selection per batch and head, with names
// that no user can write. Where the whole mask is one topk, which the short form makes of
// `causal & topk(@scores, w)`, the selection already is the compiled mask.
#include "lower/select_learned.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <tuple>
#include <utility>

#include "bind/check.hpp"
#include "fdma/base/parallel.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/segment_from_columns.hpp"
#include "fdma/select/select_topk.hpp"
#include "language/topk_shorthand.hpp"
#include "lower/engines.hpp"

namespace fdma {
namespace {

bool is_topk(const ExprNode& node) { return node.op == ExprOp::named && node.symbol == "topk"; }

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

// Scores as rows of float32, by batch element and KV head.
struct Scores {
  const float* data = nullptr;  ///< [batch or 1, heads_kv, kv_len]: the caller's, or `storage`
  std::vector<float> storage;
  std::int64_t num_batches = 1, heads_kv = 1, kv_len = 0;

  std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t num_heads) const {
    return (num_batches == 1 ? 0 : b) * heads_kv + h / (num_heads / heads_kv);
  }
  std::span<const float> at(std::int64_t row, std::int64_t length) const {
    return {data + row * kv_len, static_cast<std::size_t>(length)};
  }
};

Result<Scores> read_scores(const std::string& use, const std::string& name, const Tables& tables,
                           const MaskShape& shape) {
  const auto found = tables.find(name);
  if (found == tables.end()) {
    return invalid(fmt::format("{}: table '{}' is used in the mask, but not given", use, name));
  }
  const TensorView& view = found->second;
  const auto fail = [&](std::string_view expected) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: table '{}': expected {}, got {} of rank {}", use, name, expected,
                             to_string(view.dtype), view.rank)};
  };
  if (view.dtype != DType::float32) return fail("float32 scores");
  if (view.rank < 1 || view.rank > 3) {
    return fail("[kv_len], [heads_kv, kv_len] or [batch, heads_kv, kv_len]");
  }
  const auto extent = [&](int from_last) {
    return view.rank > from_last ? view.extents[static_cast<std::size_t>(view.rank - 1 - from_last)]
                                 : 1;
  };
  const auto stride = [&](int from_last) {
    return view.rank > from_last ? view.strides[static_cast<std::size_t>(view.rank - 1 - from_last)]
                                 : 0;
  };
  Scores scores;
  scores.kv_len = extent(0);
  scores.heads_kv = extent(1);
  scores.num_batches = extent(2);
  const std::int64_t batches = shape.num_batches, heads = shape.num_heads;
  if (scores.kv_len != shape.max_kv_len() || scores.heads_kv < 1 || heads % scores.heads_kv != 0 ||
      (view.rank == 3 && scores.num_batches != batches)) {
    return Error{
        ErrorCode::shape_mismatch,
        fmt::format(
            "{}: table '{}': expected batch {}, heads_kv that divide {} heads, kv_len {}, got "
            "[{}, {}, {}]",
            use, name, batches, heads, shape.max_kv_len(), scores.num_batches, scores.heads_kv,
            scores.kv_len)};
  }
  scores.data = static_cast<const float*>(view.data);
  if (view.is_contiguous()) return scores;
  scores.storage.reserve(static_cast<std::size_t>(view.num_elements()));
  for (std::int64_t b = 0; b < scores.num_batches; ++b) {
    for (std::int64_t h = 0; h < scores.heads_kv; ++h) {
      for (std::int64_t k = 0; k < scores.kv_len; ++k) {
        scores.storage.push_back(scores.data[b * stride(2) + h * stride(1) + k * stride(0)]);
      }
    }
  }
  scores.data = scores.storage.data();
  return scores;
}

// The result of one topk: distinct selections, and the one that each (batch, head) pair has.
struct Selection {
  std::vector<ColumnIntervals> columns;
  std::vector<std::int32_t> of_pair;
};

class LearnedSelector {
 public:
  LearnedSelector(const MaskExpr& expr, const Tables& tables, const MaskShape& shape,
                  const LowerOptions& options)
      : expr_(expr), shape_(shape), options_(options), tables_(tables) {}

  Result<SelectedExpr> run() {
    FDMA_TRY_VOID(validate(shape_));
    FDMA_TRY_VOID(check_unused());
    std::vector<bool> is_live(expr_.nodes().size(), false);
    is_live[static_cast<std::size_t>(expr_.root())] = true;
    for (ExprId id = expr_.root(); id >= 0; --id) {
      if (!is_live[static_cast<std::size_t>(id)]) continue;
      for (const ExprId child : expr_.node(id).children)
        is_live[static_cast<std::size_t>(child)] = true;
    }
    std::vector<ExprId> moved(expr_.nodes().size(), -1);
    for (ExprId id = 0; id <= expr_.root(); ++id) {
      const auto at = static_cast<std::size_t>(id);
      if (!is_live[at]) continue;
      ExprNode node = expr_.node(id);
      for (ExprId& child : node.children) child = moved[static_cast<std::size_t>(child)];
      if (!is_topk(node)) {
        moved[at] = append(std::move(node));
        continue;
      }
      FDMA_TRY(Selection selection, select(node, quote(expr_, id)));
      if (id == expr_.root()) return whole(std::move(selection));
      moved[at] = write_out(selection, node.span);
    }
    SelectedExpr result;
    result.expr = subexpression(moved[static_cast<std::size_t>(expr_.root())]);
    result.tables = tables_of(result.expr);
    result.storage = std::move(storage_);
    return result;
  }

 private:
  ExprId append(ExprNode node) {
    nodes_.push_back(std::move(node));
    return static_cast<ExprId>(nodes_.size() - 1);
  }
  ExprId append(ExprOp op, std::string symbol, std::vector<ExprId> children,
                std::int64_t value = 0) {
    return append(ExprNode{op, value, std::move(symbol), std::move(children), {}, {}});
  }

  // Runs `work` on as many threads as the options say.
  template <class Work>
  void in_arena(const Work& work) const {
    fdma::in_arena(options_.num_threads, work);
  }

  // The mask with root `root`, without the nodes that it does not reach. Spans refer to the text.
  MaskExpr subexpression(ExprId root) const {
    std::vector<ExprNode> nodes(nodes_.begin(), nodes_.begin() + root + 1);
    root = drop_dead_nodes(nodes, root);
    return {std::make_shared<const std::vector<ExprNode>>(std::move(nodes)), root, expr_.text()};
  }

  Tables tables_of(const MaskExpr& expr) const {
    Tables used;
    for (const std::string& name : table_names(expr)) {
      if (const auto found = tables_.find(name); found != tables_.end()) used.insert(*found);
    }
    return used;
  }

  Result<void> check_unused() const {
    const std::vector<std::string> mentioned = table_names(expr_);
    for (const auto& [name, view] : tables_) {
      if (std::find(mentioned.begin(), mentioned.end(), name) == mentioned.end()) {
        return invalid(fmt::format("table '{}' is given, but not used in the mask", name));
      }
    }
    return {};
  }

  // The number of keys to keep, by (batch, head). Only the rank of w among 1 .. kv_len matters, and
  // that is the number of keys k with k < w. The language can express that, so compilation
  // evaluates it.
  Result<std::vector<std::int64_t>> read_widths(ExprId id, const std::string& use) {
    const ExprNode& node = nodes_[static_cast<std::size_t>(id)];
    const auto num_pairs = static_cast<std::size_t>(shape_.num_batches * shape_.num_heads);
    if (node.op == ExprOp::literal) {
      if (node.value < 1) {
        return invalid(fmt::format("{}: w: expected at least 1, got {}", use, node.value));
      }
      return std::vector<std::int64_t>(num_pairs, node.value);
    }
    const auto key = append(ExprOp::variable, "k", {});
    const MaskExpr below = subexpression(append(ExprOp::less, {}, {key, id}));
    const auto in_width = [&](Error error) {
      error.message = fmt::format("{}: w: {}", use, error.message);
      return error;
    };
    const Result<MaskIr> ir = fdma::bind(below, tables_of(below), shape_);
    if (!ir) return in_width(ir.error());
    const Result<BlockMask> mask = lower(*ir, options_);
    if (!mask) return in_width(mask.error());
    const auto& groups = std::get<std::vector<SegmentMask>>(mask->groups);
    std::vector<std::int64_t> widths;
    std::vector<Interval> keys;
    for (std::int64_t b = 0; b < shape_.num_batches; ++b) {
      for (std::int64_t h = 0; h < shape_.num_heads; ++h) {
        const SegmentMask& group = groups[static_cast<std::size_t>(mask->group(b, h))];
        if (group.q_len == 0 || group.kv_len == 0) {
          widths.push_back(1);  // nothing to select
          continue;
        }
        row_intervals_of(group, 0, keys);
        if (keys.empty()) {
          return invalid(num_pairs == 1
                             ? fmt::format("{}: w: expected at least 1, got less", use)
                             : fmt::format("{}: w: expected at least 1, got less for batch element "
                                           "{}, head {}",
                                           use, b, h));
        }
        widths.push_back(keys.front().end);
      }
    }
    return widths;
  }

  Result<Selection> select(const ExprNode& node, const std::string& use) {
    const std::string& name = nodes_[static_cast<std::size_t>(node.children[0])].symbol;
    FDMA_TRY(const Scores scores, read_scores(use, name, tables_, shape_));
    FDMA_TRY(const std::vector<std::int64_t> widths, read_widths(node.children[1], use));
    const MaskExpr among = subexpression(node.children[2]);
    FDMA_TRY_VOID(check_variables(among, use));
    FDMA_TRY(const MaskIr ir, fdma::bind(among, tables_of(among), shape_));
    FDMA_TRY(const BlockMask mask, lower(ir, options_));

    // Distinct selections, in the order of their first use.
    Selection selection;
    using Wanted = std::tuple<std::int32_t, std::int64_t, std::int64_t>;  // group, scores, w
    std::map<Wanted, std::int32_t> index_of;
    std::vector<Wanted> wanted;
    for (std::int64_t b = 0; b < shape_.num_batches; ++b) {
      for (std::int64_t h = 0; h < shape_.num_heads; ++h) {
        const Wanted key(mask.group(b, h), scores.row(b, h, shape_.num_heads),
                         widths[selection.of_pair.size()]);
        const auto [found, is_new] =
            index_of.emplace(key, static_cast<std::int32_t>(wanted.size()));
        if (is_new) wanted.push_back(key);
        selection.of_pair.push_back(found->second);
      }
    }
    const auto& groups = std::get<std::vector<SegmentMask>>(mask.groups);
    std::vector<ColumnIntervals> visible(groups.size());
    std::vector<std::optional<Result<ColumnIntervals>>> selected(wanted.size());
    std::atomic<bool> is_stopped{false};
    in_arena([&] {
      parallel_for(std::size_t{0}, groups.size(),
                   [&](std::size_t g) { visible[g] = columns_from_segment(groups[g]); });
      parallel_for(std::size_t{0}, wanted.size(), [&](std::size_t i) {
        if (must_stop(is_stopped)) return;
        const auto [group, row, width] = wanted[i];
        const ColumnIntervals& keys = visible[static_cast<std::size_t>(group)];
        selected[i].emplace(select_topk(scores.at(row, keys.kv_len), width, keys));
      });
    });
    if (is_stopped) return interrupted();
    for (std::optional<Result<ColumnIntervals>>& each : selected) {
      if (!*each) {
        Error error = std::move(*each).error();
        error.message = fmt::format("{}: table '{}': {}", use, name, error.message);
        return error;
      }
      selection.columns.push_back(**std::move(each));
    }
    return selection;
  }

  // Refuses loop variables, because `among` as a mask of its own has no loop around it.
  static Result<void> check_variables(const MaskExpr& among, const std::string& use) {
    static constexpr std::array<std::string_view, 9> kKnown{"q",      "k",   "b",   "h",   "q_len",
                                                            "kv_len", "pos", "inf", "left"};
    std::vector<std::string> bound;
    for (const ExprNode& node : among.nodes()) {
      if (node.op == ExprOp::any_of || node.op == ExprOp::all_of) bound.push_back(node.symbol);
    }
    for (const ExprNode& node : among.nodes()) {
      if (node.op != ExprOp::variable || node.symbol == "right" ||
          std::find(kKnown.begin(), kKnown.end(), node.symbol) != kKnown.end() ||
          std::find(bound.begin(), bound.end(), node.symbol) != bound.end()) {
        continue;
      }
      return Error{ErrorCode::unsupported,
                   fmt::format("{}: among: it uses '{}' of an any or all around the topk", use,
                               node.symbol)};
    }
    return {};
  }

  // True once the caller has cancelled.
  bool must_stop(std::atomic<bool>& is_stopped) const {
    if (!is_stopped && options_.is_cancelled && options_.is_cancelled()) is_stopped = true;
    return is_stopped;
  }

  Result<SelectedExpr> whole(Selection selection) const {
    std::vector<SegmentMask> masks(selection.columns.size());
    std::atomic<bool> is_stopped{false};
    in_arena([&] {
      parallel_for(std::size_t{0}, masks.size(), [&](std::size_t i) {
        if (must_stop(is_stopped)) return;
        ColumnIntervals& columns = selection.columns[i];
        auto made = segment_from_columns(columns.q_len, columns.kv_len, options_.block,
                                         std::move(columns.offsets), std::move(columns.intervals),
                                         options_.is_cancelled);
        if (!made) is_stopped = true;
        if (made) masks[i] = *std::move(made);
      });
    });
    if (is_stopped) return interrupted();
    SelectedExpr result;
    result.mask = make_block_mask(shape_, options_.block, std::move(masks), selection.of_pair);
    return result;
  }

  // A derived table [extents.., n, kv_len], named so that no user can name it.
  ExprId derived_table(std::string name, std::vector<std::int32_t> values,
                       const std::vector<std::int64_t>& extents, std::vector<ExprId> indices) {
    storage_.push_back(std::make_shared<std::vector<std::int32_t>>(std::move(values)));
    tables_.insert_or_assign(
        name, make_contiguous_view(storage_.back()->data(), DType::int32,
                                   static_cast<int>(extents.size()), extents.data()));
    return append(ExprOp::table, std::move(name), std::move(indices));
  }

  // The topk as an expression over tables of its intervals.
  ExprId write_out(const Selection& selection, SourceSpan span) {
    std::int64_t most = 0;
    for (const ColumnIntervals& columns : selection.columns) {
      for (std::int64_t k = 0; k < columns.kv_len; ++k) {
        const auto at = static_cast<std::size_t>(k);
        most = std::max(most, columns.offsets[at + 1] - columns.offsets[at]);
      }
    }
    if (most == 0) return append(ExprOp::boolean, {}, {}, 0);
    const std::int64_t kv_len = shape_.max_kv_len();
    const bool is_shared = selection.columns.size() == 1;
    const auto num_pairs = is_shared ? std::size_t{1} : selection.of_pair.size();
    std::vector<std::int32_t> begins(num_pairs * static_cast<std::size_t>(most * kv_len), 0);
    std::vector<std::int32_t> ends(begins.size(), 0);
    for (std::size_t pair = 0; pair < num_pairs; ++pair) {
      const ColumnIntervals& columns =
          selection.columns[static_cast<std::size_t>(selection.of_pair[pair])];
      for (std::int64_t k = 0; k < columns.kv_len; ++k) {
        const std::int64_t first = columns.offsets[static_cast<std::size_t>(k)];
        const std::int64_t count = columns.offsets[static_cast<std::size_t>(k) + 1] - first;
        for (std::int64_t i = 0; i < count; ++i) {
          const auto to =
              static_cast<std::size_t>((static_cast<std::int64_t>(pair) * most + i) * kv_len + k);
          begins[to] = columns.intervals[static_cast<std::size_t>(first + i)].begin;
          ends[to] = columns.intervals[static_cast<std::size_t>(first + i)].end;
        }
      }
    }
    const std::string stem = fmt::format("[topk {}]", num_written_++);
    if (is_shared) {
      const std::vector<std::int64_t> extents{most, kv_len};
      const ExprId begin = derived_table(stem + ".begin", std::move(begins), extents, {});
      const ExprId end = derived_table(stem + ".end", std::move(ends), extents, {});
      return append(ExprNode{ExprOp::named, 0, "intervals", {begin, end}, {"begin", "end"}, span});
    }
    const std::vector<std::int64_t> extents{shape_.num_batches, shape_.num_heads, most, kv_len};
    const std::string loop = stem + ".i";
    const ExprId count = append(ExprOp::literal, {}, {}, most);
    const std::vector<ExprId> indices{
        append(ExprOp::variable, "b", {}), append(ExprOp::variable, "h", {}),
        append(ExprOp::variable, loop, {}), append(ExprOp::variable, "k", {})};
    const ExprId q = append(ExprOp::variable, "q", {});
    const ExprId begin = derived_table(stem + ".begin", std::move(begins), extents, indices);
    const ExprId end = derived_table(stem + ".end", std::move(ends), extents, indices);
    const ExprId from = append(ExprOp::less_equal, {}, {begin, q});
    const ExprId to = append(ExprOp::less, {}, {q, end});
    const ExprId both = append(ExprOp::logical_and, {}, {from, to});
    return append(ExprNode{ExprOp::any_of, 0, loop, {count, both}, {}, span});
  }

  const MaskExpr& expr_;
  const MaskShape& shape_;
  const LowerOptions& options_;
  Tables tables_;
  std::vector<ExprNode> nodes_;
  std::vector<std::shared_ptr<std::vector<std::int32_t>>> storage_;
  int num_written_ = 0;
};

}  // namespace

bool needs_selection(const MaskExpr& expr) {
  return !expr.empty() && std::any_of(expr.nodes().begin(), expr.nodes().end(), is_topk);
}

Result<SelectedExpr> select_learned(const MaskExpr& expr, const Tables& tables,
                                    const MaskShape& shape, const LowerOptions& options) {
  return LearnedSelector(expr, tables, shape, options).run();
}

}  // namespace fdma
