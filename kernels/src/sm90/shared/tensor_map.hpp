// Tensor maps: how the copy engine sees a strided tensor of tiles. Host only.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::sm90 {

/// A box of tile rows: those of `heads` heads of one row of the tensor, then those of the next.
struct TileBox {
  std::int32_t rows;       ///< of the tensor
  std::int32_t heads = 1;  ///< of a group, side by side
};

/// A map over `tensor` [batch, rows, heads, head_dim] of 16-bit elements, heads in groups of
/// `group_size`. Boxes are panels of 64 columns in 128-byte swizzle: box.rows * box.heads tile rows
/// of 128 bytes. Coordinates: (column, head in the group, row, group, batch). What lies outside the
/// tensor, columns and heads of a group included, reads as 0 and is not written.
///
/// Errors  unsupported: head_dim no multiple of 8, a base that is not 16-aligned, strides that are
/// no
///         multiples of 8 elements, or a driver without tensor maps; cuda
/// Owner   borrows tensor.data
Result<CUtensorMap> make_tile_map(const TensorView& tensor, std::int32_t group_size, TileBox box);

/// The same, its errors with the name of the tensor in front.
Result<CUtensorMap> make_named_map(const TensorView& tensor, std::int32_t group_size, TileBox box,
                                   const char* name);

}  // namespace fdma::sm90
