// The element types of tensors as HDF5 types.
#pragma once

#include <optional>

#include "fdma/base/tensor_view.hpp"
#include "io/hdf5/h5_handle.hpp"

namespace fdma::io {

/// The attribute that makes a uint16 dataset bfloat16, and its value.
inline constexpr const char* kDTypeAttribute = "dtype";
inline constexpr const char* kBfloat16Name = "bfloat16";

/// Little-endian IEEE half, as h5py writes numpy.float16; invalid if HDF5 refuses.
Handle half_type();

/// The type that elements of `dtype` (float32, float16, bfloat16) have in files and in memory,
/// which is the same on a little-endian machine; invalid if HDF5 refuses.
Handle tensor_type(DType dtype);

/// The element type that an HDF5 type holds: float32, float16 or bfloat16; bfloat16 for uint16 if
/// `is_declared_bfloat16`. Empty for any other type or byte order.
std::optional<DType> tensor_dtype(hid_t type, bool is_declared_bfloat16);

}  // namespace fdma::io
