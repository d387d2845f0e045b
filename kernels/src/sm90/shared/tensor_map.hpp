// Tensor maps: descriptors of strided tensors of tiles for TMA. Host only.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::sm90 {

/// A box of tile rows: the rows of `heads` heads at one row of the tensor, then those at the next
/// row.
struct TileBox {
  std::int32_t rows;       ///< rows of the tensor
  std::int32_t heads = 1;  ///< consecutive heads of a group
};

/// A map over `tensor` [batch, rows, heads, head_dim] of 16-bit elements, with the heads in groups
/// of `group_size`. Boxes are panels of 64 columns in 128-byte swizzle, each with box.rows *
/// box.heads tile rows of 128 bytes. Coordinates are (column, head in the group, row, group,
/// batch). Elements outside the tensor, including columns and heads of a group, read as 0 and are
/// not written.
///
/// Errors  unsupported: head_dim no multiple of 8, a base that is not 16-aligned, strides that are
///         no multiples of 8 elements, or a driver without tensor maps; cuda
/// Owner   borrows tensor.data
Result<CUtensorMap> make_tile_map(const TensorView& tensor, std::int32_t group_size, TileBox box);

/// The same; error messages begin with the name of the tensor.
Result<CUtensorMap> make_named_map(const TensorView& tensor, std::int32_t group_size, TileBox box,
                                   const char* name);

}  // namespace fdma::sm90
