// The interop layouts that convert reads (--from) and writes (--to). Each layout has one file in
// this folder, which defines <name>_interop_format(). A new layout is that file and its line in
// interop_list.hpp.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/outcome.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/io/interop_group.hpp"

namespace fdma::maskc {

/// The inputs that a reader may use besides the arrays.
struct InteropReadOptions {
  std::optional<BlockShape> block;  ///< of the result, if the layout has no blocks of its own
  /// Gives the mask that holds the cells, bound to `shape`; nothing if the command line names none
  /// (--cells, --spec).
  std::function<Outcome<std::optional<BlockMask>>(const MaskShape& shape)> cells;
};

struct InteropWriteOptions {
  BlockShape block;
};

/// One layout.
struct InteropFormat {
  std::string_view name;     ///< "flex"
  std::string_view summary;  ///< for --help: the layout and the contents of its group
  std::string_view group;    ///< where --to writes by default: "/block_mask"
  Outcome<BlockMask> (*read)(const InteropGroup& arrays, const InteropReadOptions& options);
  Outcome<InteropGroup> (*write)(const BlockMask& mask, const InteropWriteOptions& options);
  bool takes_cells = false;  ///< no cells of partial tiles inside: --cells or --spec gives them
};

/// Every layout by name, ascending.
const std::vector<const InteropFormat*>& all_interop_formats();
/// The layout of that name, or null.
const InteropFormat* find_interop_format(std::string_view name);
/// The names of all layouts, for an option's choices.
std::vector<std::string_view> interop_format_names();

/// The failure for an importer's error. Arrays that contradict themselves make a wrong mask; they
/// are not a usage error.
CommandFailure interop_failure(const Error& error);

}  // namespace fdma::maskc
