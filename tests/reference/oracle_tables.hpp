// Access to bound tables for the oracle, one element at a time and with checked bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/tables.hpp"
#include "three_valued.hpp"

namespace fdma::reference {

/// A table by name. Errors: invalid_argument if it is missing, not on the host, or floating.
Result<TensorView> find_table(const Tables& tables, const std::string& name);

/// The element at `indices`. It is undefined outside the extents, or if a uint64 exceeds int64.
Value read(const TensorView& table, std::initializer_list<Value> indices);
Value read(const TensorView& table, const Value* indices, std::size_t num_indices);

/// The view at index i of the first extent, without that extent.
TensorView drop_front(const TensorView& table, std::int64_t i);

/// The properties that a named mask asks of a table.
struct TableRequest {
  std::string name;               ///< name of the table
  std::string purpose;            ///< "documents(ids=)"
  int rank = 1;                   ///< rank without the batch extent
  std::int64_t last_extent = -1;  ///< the exact last extent, for the longest element; -1: any
  std::int64_t own_extent = -1;   ///< entries that this batch element has; -1: all
  bool is_boolean = false;
};

/// The table for batch element b, without its batch extent if it has one, and with the last extent
/// of the element itself. Errors: invalid_argument (missing, wrong dtype), shape_mismatch.
Result<TensorView> table_of_element(const Tables& tables, const TableRequest& request,
                                    const MaskShape& shape, std::int64_t b);

/// All elements of a 1-dimensional integer table.
std::vector<std::int64_t> read_all(const TensorView& table);

}  // namespace fdma::reference
