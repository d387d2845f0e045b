// Files of plain arrays that are read like HDF5 files: .npy, .npz, safetensors.
#pragma once

#include <string>

namespace fdma {

/// Whether the first bytes of the file at `path` are those of a .npy, .npz or safetensors file.
/// read_dense_mask, read_table, list_datasets, has_object, describe_tensor and read_tensor take such
/// a file; its arrays are named "/name", and the one of a .npy file "/".
///
/// Accepts     little-endian values in C order; members of .npz files stored or deflated
/// Errors      of those functions: corrupt_file, with the byte; unsupported (Fortran order,
///             big-endian values, records, encrypted members)
bool is_array_file(const std::string& path);

}  // namespace fdma
