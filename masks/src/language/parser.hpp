// The parser of the mask language.
//
// Operator precedence parsing with explicit stacks. The text is read once, left to right. The
// parser is always in one of two states: it expects an operand, or it has just had one. Operands
// wait on one stack (`operands_`), operators and everything open (groups, calls, indices, loops,
// the statement) on another (`frames_`). An operator first reduces the frames above it that bind at
// least as tightly. A closing bracket reduces everything down to the frame that it closes:
//
//     causal & (q < 5 | k == 0      operands: causal  q<5  k  0      frames: final & ( | ==
//     .. then ')'                   operands: causal  (q<5 | k==0)   frames: final &
//
// A run of comparisons stays on the stack until a looser operator comes. It is then reduced as one
// chain: a < b < c is (a < b) & (b < c) with b one shared node. No function recurses, so only
// memory bounds the depth. Every token takes amortised constant time.
//
// The parser goes on after an error. A missing operand is replaced by an error operand, a missing
// operator by a `join` that accepts anything. An expression with an error inside gives no further
// errors. At most one diagnostic begins at any place, and after kMaxDiagnostics the parser gives
// up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/parse.hpp"
#include "language/lexer.hpp"
#include "language/typing.hpp"

namespace fdma {

class Parser {
 public:
  /// Texts above this size are refused.
  static constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;
  static constexpr std::size_t kMaxDiagnostics = 20;
  /// Most open operators and brackets.
  static constexpr std::size_t kMaxDepth = std::size_t{1} << 20;

  /// In texts of the prelude an unknown name is a parameter, an integer or a condition.
  enum class Names : std::uint8_t { of_user, of_prelude };

  explicit Parser(std::string_view text, Names names = Names::of_user)
      : text_(text), names_(names), lexer_(text) {}

  /// The expression, or an empty one if diagnostics() is not empty.
  MaskExpr run();
  /// The faults, in order of place; lines and columns are not filled in.
  std::vector<Diagnostic> diagnostics() &&;

 private:
  struct Operand {
    ExprId id;
    SourceSpan span;
  };
  enum class FrameKind : std::uint8_t {
    let_value,
    final_value,
    group,
    call,
    index,
    loop_bound,
    loop_body,
    prefix,
    binary,
    comparison,
    join,  ///< stands where an operator is missing
  };
  struct Frame {
    FrameKind kind;
    ExprOp op;              ///< prefix, binary, comparison
    std::int32_t position;  ///< of the operator or bracket
    std::int32_t base;      ///< index: operands before the first index, -1 if no table is indexed
  };
  struct Argument {
    std::string_view name;  ///< empty: positional
    SourceSpan name_span;
  };
  struct CallSyntax {
    std::string_view name;
    SourceSpan span;  ///< of the name
    std::size_t first_operand;
    std::size_t first_argument;
    bool is_known;
  };
  struct Loop {
    ExprOp op;
    std::string_view variable;
    std::int32_t begin;
    bool is_in_scope;
  };
  struct Let {
    std::string_view name;
    SourceSpan name_span;
  };

  // parser.cpp: statements and operands
  void begin_statement();
  bool begin_let();
  void end_let();
  void end_statement();
  void finish();
  void close_open_brackets();
  void parse_operand();
  void push_prefix();
  void push_number(bool is_negative, std::int32_t begin);
  void skip_list();
  void skip_function_head();
  bool is_literal(ExprId id) const;
  void push_table();
  void push_word();

  // parser_operators.cpp: the tokens after an operand
  void parse_after_operand();
  void push_infix(ExprOp op);
  void push_operator(FrameKind kind, ExprOp op, int reduced);
  void missing_operator();
  void close_paren();
  void close_bracket();
  void next_item();
  void end_bound();
  void finish_index(std::int32_t end);
  void reduce_above(int precedence);
  void reduce_operators() { reduce_above(0); }
  void reduce_top();
  void reduce_comparisons();
  static int precedence_of(const Frame& frame);

  // parser_calls.cpp: names, calls, loops
  void push_name(const Token& name);
  void push_variable(const Token& name);
  void unknown_name(const Token& name, bool is_call);
  void begin_call(const Token& name, bool is_known);
  void begin_argument();
  void finish_call(std::int32_t end);
  Operand build_call(const CallSyntax& call, SourceSpan span);
  void explain_mismatch(const CallSyntax& call, SourceSpan span);
  bool fill_parameters(const CallSyntax& call, const NameForm& form,
                       std::vector<std::size_t>& filled) const;
  Operand make_call_node(const CallSyntax& call, const NameForm& form,
                         const std::vector<std::size_t>& filled, SourceSpan span);
  void begin_loop();
  void check_loop_variable(const Token& name);
  void finish_loop(std::int32_t end);
  std::size_t num_arguments(const CallSyntax& call) const {
    return arguments_.size() - call.first_argument;
  }

  // nodes
  Operand add_node(ExprNode node, SourceSpan span, const std::vector<SourceSpan>& child_spans);
  Operand error_operand(SourceSpan span);
  void push(Operand operand) {
    operands_.push_back(operand);
    expects_operand_ = false;
  }
  void push_frame(FrameKind kind, ExprOp op, std::int32_t position, std::int32_t base = 0);
  const ExprFacts& facts(ExprId id) const { return facts_[static_cast<std::size_t>(id)]; }

  // tokens and diagnostics
  void advance();
  Token peek() const {
    Lexer ahead = lexer_;
    return ahead.next();
  }
  bool at_word(std::string_view word) const {
    return token_.kind == TokenKind::word && token_.text == word;
  }
  void report(SourceSpan span, std::string message);
  /// Reports nothing if the token before was already reported as invalid.
  void report_syntax(std::string message);

  std::string_view text_;
  Names names_;
  Lexer lexer_;
  Token token_;
  bool after_invalid_ = false;
  bool expects_operand_ = true;
  bool is_done_ = false;
  std::vector<Operand> operands_;
  std::vector<Frame> frames_;
  std::vector<CallSyntax> calls_;
  std::vector<Argument> arguments_;
  std::vector<Loop> loops_;
  Let current_let_;
  std::unordered_map<std::string_view, Operand> lets_;
  std::vector<ExprNode> nodes_;
  std::vector<ExprFacts> facts_;
  ExprId error_node_ = -1;
  ExprId root_ = -1;
  std::vector<Diagnostic> diagnostics_;
};

/// How a list is given to the argument `name`, as the end of a message; empty: to no argument.
std::string list_remedy(std::string_view name);
/// "a", "a or b", "a, b or c".
std::string join_alternatives(const std::vector<std::string>& words);

}  // namespace fdma
