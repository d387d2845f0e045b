// The part of the parser that handles names: variables, named masks, functions, any and all.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "language/foreign_words.hpp"
#include "language/parser.hpp"

namespace fdma {
namespace {

template <class Range, class Name>
std::vector<std::string> collect(const Range& range, Name name_of) {
  std::vector<std::string> names;
  for (const auto& entry : range) {
    std::string name(name_of(entry));
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  }
  return names;
}

std::string signatures(std::span<const NameForm> forms) {
  return join_alternatives(collect(forms, [](const NameForm& form) { return form.signature; }));
}

std::string did_you_mean(const std::vector<std::string>& near) {
  return near.empty() ? "" : fmt::format("; did you mean {}?", join_alternatives(near));
}

constexpr std::size_t kLongestQuote = 40;

std::string quote(std::string_view word) {
  return word.size() <= kLongestQuote ? fmt::format("'{}'", word)
                                      : fmt::format("'{}...'", word.substr(0, kLongestQuote));
}

}  // namespace

std::string list_remedy(std::string_view name) {
  return fmt::format(
      "a list is a table: write {}@n and give its entries beside the text (fdma-maskc: --table "
      "n=100,120,80; Python: n=[100, 120, 80])",
      name.empty() ? "" : fmt::format("{}=", name));
}

bool Parser::is_literal(ExprId id) const {
  return nodes_[static_cast<std::size_t>(id)].op == ExprOp::literal;
}

std::string join_alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

// ---- names

// The token after the name is already current.
void Parser::push_name(const Token& name) {
  for (const Loop& loop : loops_) {
    if (!loop.is_in_scope || loop.variable != name.text) continue;
    push_variable(name);
    const auto depth = static_cast<std::size_t>(&loop - loops_.data());
    facts_.back().free_loops = std::uint64_t{1} << std::min<std::size_t>(depth, 63);
    return;
  }
  if (const auto let = lets_.find(name.text); let != lets_.end()) {
    push({let->second.id, name.span});
    return;
  }
  const std::span<const std::string_view> variables = cell_variables();
  if (std::find(variables.begin(), variables.end(), name.text) != variables.end())
    return push_variable(name);
  const bool is_call = token_.kind == TokenKind::open_paren;
  const std::span<const NameForm> forms = forms_of(name.text);
  if (names_ == Names::of_prelude && forms.empty()) {
    push_variable(name);
    facts_.back().type = ExprType::table;  // the kind of the parameter decides
    return;
  }
  if (name.text == "inf" || name.text == "left" || name.text == "right") return push_variable(name);
  if (forms.empty()) unknown_name(name, is_call);
  if (is_call) {
    begin_call(name, !forms.empty());
  } else if (forms.empty()) {
    push(error_operand(name.span));
  } else if (forms[0].parameters.empty()) {
    ExprNode node{ExprOp::named, 0, std::string(name.text), {}, {}, name.span};
    push(add_node(std::move(node), name.span, {}));
  } else {
    report(name.span, fmt::format("{} needs arguments: {}", name.text, signatures(forms)));
    push(error_operand(name.span));
  }
}

void Parser::push_variable(const Token& name) {
  ExprNode node{ExprOp::variable, 0, std::string(name.text), {}, {}, name.span};
  push(add_node(std::move(node), name.span, {}));
}

void Parser::unknown_name(const Token& name, bool is_call) {
  if (!is_call && frames_.back().kind == FrameKind::call && arguments_.back().name == "side") {
    report(name.span, fmt::format("side is left or right, not {}", quote(name.text)));
    return;
  }
  if (const auto remedy = remedy_of_foreign_word(name.text)) {
    report(name.span, fmt::format("unknown {} {}: {}", is_call ? "function or mask" : "name",
                                  quote(name.text), *remedy));
    return;
  }
  std::vector<std::string_view> candidates;
  for (const NameForm& form : name_forms()) candidates.push_back(form.name);
  if (!is_call) {
    candidates.insert(candidates.end(), cell_variables().begin(), cell_variables().end());
    for (const auto& [let_name, value] : lets_) candidates.push_back(let_name);
    for (const Loop& loop : loops_)
      if (loop.is_in_scope) candidates.push_back(loop.variable);
    for (const std::string_view word : {"true", "false", "and", "not", "inf"})
      candidates.push_back(word);
  }
  const std::vector<std::string> near = nearest_names(name.text, candidates);
  std::string hint = did_you_mean(near);
  if (near.empty() && is_call) {
    const std::vector<std::string> foreign = nearest_names(name.text, foreign_words());
    if (!foreign.empty()) hint = fmt::format(": {}", *remedy_of_foreign_word(foreign[0]));
  } else if (near.empty() && name.text.size() <= kLongestQuote) {
    hint = fmt::format(" (a table is written @{})", name.text);
  }
  report(name.span, fmt::format("unknown {} {}{}", is_call ? "function or mask" : "name",
                                quote(name.text), hint));
}

// ---- calls

void Parser::begin_call(const Token& name, bool is_known) {
  push_frame(FrameKind::call, ExprOp::named, token_.span.begin);
  calls_.push_back({name.text, name.span, operands_.size(), arguments_.size(), is_known});
  advance();
  if (token_.kind == TokenKind::close_paren) {
    finish_call(token_.span.end);
    advance();
    return;
  }
  begin_argument();
}

void Parser::begin_argument() {
  Argument argument;
  if (token_.kind == TokenKind::word && peek().kind == TokenKind::assign) {
    argument = {token_.text, token_.span};
    advance();
    advance();
  }
  arguments_.push_back(argument);
  expects_operand_ = true;
}

void Parser::finish_call(std::int32_t end) {
  const CallSyntax call = calls_.back();
  const SourceSpan span{call.span.begin, end};
  const Operand result = call.is_known ? build_call(call, span) : error_operand(span);
  operands_.resize(call.first_operand);
  arguments_.resize(call.first_argument);
  calls_.pop_back();
  frames_.pop_back();
  push(result);
}

// Assigns the call's arguments to the form's parameters: filled[i] is the argument of parameter i.
bool Parser::fill_parameters(const CallSyntax& call, const NameForm& form,
                             std::vector<std::size_t>& filled) const {
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  filled.assign(form.parameters.size(), kNone);
  std::size_t num_positional = 0;
  for (std::size_t i = 0; i < num_arguments(call); ++i) {
    const std::string_view name = arguments_[call.first_argument + i].name;
    std::size_t place = num_positional;
    if (!name.empty()) {
      place = 0;
      while (place < form.parameters.size() && form.parameters[place].name != name) ++place;
      if (place == form.parameters.size() || form.is_variadic) return false;
    } else {
      ++num_positional;
      if (place >= form.parameters.size() && form.is_variadic) {
        filled.push_back(i);
        continue;
      }
      if (place >= form.parameters.size() || form.parameters[place].is_keyword_only) return false;
    }
    if (filled[place] != kNone) return false;
    filled[place] = i;
  }
  std::size_t num_missing =
      static_cast<std::size_t>(std::count(filled.begin(), filled.end(), kNone));
  // at(M, q=e) keeps k; topk without among is completed at the end of the text.
  if (form.op == ExprOp::at && filled[0] != kNone && num_missing == 1) num_missing = 0;
  if (form.form == MaskForm::topk && filled[2] == kNone && num_missing == 1) num_missing = 0;
  return num_missing == 0;
}

Parser::Operand Parser::build_call(const CallSyntax& call, SourceSpan span) {
  std::vector<std::size_t> filled;
  for (const NameForm& form : forms_of(call.name))
    if (fill_parameters(call, form, filled)) return make_call_node(call, form, filled, span);
  explain_mismatch(call, span);
  return error_operand(span);
}

Parser::Operand Parser::make_call_node(const CallSyntax& call, const NameForm& form,
                                       const std::vector<std::size_t>& filled, SourceSpan span) {
  ExprNode node{form.op, 0, {}, {}, {}, span};
  if (form.op == ExprOp::named) node.symbol = std::string(form.name);
  std::vector<SourceSpan> spans;
  for (std::size_t i = 0; i < filled.size(); ++i) {
    const bool is_missing = filled[i] == static_cast<std::size_t>(-1);
    if (is_missing && form.op == ExprOp::named) continue;
    Operand argument;
    if (is_missing) {
      ExprNode same{ExprOp::variable, 0, std::string(form.parameters[i].name), {}, {}, span};
      argument = add_node(std::move(same), span, {});
    } else {
      argument = operands_[call.first_operand + filled[i]];
    }
    node.children.push_back(argument.id);
    spans.push_back(argument.span);
    if (form.op == ExprOp::named)
      node.arg_names.emplace_back(form.parameters[i].is_keyword_only ? form.parameters[i].name
                                                                     : std::string_view{});
  }
  return add_node(std::move(node), span, spans);
}

// Reports why no form takes these arguments: the first argument that fits none, or their number.
void Parser::explain_mismatch(const CallSyntax& call, SourceSpan span) {
  const std::span<const NameForm> forms = forms_of(call.name);
  std::vector<std::string_view> keywords;
  for (const NameForm& form : forms)
    for (const Parameter& parameter : form.parameters) keywords.push_back(parameter.name);
  const bool takes_positions = std::any_of(forms.begin(), forms.end(), [](const NameForm& form) {
    return !form.parameters.empty() && !form.parameters[0].is_keyword_only;
  });
  std::size_t num_positional = 0;
  for (std::size_t i = 0; i < num_arguments(call); ++i) {
    const Argument& argument = arguments_[call.first_argument + i];
    const SourceSpan value = operands_[call.first_operand + i].span;
    if (argument.name.empty()) {
      ++num_positional;
      if (!takes_positions && !keywords.empty()) {
        const bool is_list = i > 0 && !arguments_[call.first_argument].name.empty() &&
                             is_literal(operands_[call.first_operand + i - 1].id) &&
                             is_literal(operands_[call.first_operand + i].id);
        const std::string_view name = arguments_[call.first_argument].name;
        report(value, is_list ? fmt::format("{} takes one argument {}; {}", call.name, name,
                                            list_remedy(name))
                              : fmt::format("{} takes its arguments by name: {}", call.name,
                                            signatures(forms)));
        return;
      }
      continue;
    }
    if (std::find(keywords.begin(), keywords.end(), argument.name) == keywords.end()) {
      const std::vector<std::string> near = nearest_names(argument.name, keywords);
      report(argument.name_span,
             fmt::format("{} has no argument {}{}", call.name, quote(argument.name),
                         near.empty() ? fmt::format("; it is written {}", signatures(forms))
                                      : did_you_mean(near)));
      return;
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (arguments_[call.first_argument + j].name != argument.name) continue;
      report(argument.name_span, fmt::format("argument '{}' is given twice", argument.name));
      return;
    }
  }
  std::vector<std::string> given;
  if (num_positional > 0) given.push_back(fmt::format("{} by position", num_positional));
  for (std::size_t i = 0; i < num_arguments(call) && given.size() < 6; ++i) {
    const std::string_view name = arguments_[call.first_argument + i].name;
    if (!name.empty()) given.push_back(fmt::format("{}=", name));
  }
  report(span, fmt::format("{} does not take these arguments ({}); it is written {}", call.name,
                           given.empty() ? "none" : fmt::format("{}", fmt::join(given, ", ")),
                           signatures(forms)));
}

// ---- any, all

// Called at the word; the header of the loop is `( name in`.
void Parser::begin_loop() {
  const Token word = token_;
  Lexer ahead = lexer_;
  const Token open = ahead.next(), name = ahead.next(), in = ahead.next();
  advance();
  if (open.kind != TokenKind::open_paren || name.kind != TokenKind::word ||
      in.kind != TokenKind::word || in.text != "in") {
    report(word.span, fmt::format("{0} is written {0}(i in n : condition)", word.text));
    if (token_.kind == TokenKind::open_paren)
      begin_call(word, false);
    else
      push(error_operand(word.span));
    return;
  }
  push_frame(FrameKind::loop_bound, ExprOp::named, token_.span.begin);
  advance();
  check_loop_variable(token_);
  const ExprOp op = word.text == "any" ? ExprOp::any_of : ExprOp::all_of;
  loops_.push_back({op, token_.text, word.span.begin, false});
  advance();
  advance();
  expects_operand_ = true;
}

void Parser::check_loop_variable(const Token& name) {
  const bool is_taken = lets_.contains(name.text) ||
                        std::any_of(loops_.begin(), loops_.end(),
                                    [&](const Loop& loop) { return loop.variable == name.text; });
  if (is_reserved(name.text))
    report(name.span,
           fmt::format("'{}' is a word of the language and cannot be a loop variable", name.text));
  else if (is_taken)
    report(name.span, fmt::format("{} already means something here; choose another loop variable",
                                  quote(name.text)));
  else if (loops_.size() >= static_cast<std::size_t>(kMaxLoopDepth))
    report(name.span, fmt::format("any and all nest at most {} deep", kMaxLoopDepth));
}

void Parser::finish_loop(std::int32_t end) {
  const Operand body = operands_.back();
  operands_.pop_back();
  const Operand bound = operands_.back();
  operands_.pop_back();
  const Loop loop = loops_.back();
  loops_.pop_back();
  frames_.pop_back();
  const SourceSpan span{loop.begin, end};
  const std::uint64_t own_bit = std::uint64_t{1} << std::min<std::size_t>(loops_.size(), 63);
  ExprNode node{loop.op, 0, std::string(loop.variable), {bound.id, body.id}, {}, span};
  const Operand result = add_node(std::move(node), span, {bound.span, body.span});
  if (result.id != error_node_) facts_[static_cast<std::size_t>(result.id)].free_loops &= ~own_bit;
  push(result);
}

}  // namespace fdma
