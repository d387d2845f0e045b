// Access to bound tables for the oracle: one element at a time, bounds checked.
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

/// The element at `indices`; undefined outside the extents (or for a uint64 beyond int64).
Value read(const TensorView& table, std::initializer_list<Value> indices);
Value read(const TensorView& table, const Value* indices, std::size_t num_indices);

/// The view without its first extent, at index i of it.
TensorView drop_front(const TensorView& table, std::int64_t i);

/// What a named mask asks of a table.
struct TableRequest {
  std::string name;               ///< the table's
  std::string purpose;            ///< "documents(ids=)"
  int rank = 1;                   ///< without the batch extent
  std::int64_t last_extent = -1;  ///< of the longest element, exact; -1: any
  std::int64_t own_extent = -1;   ///< of this element: later entries do not exist; -1: all
  bool is_boolean = false;
};

/// The table for batch element b: its batch extent, if any, dropped and its last extent cut to the
/// element's own. Errors: invalid_argument (missing, wrong dtype), shape_mismatch.
Result<TensorView> table_of_element(const Tables& tables, const TableRequest& request,
                                    const MaskShape& shape, std::int64_t b);

/// All elements of a 1-dimensional integer table.
std::vector<std::int64_t> read_all(const TensorView& table);

}  // namespace fdma::reference
