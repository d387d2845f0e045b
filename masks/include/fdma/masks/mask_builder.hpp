// Masks from C++ values: the language of docs/spec-language.md without text.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/masks/mask_expr.hpp"

/// Every name of the mask language as a function, every operator as an operator.
///
/// Example     using namespace fdma::mask;
///             build(causal() & (window(1024) | sink(4)))
///             build((k <= q) & (q - k < 16 * shl(1, h % 8)))
///             build(any_of("i", 4, [](IntExpr i) { return table("b")(i, k) <= q; }))
/// Types       integers are IntExpr, conditions are BoolExpr; a table entry converts to either
///             ill-typed expressions do not compile; operators cannot fail
/// Errors      build reports what only the whole expression shows: bad names, loop variables
///             outside their loop, parameters that depend on q or k
/// Precedence  that of C++: `~` binds tighter than comparisons, so write ~(q < k); compilers warn
///             of comparisons beside `&` without parentheses; chains a < b < c do not compile
/// Owner       expressions share immutable nodes; copies are cheap; any number of threads may use
///             them
namespace fdma::mask {

struct BuilderNode;
using BuilderNodePtr = std::shared_ptr<const BuilderNode>;

/// One operation of the language over other builder nodes.
struct BuilderNode {
  ExprNode data;  ///< without children
  std::vector<BuilderNodePtr> operands;

  BuilderNode(ExprNode node, std::vector<BuilderNodePtr> children)
      : data(std::move(node)), operands(std::move(children)) {}
  BuilderNode(const BuilderNode&) = delete;
  BuilderNode& operator=(const BuilderNode&) = delete;
  ~BuilderNode();  ///< frees chains of any length without recursion
};

BuilderNodePtr make_node(ExprOp op, std::vector<BuilderNodePtr> operands, std::int64_t value = 0,
                         std::string symbol = {}, std::vector<std::string> arg_names = {});

/// An integer expression.
class IntExpr {
 public:
  template <std::integral T>
  requires(!std::same_as<T, bool>) IntExpr(T value)
      : node_(make_node(ExprOp::literal, {}, static_cast<std::int64_t>(value))) {}
  explicit IntExpr(BuilderNodePtr node) : node_(std::move(node)) {}
  const BuilderNodePtr& node() const { return node_; }

 private:
  BuilderNodePtr node_;
};

/// A condition: a mask, or a part of one.
class BoolExpr {
 public:
  template <std::same_as<bool> T>
  BoolExpr(T value) : node_(make_node(ExprOp::boolean, {}, value ? 1 : 0)) {}
  explicit BoolExpr(BuilderNodePtr node) : node_(std::move(node)) {}
  const BuilderNodePtr& node() const { return node_; }

 private:
  BuilderNodePtr node_;
};

/// q, k, b, h, q_len, kv_len or pos.
struct Variable {
  const char* name;
  operator IntExpr() const { return IntExpr(make_node(ExprOp::variable, {}, 0, name)); }
};
inline constexpr Variable q{"q"}, k{"k"}, b{"b"}, h{"h"}, q_len{"q_len"}, kv_len{"kv_len"},
    pos{"pos"};

/// @name, or @name[i, ..]. The bound table decides whether it is an integer or a condition.
class TableExpr {
 public:
  explicit TableExpr(std::string name) : name_(std::move(name)) {}
  /// The entry at up to four indices.
  template <class... Index>
  requires(sizeof...(Index) >= 1 && sizeof...(Index) <= 4 &&
           (std::convertible_to<Index, IntExpr> && ...)) TableExpr
  operator()(Index... index) const {
    TableExpr entry(name_);
    entry.indices_ = {static_cast<IntExpr>(index).node()...};
    return entry;
  }
  operator IntExpr() const { return IntExpr(node()); }
  operator BoolExpr() const { return BoolExpr(node()); }
  BuilderNodePtr node() const { return make_node(ExprOp::table, indices_, 0, name_); }

 private:
  std::string name_;
  std::vector<BuilderNodePtr> indices_;
};
inline TableExpr table(std::string name) { return TableExpr(std::move(name)); }

/// The variable of an enclosing any_of or all_of.
inline IntExpr loop(std::string name) {
  return IntExpr(make_node(ExprOp::variable, {}, 0, std::move(name)));
}

// ---- operators

IntExpr operator+(const IntExpr& x, const IntExpr& y);
IntExpr operator-(const IntExpr& x, const IntExpr& y);
IntExpr operator*(const IntExpr& x, const IntExpr& y);
/// `//` of the language: rounds down, unlike C++; undefined for a divisor that is not positive.
IntExpr operator/(const IntExpr& x, const IntExpr& y);
/// The remainder, which is never negative.
IntExpr operator%(const IntExpr& x, const IntExpr& y);
IntExpr operator-(const IntExpr& x);

BoolExpr operator<(const IntExpr& x, const IntExpr& y);
BoolExpr operator<=(const IntExpr& x, const IntExpr& y);
BoolExpr operator>(const IntExpr& x, const IntExpr& y);
BoolExpr operator>=(const IntExpr& x, const IntExpr& y);
BoolExpr operator==(const IntExpr& x, const IntExpr& y);
BoolExpr operator!=(const IntExpr& x, const IntExpr& y);
BoolExpr operator==(const BoolExpr& x, const BoolExpr& y);
BoolExpr operator!=(const BoolExpr& x, const BoolExpr& y);
BoolExpr operator==(const TableExpr& x, const TableExpr& y);
BoolExpr operator!=(const TableExpr& x, const TableExpr& y);

BoolExpr operator&(const BoolExpr& x, const BoolExpr& y);
BoolExpr operator|(const BoolExpr& x, const BoolExpr& y);
BoolExpr operator^(const BoolExpr& x, const BoolExpr& y);
BoolExpr operator~(const BoolExpr& x);
BoolExpr operator!(const BoolExpr& x);

// ---- functions

IntExpr min(const IntExpr& x, const IntExpr& y);
IntExpr max(const IntExpr& x, const IntExpr& y);
IntExpr abs(const IntExpr& x);
IntExpr clamp(const IntExpr& x, const IntExpr& lo, const IntExpr& hi);
IntExpr shl(const IntExpr& x, const IntExpr& n);
IntExpr shr(const IntExpr& x, const IntExpr& n);
/// Named bitand_ and bitor_ because bitand and bitor are operators of C++.
IntExpr bitand_(const IntExpr& x, const IntExpr& y);
IntExpr bitor_(const IntExpr& x, const IntExpr& y);
IntExpr bitxor(const IntExpr& x, const IntExpr& y);
IntExpr where(const BoolExpr& condition, const IntExpr& x, const IntExpr& y);
BoolExpr where(const BoolExpr& condition, const BoolExpr& x, const BoolExpr& y);
/// int(condition) of the language.
IntExpr int_(const BoolExpr& condition);

/// any(name in bound : body) of the language; `body` mentions loop(name).
BoolExpr any_of(std::string name, const IntExpr& bound, const BoolExpr& body);
BoolExpr all_of(std::string name, const IntExpr& bound, const BoolExpr& body);
/// The same with a function from the loop variable to the body.
template <std::invocable<IntExpr> Body>
BoolExpr any_of(const std::string& name, const IntExpr& bound, Body body) {
  return any_of(name, bound, BoolExpr(body(loop(name))));
}
template <std::invocable<IntExpr> Body>
BoolExpr all_of(const std::string& name, const IntExpr& bound, Body body) {
  return all_of(name, bound, BoolExpr(body(loop(name))));
}
/// at(M, q=row, k=key) of the language: the mask at other indices.
BoolExpr at(const BoolExpr& mask, const IntExpr& row, const IntExpr& key);

// ---- named masks; tables by name

/// A bound of window, dilated or sink: an integer or `inf`.
class Bound {
 public:
  struct Infinite {};
  Bound(Infinite) : node_(make_node(ExprOp::variable, {}, 0, "inf")) {}
  template <std::convertible_to<IntExpr> T>
  Bound(const T& value) : node_(static_cast<IntExpr>(value).node()) {}
  const BuilderNodePtr& node() const { return node_; }

 private:
  BuilderNodePtr node_;
};
inline constexpr Bound::Infinite inf{};

BoolExpr causal();
BoolExpr window(const Bound& w);
BoolExpr window(const Bound& left, const Bound& right);
BoolExpr dilated(const Bound& w, const IntExpr& step);
BoolExpr documents_ids(std::string ids);
BoolExpr documents_lengths(std::string lengths);
BoolExpr documents_cu_seqlens(std::string cu_seqlens);
BoolExpr documents_q_k_ids(std::string q_ids, std::string k_ids);
BoolExpr prefix(const IntExpr& p);
/// prefix(@p) with one entry per batch element.
BoolExpr prefix_table(std::string p);
BoolExpr prefix_documents(std::string ids, std::string prefix);
BoolExpr share_question(std::string ids, std::string parts);
BoolExpr causal_blockwise(std::string ids);
BoolExpr chunked(const IntExpr& n);
BoolExpr block_causal(const IntExpr& n);
BoolExpr global(const IntExpr& g);
/// global(@t) with a boolean table of the keys.
BoolExpr global_table(std::string t);
BoolExpr sink(const Bound& s);
BoolExpr padding(std::string lengths);
enum class Side { left, right };
BoolExpr padding(std::string lengths, Side side);
BoolExpr intervals(std::string begin, std::string end);
BoolExpr rows(std::string begin, std::string end);
BoolExpr tiles(std::string tiles, const IntExpr& m, const IntExpr& n);
BoolExpr tree(std::string parents);
BoolExpr block_diffusion(const IntExpr& n, const IntExpr& size);
BoolExpr natten2d(const IntExpr& height, const IntExpr& width, const IntExpr& kh,
                  const IntExpr& kw);
BoolExpr natten3d(const IntExpr& depth, const IntExpr& height, const IntExpr& width,
                  const IntExpr& kd, const IntExpr& kh, const IntExpr& kw);
BoolExpr bits(std::string bits);
BoolExpr topk(std::string scores, const IntExpr& w, const BoolExpr& among);
/// The short form M & topk(scores, w). build makes the rest of the top-level conjunction its
/// `among`.
BoolExpr topk(std::string scores, const IntExpr& w);

/// The finished expression; its text is its to_text. Nodes that the C++ values share stay shared.
///
/// Errors      invalid_argument:
///             a name that is no identifier or is a word of the language
///             a loop variable outside its loop, hidden by an inner one, or nested deeper than
///             kMaxLoopDepth
///             a parameter of a named mask that depends on q, k, pos or a loop variable
///             a topk without `among` that is not the only topk of the top-level conjunction
///             more than kMaxExprNodes nodes
Result<MaskExpr> build(const BoolExpr& mask);

}  // namespace fdma::mask
