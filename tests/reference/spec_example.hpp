// The worked examples of docs/spec-language.md. Each has a specification, the lengths and tables
// that it is bound to, and its cells.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "table_set.hpp"

namespace fdma::reference {

/// One fenced block with the language `mask`, in three parts separated by blank lines:
///
///     causal & documents(lengths=@len)        the specification
///
///     q_len = 3, kv_len = 3                   lengths (a list: one per element), batch, heads,
///     @len = [2, 1]                           tables: numbers, lists, bool [1, 0], float [0.5]
///
///     100                                     the expected cells; with several batch elements or
///     110                                     heads each drawing under "b = 0, h = 1:"; or
///     001                                     "undefined at q = 0, k = 2" or "error <code>: <words
///                                             of the message>"
struct SpecExample {
  int line = 0;  ///< line of the opening fence, counted from 1
  std::string spec;
  MaskShape shape;
  TableSet tables;
  std::string expected;
  std::size_t expected_begin = 0;  ///< byte range of `expected` in the page
  std::size_t expected_end = 0;
};

/// All examples of a Markdown page, in order. Errors: invalid_argument with the line.
Result<std::vector<SpecExample>> read_spec_examples(std::string_view page);

/// Draws `cells` [q_len * kv_len], each 0, 1 or 2. Each row is a line; 2 is drawn as "?".
std::string draw_cells(const std::vector<std::uint8_t>& cells, std::int64_t q_len,
                       std::int64_t kv_len);

}  // namespace fdma::reference
