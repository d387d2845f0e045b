// Layouts of other systems that convert reads (--from) and writes (--to): one file peer_<name>.cpp
// each, which defines <name>_interop_format(). A new one is that file and its line in
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

/// What a reader may ask for beside the arrays.
struct InteropReadOptions {
  std::optional<BlockShape> block;  ///< of the result, where the layout has no blocks of its own
  /// The mask that holds the cells, bound to `shape`, or nothing if the command line names none
  /// (--cells, --spec).
  std::function<Outcome<std::optional<BlockMask>>(const MaskShape& shape)> cells;
};

struct InteropWriteOptions {
  BlockShape block;
};

/// One layout.
struct InteropFormat {
  std::string_view name;     ///< "flex"
  std::string_view summary;  ///< for --help: what it is and what its group holds
  std::string_view group;    ///< where --to writes by default: "/block_mask"
  Outcome<BlockMask> (*read)(const InteropGroup& arrays, const InteropReadOptions& options);
  Outcome<InteropGroup> (*write)(const BlockMask& mask, const InteropWriteOptions& options);
  bool takes_cells = false;  ///< it holds no cells of partial tiles: --cells, --spec
};

/// Every layout by name, ascending.
const std::vector<const InteropFormat*>& all_interop_formats();
/// The layout of that name, or null.
const InteropFormat* find_interop_format(std::string_view name);
/// Their names, for an option's choices.
std::vector<std::string_view> interop_format_names();

/// An importer's error: arrays that contradict themselves are a wrong mask, not a wrong use.
CommandFailure interop_failure(const Error& error);

}  // namespace fdma::maskc
