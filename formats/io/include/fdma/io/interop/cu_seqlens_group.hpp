// CuSeqlens from and to a group of an HDF5 file (interop_group.hpp).
#pragma once

#include "fdma/formats/interop/cu_seqlens.hpp"
#include "fdma/io/interop_group.hpp"

namespace fdma {

/// Errors: invalid_argument (a field is missing, unknown, of the wrong type or out of its range),
/// shape_mismatch (extents).
Result<CuSeqlens> cu_seqlens_from_group(const InteropGroup& group);
InteropGroup group_from_cu_seqlens(const CuSeqlens& sequences);

}  // namespace fdma
