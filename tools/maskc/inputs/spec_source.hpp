// The specification that a command line gives as text, as a file or on standard input, and its
// tables.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma::maskc {

/// A specification's text and the name that diagnostics print before it.
struct SpecSource {
  std::string text;
  std::string name;
};

/// `value` is "-", the path of an existing file, or the text itself. Failure: file.
Outcome<SpecSource> read_spec(const std::string& value);

/// Failure: usage; the message holds every diagnostic with its line and a caret.
Outcome<MaskExpr> parse_spec(const SpecSource& source);

/// Tables that the tool owns, and views of them for the library.
struct OwnedTables {
  std::map<std::string, OwnedTable, std::less<>> owned;
  Tables views() const;
};

/// Reads every "name=FILE.h5:/DATASET", "name=0,1,127" and "name=zoh(..)" (zoh_table.hpp).
///
/// Inline tables hold whole numbers, or true and false. Commas separate entries and semicolons
/// separate rows: "1,0;1,1" is a 2 x 2 table. A single entry is a parameter (rank 0) where the
/// specification writes @name alone. It is a list of one entry where the specification indexes
/// @name or passes it to a named mask by keyword (lengths=@name). A trailing comma always makes a
/// list. Failures: usage, file.
///
/// `casts`: floating datasets are taken where their values are exactly whole numbers, or exactly
/// float32 for the scores of topk.
Outcome<OwnedTables> read_tables(const std::vector<std::string>& arguments, const MaskExpr& expr,
                                 bool casts);

/// The --table option, and --cast.
OptionSpec table_option();
OptionSpec cast_option();

}  // namespace fdma::maskc
