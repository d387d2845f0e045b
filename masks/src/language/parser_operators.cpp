// The part of the parser after an operand: operators, closing brackets, and the reductions that
// they cause.
#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "language/operators.hpp"
#include "language/parser.hpp"

namespace fdma {
namespace {

SourceSpan cover(SourceSpan first, SourceSpan last) { return {first.begin, last.end}; }

}  // namespace

int Parser::precedence_of(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::prefix:
    case FrameKind::binary:
    case FrameKind::comparison:
      return fdma::precedence_of(frame.op);
    case FrameKind::join:
      return kAnd;
    default:
      return kNoOperator;
  }
}

// ---- after an operand

void Parser::parse_after_operand() {
  switch (token_.kind) {
    case TokenKind::op:
      return operator_facts(token_.op).is_infix() ? push_infix(token_.op) : missing_operator();
    case TokenKind::assign:
      report_syntax("a comparison is written ==");
      return push_infix(ExprOp::equal);
    case TokenKind::close_paren:
      return close_paren();
    case TokenKind::close_bracket:
      return close_bracket();
    case TokenKind::comma:
      return next_item();
    case TokenKind::colon:
      return end_bound();
    case TokenKind::semicolon:
      return end_statement();
    case TokenKind::end:
      return finish();
    default:
      return missing_operator();
  }
}

void Parser::push_infix(ExprOp op) {
  const Precedence binds = fdma::precedence_of(op);
  if (binds != kCompare) return push_operator(FrameKind::binary, op, binds);
  // Comparisons stay side by side on the stack, because they are reduced together, as a chain.
  push_operator(FrameKind::comparison, op, binds + 1);
}

// Pushes an operator after the frames that bind at least as tightly as `reduced` were reduced.
void Parser::push_operator(FrameKind kind, ExprOp op, int reduced) {
  reduce_above(reduced);
  push_frame(kind, op, token_.span.begin);
  advance();
  expects_operand_ = true;
}

void Parser::missing_operator() {
  if (at_word("let")) {
    report_syntax("expected ';' before let");
    end_statement();
    return;
  }
  if (token_.kind == TokenKind::open_bracket) {
    if (facts(operands_.back().id).type != ExprType::error)
      report_syntax("only a table has indices: @name[i, j]");
    push_frame(FrameKind::index, ExprOp::table, token_.span.begin,
               -static_cast<std::int32_t>(operands_.size()));
    advance();
    expects_operand_ = true;
    return;
  }
  if (at_word("if") || at_word("else")) {
    // The `else` of an `if` that was reported says nothing new.
    if (at_word("if") || diagnostics_.empty()) {
      report_syntax("a choice is written where(condition, x, y), not x if condition else y");
    }
    push_operator(FrameKind::join, ExprOp::logical_and, kAnd);
    return;
  }
  if (at_word("in")) {
    report_syntax("there is no membership: write k == 1 | k == 2, or any(i in n : @t[i] == k)");
    push_operator(FrameKind::join, ExprOp::logical_and, kAnd);
    return;
  }
  reduce_above(kAnd);
  const bool is_let = frames_.back().kind == FrameKind::let_value;
  report_syntax(fmt::format("expected an operator such as & or |{} before {}",
                            is_let ? ", or ';' after the let," : "", describe(token_)));
  push_frame(FrameKind::join, ExprOp::logical_and, token_.span.begin);
  expects_operand_ = true;
}

void Parser::close_paren() {
  reduce_operators();
  const std::int32_t end = token_.span.end;
  const Frame frame = frames_.back();
  switch (frame.kind) {
    case FrameKind::group:
      frames_.pop_back();
      operands_.back().span = {frame.position, end};
      break;
    case FrameKind::call:
      finish_call(end);
      break;
    case FrameKind::loop_bound:
      report_syntax("expected ':' and a condition: any(i in n : condition)");
      operands_.push_back(error_operand(token_.span));
      frames_.back().kind = FrameKind::loop_body;
      finish_loop(end);
      break;
    case FrameKind::loop_body:
      finish_loop(end);
      break;
    case FrameKind::index:
      report_syntax("expected ']' to close the indices of the table, but found ')'");
      finish_index(end);
      break;
    default:
      report_syntax("no '(' is open here");
      break;
  }
  advance();
}

void Parser::close_bracket() {
  reduce_operators();
  if (frames_.back().kind == FrameKind::index) {
    finish_index(token_.span.end);
    advance();
    return;
  }
  const bool is_statement =
      frames_.back().kind == FrameKind::let_value || frames_.back().kind == FrameKind::final_value;
  report_syntax(is_statement ? "no '[' is open here" : "expected ')', but found ']'");
  if (is_statement)
    advance();
  else
    close_paren();
}

// A comma: the next argument or index.
void Parser::next_item() {
  reduce_operators();
  const Frame frame = frames_.back();
  if (frame.kind == FrameKind::call) {
    advance();
    begin_argument();
  } else if (frame.kind == FrameKind::index) {
    advance();
    expects_operand_ = true;
  } else {
    report_syntax("',' separates arguments and indices; expected an operator such as & or |");
    push_operator(FrameKind::join, ExprOp::logical_and, kAnd);
  }
}

// A colon: between the bound of a loop and its condition.
void Parser::end_bound() {
  reduce_operators();
  Frame& frame = frames_.back();
  if (frame.kind == FrameKind::loop_bound) {
    frame.kind = FrameKind::loop_body;
    loops_.back().is_in_scope = true;
    advance();
    expects_operand_ = true;
  } else if (frame.kind == FrameKind::call && !calls_.back().is_known) {
    next_item();
  } else {
    report_syntax("':' belongs to any(i in n : condition)");
    push_operator(FrameKind::join, ExprOp::logical_and, kAnd);
  }
}

void Parser::finish_index(std::int32_t end) {
  const std::int32_t base = frames_.back().base;
  frames_.pop_back();
  const auto first = static_cast<std::size_t>(std::abs(base));
  const Operand table = operands_[first - 1];
  const SourceSpan span{table.span.begin, end};
  const std::size_t num_indices = operands_.size() - first;
  constexpr std::size_t kMaxIndices = 4;
  Operand result = error_operand(span);
  if (base > 0 && num_indices > kMaxIndices) {
    report(operands_[first + kMaxIndices].span,
           fmt::format("a table has at most 4 dimensions, but {} indices were given", num_indices));
  } else if (base > 0) {
    ExprNode node{ExprOp::table, 0, nodes_[static_cast<std::size_t>(table.id)].symbol, {}, {},
                  span};
    std::vector<SourceSpan> spans;
    for (std::size_t i = first; i < operands_.size(); ++i) {
      node.children.push_back(operands_[i].id);
      spans.push_back(operands_[i].span);
    }
    result = add_node(std::move(node), span, spans);
  }
  operands_.resize(first - 1);
  push(result);
}

// ---- reductions

void Parser::reduce_above(int precedence) {
  while (!frames_.empty()) {
    const int top = precedence_of(frames_.back());
    if (top == 0 || top < precedence) return;
    reduce_top();
  }
}

void Parser::reduce_top() {
  const Frame frame = frames_.back();
  if (frame.kind == FrameKind::comparison) return reduce_comparisons();
  frames_.pop_back();
  const Operand right = operands_.back();
  operands_.pop_back();
  if (frame.kind == FrameKind::prefix) {
    const SourceSpan span{frame.position, right.span.end};
    operands_.push_back(add_node({frame.op, 0, {}, {right.id}, {}, span}, span, {right.span}));
    return;
  }
  const Operand left = operands_.back();
  operands_.pop_back();
  const SourceSpan span = cover(left.span, right.span);
  operands_.push_back(frame.kind == FrameKind::join
                          ? error_operand(span)
                          : add_node({frame.op, 0, {}, {left.id, right.id}, {}, span}, span,
                                     {left.span, right.span}));
}

// a < b <= c becomes (a < b) & (b <= c).
void Parser::reduce_comparisons() {
  std::size_t num_links = 0;
  while (frames_[frames_.size() - 1 - num_links].kind == FrameKind::comparison) ++num_links;
  const std::size_t first_frame = frames_.size() - num_links;
  const std::size_t first_operand = operands_.size() - num_links - 1;
  Operand chain{};
  for (std::size_t i = 0; i < num_links; ++i) {
    const Operand left = operands_[first_operand + i], right = operands_[first_operand + i + 1];
    const SourceSpan span = cover(left.span, right.span);
    const Operand link =
        add_node({frames_[first_frame + i].op, 0, {}, {left.id, right.id}, {}, span}, span,
                 {left.span, right.span});
    const SourceSpan whole = i == 0 ? span : cover(chain.span, span);
    chain = i == 0 ? link
                   : add_node({ExprOp::logical_and, 0, {}, {chain.id, link.id}, {}, whole}, whole,
                              {chain.span, link.span});
  }
  frames_.resize(first_frame);
  operands_.resize(first_operand);
  operands_.push_back(chain);
}

}  // namespace fdma
