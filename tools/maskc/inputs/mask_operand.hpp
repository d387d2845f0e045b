// The masks that a command line names: compiled ones in FDMA's files, and users' dense datasets.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/io/dense_dataset.hpp"

namespace fdma::maskc {

/// "FILE[:INNER]" taken apart.
struct MaskAddress {
  std::string file;
  std::string inner;  ///< as written after the colon; empty if there was none
};

/// Splits at the first colon whose left side is an existing file, else at the last colon.
MaskAddress parse_address(const std::string& text);

/// A mask that was named on the command line.
struct MaskOperand {
  std::string label;  ///< "out.h5:/masks/mask", "dense.h5:/mask"
  std::string name;   ///< its name in the file, or "mask" for a dense dataset
  BlockMask mask;
  bool is_dense = false;  ///< a user's dense dataset
};

/// --dims, --true-means, --drop-below, --rows: how a dense dataset is to be read.
std::vector<OptionSpec> dense_options();
Outcome<DenseReadOptions> dense_read_options(const Arguments& arguments);
/// Failure: usage, if one of dense_options() was given although no operand is a dense dataset.
Status check_dense_options(const Arguments& arguments, bool has_dense_operand);

/// What an address turns out to name.
struct ResolvedAddress {
  MaskAddress address;
  bool is_dense = false;
  std::vector<std::string> names;  ///< the masks meant: one, or all of the file if `inner` is empty
  std::string dataset;             ///< the dense dataset's path
};

/// Looks into the file. An INNER that starts with /masks/ or is the name of a mask in the file
/// means that mask. Any other INNER means a dense dataset. Failures: file, usage.
Outcome<ResolvedAddress> resolve_address(const std::string& text);

/// The MaskOperand::name that reading `resolved` will give.
std::string name_of(const ResolvedAddress& resolved);

/// Reads one mask. `dense` applies to dense datasets only. A dense value that is neither keep nor
/// drop is a mask_wrong failure. A file with several masks, none of which is named, is a usage
/// failure.
Outcome<MaskOperand> read_operand(const std::string& text, const DenseReadOptions& dense,
                                  bool quiet);
Outcome<MaskOperand> read_resolved(const ResolvedAddress& resolved, const DenseReadOptions& dense,
                                   bool quiet);

/// "8192 x 8192", or "1..4096 x 8192" where lengths differ by element.
std::string lengths_text(const MaskShape& shape);

}  // namespace fdma::maskc
