// Arrays of other libraries in HDF5: a group whose datasets have the names of that library's own
// fields, so that h5py users can fill and read it (docs/peer-formats.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/interop/bsr_matrix.hpp"
#include "fdma/formats/interop/flash_mask.hpp"
#include "fdma/formats/interop/flex_block_mask.hpp"
#include "fdma/io/dense_dataset.hpp"

namespace fdma {

/// The arrays of a group by name: boolean, integer or floating (float16, float32, float64, and
/// bfloat16 as uint16 with the attribute dtype = "bfloat16"), at most 4 dimensions, contiguous.
/// Attributes of the group are arrays too; a field may be either.
struct InteropGroup {
  std::map<std::string, OwnedTable, std::less<>> arrays;
};

/// Reads all datasets and attributes of group `group`. Memory is taken only for bytes that the file
/// can hold.
///
/// Errors      io (absent); corrupt_file (not HDF5, truncated, refused storage, values that the
///             file does not hold); invalid_argument (a type that no field has); shape_mismatch
///             (more than 4 dimensions); unsupported (filters)
Result<InteropGroup> read_interop_group(const std::string& path, const std::string& group);

/// Writes the arrays as datasets, and scalars as attributes, of group `group` ("/block_mask",
/// "/layers/3/mask") of a new file. The file appears complete or not at all. Equal input gives
/// equal bytes.
///
/// Errors      invalid_argument (the group's name), io, out_of_memory
Result<void> write_interop_group(const std::string& path, const std::string& group,
                                 const InteropGroup& arrays);

/// The structs of other libraries' masks, from and to a group.
///
/// Errors      of the readers: invalid_argument (a field is missing, unknown, of the wrong type or
///             out of its range), shape_mismatch (extents)
Result<FlexBlockMask> flex_from_group(const InteropGroup& group);
InteropGroup group_from_flex(FlexBlockMask flex);
Result<FlashMask> flash_mask_from_group(const InteropGroup& group);
InteropGroup group_from_flash_mask(const FlashMask& mask);
Result<BsrMatrix> bsr_from_group(const InteropGroup& group);
InteropGroup group_from_bsr(const BsrMatrix& matrix);

}  // namespace fdma
