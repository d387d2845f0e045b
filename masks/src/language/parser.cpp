#include "language/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "language/foreign_words.hpp"
#include "language/operators.hpp"
#include "language/topk_shorthand.hpp"

namespace fdma {

// ---- tokens, diagnostics, nodes

void Parser::advance() {
  after_invalid_ = token_.kind == TokenKind::invalid;
  token_ = lexer_.next();
}

void Parser::report(SourceSpan span, std::string message) {
  if (is_done_) return;
  for (const Diagnostic& earlier : diagnostics_)
    if (earlier.span.begin == span.begin) return;
  Diagnostic diagnostic;
  diagnostic.span = span;
  diagnostic.message = std::move(message);
  diagnostics_.push_back(std::move(diagnostic));
  if (diagnostics_.size() >= kMaxDiagnostics) is_done_ = true;
}

void Parser::report_syntax(std::string message) {
  if (!after_invalid_) report(token_.span, std::move(message));
}

std::vector<Diagnostic> Parser::diagnostics() && {
  std::sort(diagnostics_.begin(), diagnostics_.end(),
            [](const Diagnostic& a, const Diagnostic& b) { return a.span.begin < b.span.begin; });
  return std::move(diagnostics_);
}

Parser::Operand Parser::error_operand(SourceSpan span) {
  if (error_node_ < 0) {
    error_node_ = static_cast<ExprId>(nodes_.size());
    nodes_.push_back(ExprNode{ExprOp::literal, 0, {}, {}, {}, span});
    facts_.push_back(ExprFacts{});
  }
  return {error_node_, span};
}

Parser::Operand Parser::add_node(ExprNode node, SourceSpan span,
                                 const std::vector<SourceSpan>& child_spans) {
  if (static_cast<std::int64_t>(nodes_.size()) >= kMaxExprNodes) {
    report(span, fmt::format("the expression has more than {} operations; long lists belong in a "
                             "table",
                             kMaxExprNodes));
    is_done_ = true;
    return error_operand(span);
  }
  std::vector<ExprFacts> child_facts;
  for (const ExprId child : node.children) child_facts.push_back(facts(child));
  std::optional<TypeProblem> problem;
  const ExprFacts inferred = infer(node, child_facts, problem);
  if (problem) {
    const auto child = static_cast<std::size_t>(problem->child);
    report(problem->child >= 0 ? child_spans[child] : span, std::move(problem->message));
  }
  node.span = span;
  nodes_.push_back(std::move(node));
  facts_.push_back(inferred);
  return {static_cast<ExprId>(nodes_.size() - 1), span};
}

void Parser::push_frame(FrameKind kind, ExprOp op, std::int32_t position, std::int32_t base) {
  if (frames_.size() >= kMaxDepth) {
    report(token_.span,
           fmt::format("more than {} operators and brackets are open here", kMaxDepth));
    is_done_ = true;
  }
  frames_.push_back({kind, op, position, base});
}

// ---- statements

MaskExpr Parser::run() {
  if (text_.size() > kMaxTextBytes) {
    report({0, 0}, fmt::format("the specification has {} bytes; at most {} are allowed",
                               text_.size(), kMaxTextBytes));
    return {};
  }
  advance();
  if (token_.kind == TokenKind::end) {
    report(token_.span, "the specification is empty: write a mask, for example causal");
    return {};
  }
  begin_statement();
  while (!is_done_) {
    if (token_.kind == TokenKind::invalid) {
      report(token_.span, token_.problem);
      // An invalid token of these stands for an operand, like a number or a table.
      constexpr std::string_view kOperandStarts = "@'\"0123456789";
      const bool is_value =
          !token_.text.empty() && kOperandStarts.find(token_.text[0]) != std::string_view::npos;
      if (expects_operand_ && is_value) {
        push(error_operand(token_.span));
      } else if (!expects_operand_) {
        push_operator(FrameKind::join, ExprOp::logical_and, kAnd);
        continue;
      }
      advance();
    } else if (expects_operand_) {
      parse_operand();
    } else {
      parse_after_operand();
    }
  }
  if (!diagnostics_.empty()) return {};
  if (std::optional<Diagnostic> problem = expand_topk_shorthand(nodes_, root_)) {
    diagnostics_.push_back(std::move(*problem));
    return {};
  }
  root_ = drop_dead_nodes(nodes_, root_);
  return MaskExpr(std::make_shared<const std::vector<ExprNode>>(std::move(nodes_)), root_,
                  std::string(text_));
}

void Parser::begin_statement() {
  expects_operand_ = true;
  while (at_word("let")) {
    if (begin_let()) return;
    while (token_.kind != TokenKind::semicolon && token_.kind != TokenKind::end) advance();
    if (token_.kind == TokenKind::semicolon) advance();
  }
  push_frame(FrameKind::final_value, ExprOp::named, token_.span.begin);
}

// Reads `let name =`. False, with a diagnostic, if it is malformed.
bool Parser::begin_let() {
  const std::int32_t begin = token_.span.begin;
  advance();
  if (token_.kind != TokenKind::word) {
    report_syntax(fmt::format("expected a name after let, but found {}", describe(token_)));
    return false;
  }
  current_let_ = {token_.text, token_.span};
  if (is_reserved(token_.text)) {
    report(token_.span,
           fmt::format("'{}' is a word of the language and cannot be redefined", token_.text));
    current_let_.name = {};  // the word keeps its meaning
  } else if (lets_.contains(token_.text)) {
    report(token_.span, fmt::format("'{}' is already defined", token_.text));
  }
  advance();
  if (token_.kind != TokenKind::assign) {
    report_syntax(
        fmt::format("expected '=' after the name of a let, but found {}", describe(token_)));
    return false;
  }
  advance();
  push_frame(FrameKind::let_value, ExprOp::named, begin);
  return true;
}

// The operand on top is the value of the let whose frame is on top.
void Parser::end_let() {
  frames_.pop_back();
  lets_.try_emplace(current_let_.name, operands_.back());
  operands_.pop_back();
}

// Closes what is open down to the statement, and reports the innermost.
void Parser::close_open_brackets() {
  std::size_t num_open = 0;
  std::int32_t innermost = -1;
  reduce_operators();
  for (;; reduce_operators()) {
    const Frame frame = frames_.back();
    if (frame.kind == FrameKind::let_value || frame.kind == FrameKind::final_value) break;
    if (num_open++ == 0) innermost = frame.position;
    // From here on frames are only removed; the operands in them have an error inside.
    if (frame.kind == FrameKind::call) {
      operands_.resize(calls_.back().first_operand);
      arguments_.resize(calls_.back().first_argument);
      calls_.pop_back();
    } else if (frame.kind == FrameKind::index) {
      operands_.resize(static_cast<std::size_t>(std::abs(frame.base)) - 1);
    } else {
      if (frame.kind == FrameKind::loop_body) operands_.pop_back();
      if (frame.kind != FrameKind::group) loops_.pop_back();
      operands_.pop_back();
    }
    frames_.pop_back();
    operands_.push_back(error_operand({frame.position, frame.position + 1}));
  }
  if (num_open == 0) return;
  const char bracket = text_[static_cast<std::size_t>(innermost)];
  report({innermost, innermost + 1},
         num_open == 1 ? fmt::format("'{}' is never closed", bracket)
                       : fmt::format("'{}' is never closed, and {} more are open around it",
                                     bracket, num_open - 1));
}

// Called at ';', or at a `let` that should have had one before it.
void Parser::end_statement() {
  close_open_brackets();
  if (frames_.back().kind == FrameKind::let_value) {
    end_let();
  } else {
    report_syntax("only a let ends with ';': the mask is the last expression and ends the text");
    frames_.pop_back();
    operands_.pop_back();
  }
  if (token_.kind == TokenKind::semicolon) advance();
  if (token_.kind == TokenKind::end && !diagnostics_.empty()) {
    is_done_ = true;
    return;
  }
  begin_statement();
}

void Parser::finish() {
  close_open_brackets();
  const Operand result = operands_.back();
  if (frames_.back().kind == FrameKind::let_value) {
    if (diagnostics_.empty())
      report(token_.span, "expected ';' and then the mask, but the text ends after a let");
  } else if (facts(result.id).type == ExprType::symbol) {
    report(result.span, "this word is only an argument of named masks, not a mask");
  } else if (!fits(facts(result.id), ExprType::condition)) {
    report(result.span,
           "a mask is a condition, but this is an integer: compare it, for example with != 0");
  }
  root_ = result.id;
  is_done_ = true;
}

// ---- operands

void Parser::parse_operand() {
  switch (token_.kind) {
    case TokenKind::number:
      push_number(false, token_.span.begin);
      return;
    case TokenKind::table:
      push_table();
      return;
    case TokenKind::word:
      push_word();
      return;
    case TokenKind::open_paren:
      push_frame(FrameKind::group, ExprOp::named, token_.span.begin);
      advance();
      return;
    case TokenKind::op:
      push_prefix();
      return;
    case TokenKind::assign:
      report_syntax("a comparison is written ==, and only arguments and lets have names");
      break;
    case TokenKind::open_bracket:
      return skip_list();
    default:
      report_syntax(fmt::format("expected an expression before {}", describe(token_)));
      break;
  }
  push(error_operand(token_.span));
}

// A list in brackets, which the language does not have, becomes an operand with an error inside.
void Parser::skip_list() {
  const bool is_argument = frames_.back().kind == FrameKind::call;
  report_syntax(list_remedy(is_argument ? arguments_.back().name : std::string_view()));
  SourceSpan span = token_.span;
  int depth = 0;
  do {
    depth += token_.kind == TokenKind::open_bracket ? 1 : 0;
    depth -= token_.kind == TokenKind::close_bracket ? 1 : 0;
    span.end = token_.span.end;
    advance();
  } while (depth > 0 && token_.kind != TokenKind::end);
  push(error_operand(span));
}

void Parser::push_number(bool is_negative, std::int32_t begin) {
  const SourceSpan span{begin, token_.span.end};
  std::uint64_t magnitude = 0;
  const auto [end, status] =
      std::from_chars(token_.text.data(), token_.text.data() + token_.text.size(), magnitude);
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (status != std::errc{} || magnitude > kLargest + (is_negative ? 1 : 0)) {
    report(span, "this number does not fit in 64 bits: the largest is 9223372036854775807");
    push(error_operand(span));
  } else {
    const std::uint64_t bits = is_negative ? ~magnitude + 1 : magnitude;
    ExprNode node{ExprOp::literal, static_cast<std::int64_t>(bits), {}, {}, {}, span};
    push(add_node(std::move(node), span, {}));
  }
  advance();
}

// An operator where an operand is expected: a prefix operator of the same spelling, if there is one.
void Parser::push_prefix() {
  const std::string_view spelled = spelling(token_.op);
  const auto* facts = std::find_if(
      std::begin(kOperators), std::end(kOperators),
      [&](const OperatorFacts& other) { return other.is_prefix() && other.spelling == spelled; });
  if (facts == std::end(kOperators)) {
    const std::span<const std::string_view> variables = cell_variables();
    const bool is_bar = spelled == "|" && std::find(variables.begin(), variables.end(),
                                                    peek().text) != variables.end();
    report_syntax(fmt::format("expected an expression before {}{}", describe(token_),
                              is_bar ? "; an absolute value is written abs(x)" : ""));
    push(error_operand(token_.span));
    return;
  }
  const std::int32_t begin = token_.span.begin;
  if (facts->op == ExprOp::negate && peek().kind == TokenKind::number) {
    advance();
    push_number(true, begin);
    return;
  }
  if (precedence_of(frames_.back()) > facts->binds)
    report_syntax(fmt::format("{} binds looser than the operator before it: put it in parentheses",
                              describe(token_)));
  push_frame(FrameKind::prefix, facts->op, begin);
  advance();
}

void Parser::push_table() {
  const SourceSpan span = token_.span;
  ExprNode node{ExprOp::table, 0, std::string(token_.text), {}, {}, span};
  advance();
  push(add_node(std::move(node), span, {}));
  if (token_.kind != TokenKind::open_bracket) return;
  push_frame(FrameKind::index, ExprOp::table, token_.span.begin,
             static_cast<std::int32_t>(operands_.size()));
  advance();
  expects_operand_ = true;
}

// Reports `lambda b, h, q, k:` or `def f(b, h, q, k): return`, and goes on with what follows.
void Parser::skip_function_head() {
  report_syntax(
      fmt::format("unknown name '{}': {}", token_.text, *remedy_of_foreign_word(token_.text)));
  while (token_.kind != TokenKind::colon && token_.kind != TokenKind::end) advance();
  if (token_.kind == TokenKind::colon) advance();
  if (at_word("return")) advance();
  if (token_.kind == TokenKind::end) push(error_operand(token_.span));
}

void Parser::push_word() {
  const Token word = token_;
  if (word.text == "let") {
    report_syntax("let stands before the mask, not inside an expression");
    push(error_operand(word.span));
    return;
  }
  if (word.text == "lambda" || word.text == "def") {
    skip_function_head();
    return;
  }
  if (word.text == "in") {
    report_syntax("'in' belongs to any(i in n : condition)");
    push(error_operand(word.span));
    advance();
    return;
  }
  if (word.text == "any" || word.text == "all") {
    begin_loop();
    return;
  }
  advance();
  if (word.text == "true" || word.text == "false") {
    ExprNode node{ExprOp::boolean, word.text == "true" ? 1 : 0, {}, {}, {}, word.span};
    push(add_node(std::move(node), word.span, {}));
    return;
  }
  push_name(word);
}

}  // namespace fdma
