// Tensor maps: how the copy engine sees a strided tensor of tiles. Host only.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fdma/formats/result.hpp"
#include "fdma/formats/tensor_view.hpp"

namespace fdma::sm90 {

/// A map over `tensor` [batch, rows, heads, head_dim] of 16-bit elements whose boxes are `box_rows`
/// rows of one head, all columns: head_dim / 64 panels of 64 columns in 128-byte swizzle, panel
/// after panel. Coordinates: (0, row, 0, head, batch).
///
/// Errors  unsupported: head_dim no multiple of 64, a base that is not 16-aligned, strides that are
/// no
///         multiples of 8 elements, or a driver without tensor maps; cuda
/// Owner   borrows tensor.data
Result<CUtensorMap> make_tile_map(const TensorView& tensor, std::int32_t box_rows);

}  // namespace fdma::sm90
