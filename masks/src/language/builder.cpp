#include <utility>

#include "fdma/masks/mask_builder.hpp"
#include "fdma/masks/mask_names.hpp"

namespace fdma::mask {
namespace {

template <class Result, class... Operand>
Result apply(ExprOp op, const Operand&... operand) {
  return Result(make_node(op, {operand.node()...}));
}

BuilderNodePtr table_node(std::string name) {
  return make_node(ExprOp::table, {}, 0, std::move(name));
}

// A named mask, with arguments in the order of the form's parameters.
BoolExpr named(std::string_view name, MaskForm form, std::vector<BuilderNodePtr> arguments) {
  for (const NameForm& candidate : forms_of(name)) {
    if (candidate.form != form) continue;
    std::vector<std::string> arg_names;
    for (const Parameter& parameter : candidate.parameters)
      arg_names.emplace_back(parameter.is_keyword_only ? parameter.name : std::string_view{});
    return BoolExpr(
        make_node(ExprOp::named, std::move(arguments), 0, std::string(name), std::move(arg_names)));
  }
  return BoolExpr(make_node(ExprOp::named, std::move(arguments), 0, std::string(name)));
}

}  // namespace

// Chains of operands can be a million nodes long. The last owner of a node therefore takes its
// operands over instead of letting their destructors nest.
BuilderNode::~BuilderNode() {
  std::vector<BuilderNodePtr> dying = std::move(operands);
  while (!dying.empty()) {
    const BuilderNodePtr node = std::move(dying.back());
    dying.pop_back();
    if (node.use_count() != 1) continue;
    auto& inner = const_cast<BuilderNode&>(*node).operands;
    dying.insert(dying.end(), std::make_move_iterator(inner.begin()),
                 std::make_move_iterator(inner.end()));
    inner.clear();
  }
}

BuilderNodePtr make_node(ExprOp op, std::vector<BuilderNodePtr> operands, std::int64_t value,
                         std::string symbol, std::vector<std::string> arg_names) {
  ExprNode node{op, value, std::move(symbol), {}, std::move(arg_names), {}};
  return std::make_shared<const BuilderNode>(std::move(node), std::move(operands));
}

IntExpr operator+(const IntExpr& x, const IntExpr& y) { return apply<IntExpr>(ExprOp::add, x, y); }
IntExpr operator-(const IntExpr& x, const IntExpr& y) { return apply<IntExpr>(ExprOp::sub, x, y); }
IntExpr operator*(const IntExpr& x, const IntExpr& y) { return apply<IntExpr>(ExprOp::mul, x, y); }
IntExpr operator/(const IntExpr& x, const IntExpr& y) {
  return apply<IntExpr>(ExprOp::floor_div, x, y);
}
IntExpr operator%(const IntExpr& x, const IntExpr& y) { return apply<IntExpr>(ExprOp::mod, x, y); }
IntExpr operator-(const IntExpr& x) { return apply<IntExpr>(ExprOp::negate, x); }

BoolExpr operator<(const IntExpr& x, const IntExpr& y) {
  return apply<BoolExpr>(ExprOp::less, x, y);
}
BoolExpr operator<=(const IntExpr& x, const IntExpr& y) {
  return apply<BoolExpr>(ExprOp::less_equal, x, y);
}
BoolExpr operator>(const IntExpr& x, const IntExpr& y) {
  return apply<BoolExpr>(ExprOp::greater, x, y);
}
BoolExpr operator>=(const IntExpr& x, const IntExpr& y) {
  return apply<BoolExpr>(ExprOp::greater_equal, x, y);
}
BoolExpr operator==(const IntExpr& x, const IntExpr& y) {
  return apply<BoolExpr>(ExprOp::equal, x, y);
}
BoolExpr operator!=(const IntExpr& x, const IntExpr& y) {
  return apply<BoolExpr>(ExprOp::not_equal, x, y);
}
BoolExpr operator==(const BoolExpr& x, const BoolExpr& y) {
  return apply<BoolExpr>(ExprOp::equal, x, y);
}
BoolExpr operator!=(const BoolExpr& x, const BoolExpr& y) {
  return apply<BoolExpr>(ExprOp::not_equal, x, y);
}
BoolExpr operator==(const TableExpr& x, const TableExpr& y) {
  return apply<BoolExpr>(ExprOp::equal, x, y);
}
BoolExpr operator!=(const TableExpr& x, const TableExpr& y) {
  return apply<BoolExpr>(ExprOp::not_equal, x, y);
}

BoolExpr operator&(const BoolExpr& x, const BoolExpr& y) {
  return apply<BoolExpr>(ExprOp::logical_and, x, y);
}
BoolExpr operator|(const BoolExpr& x, const BoolExpr& y) {
  return apply<BoolExpr>(ExprOp::logical_or, x, y);
}
BoolExpr operator^(const BoolExpr& x, const BoolExpr& y) {
  return apply<BoolExpr>(ExprOp::logical_xor, x, y);
}
BoolExpr operator~(const BoolExpr& x) { return apply<BoolExpr>(ExprOp::logical_not, x); }
BoolExpr operator!(const BoolExpr& x) { return ~x; }

IntExpr min(const IntExpr& x, const IntExpr& y) { return apply<IntExpr>(ExprOp::min, x, y); }
IntExpr max(const IntExpr& x, const IntExpr& y) { return apply<IntExpr>(ExprOp::max, x, y); }
IntExpr abs(const IntExpr& x) { return apply<IntExpr>(ExprOp::abs, x); }
IntExpr clamp(const IntExpr& x, const IntExpr& lo, const IntExpr& hi) {
  return apply<IntExpr>(ExprOp::clamp, x, lo, hi);
}
IntExpr shl(const IntExpr& x, const IntExpr& n) { return apply<IntExpr>(ExprOp::shl, x, n); }
IntExpr shr(const IntExpr& x, const IntExpr& n) { return apply<IntExpr>(ExprOp::shr, x, n); }
IntExpr bitand_(const IntExpr& x, const IntExpr& y) {
  return apply<IntExpr>(ExprOp::bit_and, x, y);
}
IntExpr bitor_(const IntExpr& x, const IntExpr& y) { return apply<IntExpr>(ExprOp::bit_or, x, y); }
IntExpr bitxor(const IntExpr& x, const IntExpr& y) { return apply<IntExpr>(ExprOp::bit_xor, x, y); }
IntExpr where(const BoolExpr& condition, const IntExpr& x, const IntExpr& y) {
  return apply<IntExpr>(ExprOp::where, condition, x, y);
}
BoolExpr where(const BoolExpr& condition, const BoolExpr& x, const BoolExpr& y) {
  return apply<BoolExpr>(ExprOp::where, condition, x, y);
}
IntExpr int_(const BoolExpr& condition) { return apply<IntExpr>(ExprOp::from_bool, condition); }

BoolExpr any_of(std::string name, const IntExpr& bound, const BoolExpr& body) {
  return BoolExpr(make_node(ExprOp::any_of, {bound.node(), body.node()}, 0, std::move(name)));
}
BoolExpr all_of(std::string name, const IntExpr& bound, const BoolExpr& body) {
  return BoolExpr(make_node(ExprOp::all_of, {bound.node(), body.node()}, 0, std::move(name)));
}
BoolExpr at(const BoolExpr& mask, const IntExpr& row, const IntExpr& key) {
  return apply<BoolExpr>(ExprOp::at, mask, row, key);
}

BoolExpr causal() { return named("causal", MaskForm::causal, {}); }
BoolExpr window(const Bound& w) { return named("window", MaskForm::window, {w.node()}); }
BoolExpr window(const Bound& left, const Bound& right) {
  return named("window", MaskForm::window_pair, {left.node(), right.node()});
}
BoolExpr dilated(const Bound& w, const IntExpr& step) {
  return named("dilated", MaskForm::dilated, {w.node(), step.node()});
}
BoolExpr documents_ids(std::string ids) {
  return named("documents", MaskForm::documents_ids, {table_node(std::move(ids))});
}
BoolExpr documents_lengths(std::string lengths) {
  return named("documents", MaskForm::documents_lengths, {table_node(std::move(lengths))});
}
BoolExpr documents_cu_seqlens(std::string cu_seqlens) {
  return named("documents", MaskForm::documents_cu_seqlens, {table_node(std::move(cu_seqlens))});
}
BoolExpr documents_q_k_ids(std::string q_ids, std::string k_ids) {
  return named("documents", MaskForm::documents_q_k_ids,
               {table_node(std::move(q_ids)), table_node(std::move(k_ids))});
}
BoolExpr prefix(const IntExpr& p) { return named("prefix", MaskForm::prefix, {p.node()}); }
BoolExpr prefix_table(std::string p) {
  return named("prefix", MaskForm::prefix, {table_node(std::move(p))});
}
BoolExpr prefix_documents(std::string ids, std::string prefix) {
  return named("prefix_documents", MaskForm::prefix_documents,
               {table_node(std::move(ids)), table_node(std::move(prefix))});
}
BoolExpr share_question(std::string ids, std::string parts) {
  return named("share_question", MaskForm::share_question,
               {table_node(std::move(ids)), table_node(std::move(parts))});
}
BoolExpr causal_blockwise(std::string ids) {
  return named("causal_blockwise", MaskForm::causal_blockwise, {table_node(std::move(ids))});
}
BoolExpr chunked(const IntExpr& n) { return named("chunked", MaskForm::chunked, {n.node()}); }
BoolExpr block_causal(const IntExpr& n) {
  return named("block_causal", MaskForm::block_causal, {n.node()});
}
BoolExpr global(const IntExpr& g) { return named("global", MaskForm::global, {g.node()}); }
BoolExpr global_table(std::string t) {
  return named("global", MaskForm::global, {table_node(std::move(t))});
}
BoolExpr sink(const Bound& s) { return named("sink", MaskForm::sink, {s.node()}); }
BoolExpr padding(std::string lengths) {
  return named("padding", MaskForm::padding, {table_node(std::move(lengths))});
}
BoolExpr padding(std::string lengths, Side side) {
  return named("padding", MaskForm::padding_side,
               {table_node(std::move(lengths)),
                make_node(ExprOp::variable, {}, 0, side == Side::left ? "left" : "right")});
}
BoolExpr intervals(std::string begin, std::string end) {
  return named("intervals", MaskForm::intervals,
               {table_node(std::move(begin)), table_node(std::move(end))});
}
BoolExpr rows(std::string begin, std::string end) {
  return named("rows", MaskForm::rows, {table_node(std::move(begin)), table_node(std::move(end))});
}
BoolExpr tiles(std::string tiles, const IntExpr& m, const IntExpr& n) {
  return named("tiles", MaskForm::tiles, {table_node(std::move(tiles)), m.node(), n.node()});
}
BoolExpr tree(std::string parents) {
  return named("tree", MaskForm::tree, {table_node(std::move(parents))});
}
BoolExpr block_diffusion(const IntExpr& n, const IntExpr& size) {
  return named("block_diffusion", MaskForm::block_diffusion, {n.node(), size.node()});
}
BoolExpr natten2d(const IntExpr& height, const IntExpr& width, const IntExpr& kh,
                  const IntExpr& kw) {
  return named("natten2d", MaskForm::natten2d, {height.node(), width.node(), kh.node(), kw.node()});
}
BoolExpr natten3d(const IntExpr& depth, const IntExpr& height, const IntExpr& width,
                  const IntExpr& kd, const IntExpr& kh, const IntExpr& kw) {
  return named("natten3d", MaskForm::natten3d,
               {depth.node(), height.node(), width.node(), kd.node(), kh.node(), kw.node()});
}
BoolExpr bits(std::string bits) {
  return named("bits", MaskForm::bits, {table_node(std::move(bits))});
}
BoolExpr topk(std::string scores, const IntExpr& w, const BoolExpr& among) {
  return named("topk", MaskForm::topk, {table_node(std::move(scores)), w.node(), among.node()});
}
BoolExpr topk(std::string scores, const IntExpr& w) {
  return BoolExpr(make_node(ExprOp::named, {table_node(std::move(scores)), w.node()}, 0, "topk",
                            std::vector<std::string>(2)));
}

}  // namespace fdma::mask
