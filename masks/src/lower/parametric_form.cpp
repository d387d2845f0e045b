// Nodes are walked from the leaves to the root. Each condition has a closed form or none. The form
// of the root is taken if its cells are those of the compiled mask.
//
// A form is documents & padding & (k < prefix | window), where a window is k <= pos + right &
// (k >= pos - left | k < sink). These conjunctions and disjunctions of two forms are a form; all
// others have none:
//   prefix & prefix                       the smaller prefix
//   window & window                       the smaller right and left; sinks only where one has no
//                                         left bound, or both are equal
//   (prefix | window) & k <= pos + right  the prefix becomes a sink, if right is not beyond that of
//                                         the window
//   prefix | window                       as it stands
//   window | window                       with one right bound: the larger left and sink
// With documents or padding a disjunction has a form where both sides have the same.
#include "fdma/masks/parametric_form.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "bind/derived_tables.hpp"
#include "bind/tables.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "fdma/masks/mask_names.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kNever = -(std::int64_t{1} << 40);  // a left bound that no key meets
constexpr std::int64_t kMostParameter = std::int64_t{1} << 40;

struct Window {
  std::int64_t left = kUnbounded;
  std::int64_t right = kUnbounded;
  std::int64_t sink = 0;
  bool is_unbounded_left() const { return left == kUnbounded; }
  friend bool operator==(const Window&, const Window&) = default;
};

struct Form {
  std::int64_t prefix = 0;
  std::optional<Window> window;  // empty: only the prefix is seen
  std::int64_t kv_begin = 0;
  std::int64_t kv_end = kUnbounded;
  std::vector<std::int64_t> documents;  // borders; empty: no documents

  bool has_same_bounds(const Form& other) const {
    return kv_begin == other.kv_begin && kv_end == other.kv_end && documents == other.documents;
  }
};

using MaybeForm = std::optional<Form>;

MaybeForm form_of_window(std::int64_t left, std::int64_t right) {
  Form form;
  form.window = Window{left, right, 0};
  return form;
}

// (k < prefix | window) & (k <= pos + limit)
std::optional<Window> limited(const Form& form, std::int64_t limit) {
  if (!form.window) return Window{kNever, limit, form.prefix};
  if (limit > form.window->right) return std::nullopt;
  return Window{form.window->left, limit, std::max(form.prefix, form.window->sink)};
}

std::optional<Window> both_windows(const Window& a, const Window& b) {
  const std::int64_t right = std::min(a.right, b.right);
  if (a.is_unbounded_left()) return Window{b.left, right, b.sink};
  if (b.is_unbounded_left()) return Window{a.left, right, a.sink};
  if (a.sink != b.sink) return std::nullopt;
  return Window{std::min(a.left, b.left), right, a.sink};
}

MaybeForm conjunction(const Form& a, const Form& b) {
  Form form;
  form.kv_begin = std::max(a.kv_begin, b.kv_begin);
  form.kv_end = std::min(a.kv_end, b.kv_end);
  if (!a.documents.empty() && !b.documents.empty() && a.documents != b.documents) {
    return std::nullopt;
  }
  form.documents = a.documents.empty() ? b.documents : a.documents;
  const auto sees_all = [](const Form& x) { return x.prefix == 0 && x.window == Window{}; };
  const auto is_limit = [](const Form& x) {
    return x.prefix == 0 && x.window && x.window->is_unbounded_left();
  };
  if (sees_all(a) || sees_all(b)) {
    const Form& other = sees_all(a) ? b : a;
    form.prefix = other.prefix;
    form.window = other.window;
    return form;
  }
  if (!a.window && !b.window) {
    form.prefix = std::min(a.prefix, b.prefix);
    return form;
  }
  if (a.prefix == 0 && b.prefix == 0 && a.window && b.window) {
    form.window = both_windows(*a.window, *b.window);
  } else if (is_limit(b)) {
    form.window = limited(a, b.window->right);
  } else if (is_limit(a)) {
    form.window = limited(b, a.window->right);
  }
  return form.window ? MaybeForm(form) : std::nullopt;
}

MaybeForm disjunction(const Form& a, const Form& b) {
  if (!a.has_same_bounds(b)) return std::nullopt;
  Form form = a;
  form.prefix = std::max(a.prefix, b.prefix);
  if (!a.window || !b.window) {
    form.window = a.window ? a.window : b.window;
    return form;
  }
  if (a.window->right != b.window->right) return std::nullopt;
  form.window = Window{std::max(a.window->left, b.window->left), a.window->right,
                       std::max(a.window->sink, b.window->sink)};
  return form;
}

// The forms of one batch element's conditions, and the values of its integers.
class FormReader {
 public:
  FormReader(const MaskExpr& expr, const BoundTables& tables, const MaskShape& shape,
             std::int64_t b)
      : expr_(expr), tables_(tables), shape_(shape), b_(b) {}

  MaybeForm run() {
    const std::size_t count = expr_.nodes().size();
    values_.resize(count);
    forms_.resize(count);
    for (std::size_t id = 0; id < count; ++id) {
      const ExprNode& node = expr_.nodes()[id];
      values_[id] = value_of(node);
      forms_[id] = form_of_node(node);
    }
    return forms_[static_cast<std::size_t>(expr_.root())];
  }

 private:
  std::optional<std::int64_t> child_value(const ExprNode& node, std::size_t i) const {
    return values_[static_cast<std::size_t>(node.children[i])];
  }

  std::optional<std::int64_t> value_of(const ExprNode& node) const {
    const std::optional<std::int64_t> value = unchecked_value(node);
    if (!value || *value == kUnbounded) return value;
    return std::abs(*value) <= kMostParameter ? value : std::nullopt;
  }

  std::optional<std::int64_t> unchecked_value(const ExprNode& node) const {
    switch (node.op) {
      case ExprOp::literal:
        return node.value;
      case ExprOp::variable:
        if (node.symbol == "inf") return kUnbounded;
        if (node.symbol == "kv_len") return shape_.kv_len(b_);
        if (node.symbol == "q_len") return shape_.q_len(b_);
        return std::nullopt;
      case ExprOp::table: {
        if (!node.children.empty()) return std::nullopt;
        const IrTable& table = tables_.whole(node.symbol);
        if (table.rank == 0) return table.at(0);
        // prefix(@t) and padding(lengths=@t) have one value for each batch element.
        const bool is_per_element = table.rank == 1 && table.extents[0] == shape_.num_batches;
        return is_per_element ? std::optional(table.at(b_)) : std::nullopt;
      }
      default:
        return operation(node);
    }
  }

  std::optional<std::int64_t> operation(const ExprNode& node) const {
    if (node.children.empty() || node.op == ExprOp::named || node.op == ExprOp::at ||
        node.op == ExprOp::any_of || node.op == ExprOp::all_of)
      return std::nullopt;
    std::vector<std::int64_t> operands;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (!child_value(node, i) || *child_value(node, i) == kUnbounded) return std::nullopt;
      operands.push_back(*child_value(node, i));
    }
    return fold_operator(node.op, operands);
  }

  MaybeForm form_of_node(const ExprNode& node) const {
    switch (node.op) {
      case ExprOp::boolean:
        return node.value != 0 ? form_of_window(kUnbounded, kUnbounded) : Form{};
      case ExprOp::logical_and:
      case ExprOp::logical_or: {
        const MaybeForm& a = forms_[static_cast<std::size_t>(node.children[0])];
        const MaybeForm& b = forms_[static_cast<std::size_t>(node.children[1])];
        if (!a || !b) return std::nullopt;
        return node.op == ExprOp::logical_and ? conjunction(*a, *b) : disjunction(*a, *b);
      }
      case ExprOp::named: {
        const NameForm* name = fdma::form_of(node);
        return name == nullptr ? std::nullopt : form_of_name(name->form, node);
      }
      default:
        return std::nullopt;
    }
  }

  MaybeForm form_of_name(MaskForm name, const ExprNode& node) const {
    const auto value = [&](std::size_t i) {
      return i < node.children.size() ? child_value(node, i) : std::nullopt;
    };
    Form form;
    switch (name) {
      case MaskForm::causal:
        return form_of_window(kUnbounded, 0);
      case MaskForm::window:
        if (!value(0)) return std::nullopt;
        if (*value(0) == kUnbounded) return form_of_window(kUnbounded, kUnbounded);
        return form_of_window(*value(0) - 1, *value(0) - 1);
      case MaskForm::window_pair:
        if (!value(0) || !value(1)) return std::nullopt;
        return form_of_window(*value(0), *value(1));
      case MaskForm::prefix:
      case MaskForm::sink:
        if (!value(0)) return std::nullopt;
        form.prefix = std::max<std::int64_t>(*value(0), 0);
        return form;
      case MaskForm::padding:
      case MaskForm::padding_side: {
        if (!value(0)) return std::nullopt;
        form.window.emplace();
        const bool is_left =
            name == MaskForm::padding_side && expr_.node(node.children[1]).symbol == "left";
        (is_left ? form.kv_begin : form.kv_end) =
            is_left ? shape_.kv_len(b_) - *value(0) : *value(0);
        return form;
      }
      case MaskForm::documents_cu_seqlens:
      case MaskForm::documents_lengths:
        return documents(name, node);
      default:
        return std::nullopt;
    }
  }

  MaybeForm documents(MaskForm name, const ExprNode& node) const {
    TableRequest wanted;
    wanted.table = expr_.node(node.children[0]).symbol;
    wanted.use = wanted.table;
    wanted.extent_name = "docs";
    const Result<IrTable> table = tables_.of_element(wanted, b_);
    if (!table) return std::nullopt;
    const std::int64_t kv_len = shape_.kv_len(b_);
    const Result<IrTable> ids = name == MaskForm::documents_lengths
                                    ? documents_from_lengths(wanted.table, *table, kv_len)
                                    : documents_from_bounds(wanted.table, *table, kv_len);
    if (!ids) return std::nullopt;
    Form form;
    form.window.emplace();
    form.documents = {0};
    for (std::size_t i = 0; i < ids->run_ends.size(); ++i) {
      if (ids->run_values[i] >= 0) form.documents.push_back(ids->run_ends[i]);
    }
    if (form.documents.size() == 1) form.documents.push_back(0);
    return form;
  }

  const MaskExpr& expr_;
  const BoundTables& tables_;
  const MaskShape& shape_;
  std::int64_t b_;
  std::vector<std::optional<std::int64_t>> values_;
  std::vector<MaybeForm> forms_;
};

ParametricMask mask_of(const Form& form, std::int64_t q_len, std::int64_t kv_len) {
  ParametricMask mask;
  mask.q_len = q_len;
  mask.kv_len = kv_len;
  mask.pos_offset = kv_len - q_len;
  const Window window = form.window.value_or(Window{kNever, kNever, 0});
  mask.left = window.left;
  mask.right = window.right;
  mask.prefix = std::clamp<std::int64_t>(form.prefix, 0, kv_len);
  mask.sink = std::clamp<std::int64_t>(window.sink, 0, kv_len);
  mask.kv_end = std::clamp<std::int64_t>(form.kv_end, 0, kv_len);
  mask.kv_begin = std::clamp<std::int64_t>(form.kv_begin, 0, mask.kv_end);
  mask.cu_seqlens = form.documents;
  return mask;
}

// The masks of all groups from the words of the expression, or none.
std::optional<std::vector<ParametricMask>> by_words(const BlockMask& compiled, const MaskExpr& expr,
                                                    const Tables& tables) {
  const MaskShape& shape = compiled.shape;
  const Result<BoundTables> bound = BoundTables::make(tables, table_names(expr), shape);
  if (!bound) return std::nullopt;
  std::vector<std::optional<ParametricMask>> masks(static_cast<std::size_t>(compiled.num_groups()));
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    const MaybeForm form = FormReader(expr, *bound, shape, b).run();
    if (!form) return std::nullopt;
    const ParametricMask mask = mask_of(*form, shape.q_len(b), shape.kv_len(b));
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      std::optional<ParametricMask>& of_group =
          masks[static_cast<std::size_t>(compiled.group(b, h))];
      // Batch elements may share their cells but not the words.
      if (of_group && *of_group != mask) return std::nullopt;
      of_group = mask;
    }
  }
  std::vector<ParametricMask> result;
  for (std::size_t g = 0; g < masks.size(); ++g) {
    const auto group = static_cast<std::int64_t>(g);
    if (!masks[g] || segment_from_parametric(*masks[g], compiled.block) !=
                         segment_of_group(compiled, group, compiled.block)) {
      return std::nullopt;
    }
    result.push_back(*std::move(masks[g]));
  }
  return result;
}

}  // namespace

Result<BlockMask> parametric_form(const BlockMask& compiled, const MaskExpr& expr,
                                  const Tables& tables) {
  auto masks = by_words(compiled, expr, tables);
  if (!masks) return convert(compiled, MaskFormat::parametric, compiled.block);
  BlockMask result;
  result.block = compiled.block;
  result.shape = compiled.shape;
  result.origin = compiled.origin;
  result.group_of = compiled.group_of;
  result.spec = compiled.spec;
  mark_as(compiled, result);
  result.groups = *std::move(masks);
  return result;
}

}  // namespace fdma
