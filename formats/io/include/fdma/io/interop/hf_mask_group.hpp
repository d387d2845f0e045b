// HfMask from and to a group of an HDF5 file (interop_group.hpp).
#pragma once

#include "fdma/formats/interop/hf_mask.hpp"
#include "fdma/io/interop_group.hpp"

namespace fdma {

/// Errors: invalid_argument (a field is missing, unknown, of the wrong type or out of its range),
/// shape_mismatch (extents).
Result<HfMask> hf_mask_from_group(const InteropGroup& group);
InteropGroup group_from_hf_mask(HfMask mask);

}  // namespace fdma
