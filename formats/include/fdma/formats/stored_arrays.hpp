// The arrays of a mask by name, as mask files of version 2 hold them (docs/file-format.md), without
// a file. Pickles, h5py and other containers carry these arrays.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// Type and extents that an array of a group must have, so that a reader can check them before it
/// takes memory.
///
/// Example     col_indices of bcsr: {"col_indices", int32, rank 1, any rows up to the tiles}
struct StoredArraySpec {
  std::string name;
  DType dtype = DType::int64;  ///< int32, int64 or uint64
  int rank = 1;                ///< 1: [rows]; 2: [rows, width]
  std::int64_t width = 1;
  std::int64_t min_rows = 0;
  std::int64_t max_rows = 0;
  bool only_with_patterns = false;  ///< in segment masks with patterns, and nowhere else
};

/// The arrays of one group of a mask of that format, lengths and block, in the order of the file.
std::vector<StoredArraySpec> stored_array_specs(MaskFormat format, std::int64_t q_len,
                                                std::int64_t kv_len, BlockShape block);

/// One array of a group.
///
/// Owner       `view` borrows from the mask; where the file holds the numbers in another order than
///             memory does (runs, parameters), it borrows from `packed`
struct StoredArray {
  std::string name;
  TensorView view;
  std::shared_ptr<const std::vector<std::int64_t>> packed;
};

/// The arrays of group `group`, in the order of the file. Cost: O(1) an array; O(runs) for `runs`.
std::vector<StoredArray> stored_arrays(const BlockMask& mask, std::int64_t group);

/// Contiguous arrays on the host by name.
using StoredViews = std::map<std::string, TensorView, std::less<>>;

/// The mask of these arrays, which are copied. Block, shape, origin, group_of and spec are those of
/// `header`, whose groups are ignored. Everything is validated at ValidationLevel::structure.
///
/// Errors      corrupt_file, naming the group and the array: missing, unknown, of another type or
///             other extents, or inconsistent
Result<BlockMask> mask_from_stored_arrays(MaskFormat format, BlockMask header,
                                          std::span<const StoredViews> groups);

}  // namespace fdma
