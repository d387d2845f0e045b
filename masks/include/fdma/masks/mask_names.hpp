// The names of the mask language: every named mask and every function, with its forms and
// parameters.
//
// Named masks are the rows of prelude.def, functions those of operators.def that are called. The
// parser (arity, keywords, suggestions), the builder, the binder (which form a node has, which
// argument is which, what it stands for) and the tests read them here.
//
// How a named mask is encoded (ExprNode with op `named`)
// ------------------------------------------------------
// `symbol` is the name. `children` are the arguments in the order of the form's parameters,
// whatever order and spelling the text used: child i is the argument of form->parameters[i].
// `arg_names` has one entry per child: "" for a parameter that may be given by position, the
// parameter's name for a keyword-only one. There are no optional arguments: a form is given
// completely, or it is another form. form_of(node) finds the form from the symbol and arg_names
// alone.
//
// The kind of a parameter decides what its child is:
//   integer           any integer expression without q, k, pos and loop variables: one value per
//                     (batch, head) once bound. A parameter table is ExprOp::table, no children.
//   integer_or_inf    as integer, or ExprOp::variable with symbol "inf"
//   integer_or_table  as integer; a node ExprOp::table without children is a parameter if the bound
//                     table has rank 0, and otherwise the form's table
//   table             ExprOp::table without children; symbol is the table's name
//   side              ExprOp::variable with symbol "left" or "right"
//   condition         a condition (only for topk's `among`)
//
// clang-format off
//   text                                 children                          arg_names
//   causal                               -                                 -
//   window(4)                            literal 4                         ""
//   window(left=inf, right=0)            variable inf, literal 0           "", ""
//   dilated(8, 2)                        literal 8, literal 2              "", ""
//   documents(ids=@t)                    table t                           ids
//   documents(lengths=@t)                table t                           lengths
//   documents(cu_seqlens=@t)             table t                           cu_seqlens
//   documents(k_ids=@b, q_ids=@a)        table a, table b                  q_ids, k_ids
//   prefix(@p), prefix(2 * @p)           table p; mul                      ""
//   prefix_documents(ids=@t, prefix=@p)  table t, table p                  ids, prefix
//   share_question(ids=@t, parts=@a)     table t, table a                  ids, parts
//   causal_blockwise(ids=@t)             table t                           ids
//   chunked(64), block_causal(64)        literal 64                        ""
//   global(16), global(@t)               literal 16; table t               ""
//   sink(4)                              literal 4                         ""
//   padding(lengths=@t)                  table t                           lengths
//   padding(lengths=@t, side=left)       table t, variable left            lengths, side
//   intervals(begin=@b, end=@e)          table b, table e                  begin, end
//   rows(begin=@b, end=@e)               table b, table e                  begin, end
//   tiles(@t, 64, 128)                   table t, literals                 "", "", ""
//   tree(parents=@t)                     table t                           parents
//   block_diffusion(4096, 16)            two literals                      "", ""
//   natten2d(64, 128, 13, 13)            four literals                     "" x 4
//   natten3d(8, 32, 32, 3, 7, 7)         six literals                      "" x 6
//   bits(@t)                             table t                           ""
//   topk(@s, 64, among=causal)           table s, literal, condition       "", "", among
//   causal & topk(@s, 64)                the same: parsing moves the other conjuncts into `among`
// clang-format on
// topk is selected by compile before binding (select_learned.hpp); bind alone refuses it.
//
// Every other operator
// --------------------
// + - * // %, the bit functions and shifts, comparisons and the logical operators have exactly two
// children (long sums and conjunctions nest to the left). negate, abs, from_bool and logical_not
// have one, min and max two or more, clamp (x, lo, hi), where and at three. `at(M, q=e)` stores the
// variable k for the index that was left out. -5 is the literal -5. == and != compare two integers
// or two conditions. any / all store the loop variable's name in `symbol` and in the `variable`
// nodes of the body. Names do not shadow each other and loops nest at most kMaxLoopDepth deep, but
// loops side by side may use the same name. A let names an expression, not its value: its node is
// shared, and inside at(..) it is evaluated at the new indices.
//
// Corner cases (the oracle under tests/reference follows this to the letter)
// --------------------------------------------------------------------------
// A named mask equals the expression in its row of docs/spec-language.md, evaluated by the ordinary
// three-valued rules, at() included. Look-ups of pos in a table are guarded by
// `0 <= pos & pos < kv_len &`. Look-ups of k and of the raw q are not guarded: they are undefined
// where at() leads outside the element's own kv_len or q_len (a table's entries past the element's
// length do not exist). A comparison with an undefined parameter is undefined.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/masks/mask_expr.hpp"

namespace fdma {

/// The forms of the named masks: the rows of prelude.def.
enum class MaskForm : std::uint8_t {
  none,  ///< a function
#define FDMA_NAMED_MASK(form, ...) form,
#include "fdma/masks/prelude.def"
};

/// What an argument must be. The head of this file says how each is stored.
enum class ParameterKind : std::uint8_t {
  integer,
  integer_or_inf,
  integer_or_table,
  table,
  side,
  condition,
  cell_integer,  ///< functions and at: an integer that may differ from cell to cell
  any_value,     ///< branches of where: an integer or a condition
};

/// The extents of a table that is an argument, without a batch extent in front.
enum class TableShape : std::uint8_t {
  none,
  per_key,               ///< integers [kv_len]
  flags_per_key,         ///< booleans [kv_len]
  per_query,             ///< integers [q_len]
  list,                  ///< integers of any number
  per_element,           ///< integers [batch], 0 to kv_len: the one of the batch element counts
  intervals_of_keys,     ///< integers [kv_len] or [n, kv_len]
  intervals_of_queries,  ///< integers [q_len] or [n, q_len]
  flags_of_tiles,        ///< booleans [ceil(q_len / m), ceil(kv_len / n)], or with heads in front
  flags_of_cells,        ///< booleans [q_len, kv_len], or with heads in front
  scores,                ///< float32 [kv_len], or with heads in front
};

/// The number of extents of a shape, without those of batch elements and heads.
constexpr int rank_of(TableShape shape) {
  return shape == TableShape::per_element ? 0 : shape >= TableShape::intervals_of_keys ? 2 : 1;
}

struct Parameter {
  std::string_view name;
  ParameterKind kind;
  bool is_keyword_only = false;
  TableShape table = TableShape::none;     ///< of a table, or of an integer_or_table that is one
  std::string_view extent = {};            ///< list: the number of its entries, for messages
  std::optional<std::int64_t> least = {};  ///< of an integer
  bool is_at_most_kv_len = false;          ///< an integer: not above kv_len
  bool must_be_defined = false;            ///< an integer: a shape is computed from it
  std::string_view remedy = {};            ///< for an integer outside its limits
};

/// One way to call a named mask or function.
struct NameForm {
  std::string_view name;
  MaskForm form;  ///< MaskForm::none for functions
  ExprOp op;      ///< ExprOp::named for named masks
  std::vector<Parameter> parameters;
  bool is_variadic;             ///< min, max: the last parameter may repeat
  std::string_view signature;   ///< as in the documentation: "window(left, right)"
  std::string_view meaning;     ///< one line: "true iff .."
  std::string_view text;        ///< named masks: the mask in the language, as in prelude.def
  std::string_view table_text;  ///< the same where an integer_or_table parameter is a table
  std::string_view example;     ///< named masks: a use of it
};

/// All forms; the forms of one name are neighbours. Static storage.
std::span<const NameForm> name_forms();

/// The forms of a named mask or function; empty if there is no such name.
std::span<const NameForm> forms_of(std::string_view name);

/// The form of a `named` node. Null only if the node breaks the encoding above, which neither
/// parse_mask nor the builder produces.
const NameForm* form_of(const ExprNode& node);

/// The variables that every cell has: q, k, b, h, q_len, kv_len, pos.
std::span<const std::string_view> cell_variables();

/// True for words that cannot name a let or a loop variable: keywords, variables, named masks,
/// functions, inf, left, right.
bool is_reserved(std::string_view word);

/// True for letters, digits and underscores that do not begin with a digit. Tables, lets and loop
/// variables have such names.
bool is_identifier(std::string_view word);

/// At most three of the candidates nearest to `word` by edit distance (insert, delete, replace,
/// swap neighbours), best first; only those near enough to be a likely typing error.
std::vector<std::string> nearest_names(std::string_view word,
                                       std::span<const std::string_view> candidates);

/// Deepest nesting of loops (any, all).
inline constexpr int kMaxLoopDepth = 16;
/// Most nodes of one expression.
inline constexpr std::int64_t kMaxExprNodes = std::int64_t{1} << 20;

}  // namespace fdma
