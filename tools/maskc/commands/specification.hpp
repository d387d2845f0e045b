// The specification, lengths and tables that compile and explain take.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "fdma/base/result.hpp"
#include "fdma/masks/lower.hpp"
#include "inputs/spec_source.hpp"

namespace fdma::maskc {

/// --spec, or the operand. Failure: usage.
Outcome<std::string> spec_of(const Arguments& arguments);

/// A specification with what it is compiled for.
struct Specification {
  SpecSource source;
  MaskExpr expr;
  MaskShape shape;
  OwnedTables tables;
  LowerOptions options;  ///< --block, --threads, --max-work
};
/// Reads and parses the specification `spec` (spec_of), and the tables and lengths of the command
/// line.
Outcome<Specification> read_specification(const Arguments& arguments, const std::string& spec);

/// The failure of binding a specification. A shape error often means that the tables hold more batch
/// elements than the command line asks for; the message then says so.
CommandFailure with_batch_hint(const Error& error, const Arguments& arguments);

/// --spec, --table, --cast, --q-len, --kv-len, --batch, --heads.
std::vector<OptionSpec> specification_options();

}  // namespace fdma::maskc
