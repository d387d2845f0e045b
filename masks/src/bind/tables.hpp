// The caller's tables for binding: checked, contiguous, reduced to one batch element.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma {

/// The table that a named mask needs for one batch element: its type, rank and extents.
struct TableRequest {
  std::string use;    ///< for messages: "documents(ids=@t)"
  std::string table;  ///< the table's name
  bool is_boolean = false;
  int rank = 1;                   ///< without the batch extent
  std::string_view extent_name;   ///< of the last extent: "kv_len", "docs", ..
  std::int64_t last_extent = -1;  ///< exact, that of the longest element; -1: any
  std::int64_t own_extent = -1;   ///< the part of a rank 1 table that this element keeps; -1: all
};

/// All tables of one bind, each made contiguous and checked once.
class BoundTables {
 public:
  /// Checks every table that `names` mentions (with near names as hints for missing ones) and
  /// refuses tables that it does not mention.
  ///
  /// Errors      invalid_argument: missing, unused, not on the host, floating, a uint64 entry above
  ///             the largest int64; shape_mismatch: a rank above 4 or a negative extent
  static Result<BoundTables> make(const Tables& tables, const std::vector<std::string>& names,
                                  const MaskShape& shape);

  const IrTable& whole(std::string_view name) const { return tables_.find(name)->second; }
  /// The table of batch element b, without a batch extent.
  Result<IrTable> of_element(const TableRequest& request, std::int64_t b) const;

 private:
  MaskShape shape_;
  std::map<std::string, IrTable, std::less<>> tables_;
};

/// The part of a dense table at index i of its first extent.
IrTable slice_of(const IrTable& table, std::int64_t i);

/// "int32 [4, 100]".
std::string describe(const IrTable& table);

}  // namespace fdma
