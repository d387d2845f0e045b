// From decoded arrays to a mask. The arrays come out of a mask file (io/masks/read_mask.cpp), from the
// process that read it (io/isolated/mask_message.cpp) or from memory (stored_arrays.cpp). This file does not
// use HDF5.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "stored/mask_schema.hpp"

namespace fdma::io {

/// The first (batch, head) pair of each group. Errors: corrupt_file (an entry that does not number
/// groups by first occurrence, a group without pairs).
Result<std::vector<std::size_t>> first_pairs(std::span<const std::int32_t> group_of);

/// Runs from the five columns that a file stores for them. Errors: corrupt_file (a column that is
/// no 32-bit count).
Result<std::vector<TileRun>> unpack_runs(std::span<const std::int64_t> columns);
std::vector<std::int64_t> pack_runs(std::span<const TileRun> runs);

/// Fills mask.groups with masks of type `Mask`. shape, block and group_of of `mask` are set. The
/// result is not validated yet.
///
/// open_group(g) returns a Result of a source of the arrays of group g. The source has
/// `Result<void> read(name, vector, ArrayType, ArrayShape)`, which checks type and extents before
/// it takes memory, `Result<bool> has_patterns()`, and `Result<void> expect_no_more()`.
template <class Mask, class OpenGroup>
Result<void> read_groups(BlockMask& mask, OpenGroup&& open_group) {
  FDMA_TRY(const std::vector<std::size_t> first, first_pairs(mask.group_of));
  std::vector<Mask> stored;
  for (std::size_t g = 0; g < first.size(); ++g) {
    FDMA_TRY(auto arrays, open_group(static_cast<std::int64_t>(g)));
    const std::int64_t batch = static_cast<std::int64_t>(first[g]) / mask.shape.num_heads;
    Mask& one = stored.emplace_back();
    one.q_len = mask.shape.q_len(batch);
    one.kv_len = mask.shape.kv_len(batch);
    if constexpr (requires { one.block; }) one.block = mask.block;
    if constexpr (std::is_same_v<Mask, ParametricMask>) {
      std::vector<std::int64_t> parameters;
      FDMA_TRY_VOID(arrays.read("parameters", parameters, ArrayType::int64,
                                exact_rows(std::ssize(kParameters))));
      for (std::size_t i = 0; i < parameters.size(); ++i) one.*kParameters[i] = parameters[i];
    }
    Result<void> status;
    const auto read = [&](const char* name, auto& array, ArrayType type, ArrayShape shape) {
      if (status) status = arrays.read(name, array, type, shape);
    };
    for_each_array(one, read);
    FDMA_TRY_VOID(status);
    if constexpr (std::is_same_v<Mask, SegmentMask>) {
      FDMA_TRY(const bool has_patterns, arrays.has_patterns());
      if (has_patterns) for_each_pattern_array(one, read);
      FDMA_TRY_VOID(status);
    }
    FDMA_TRY_VOID(arrays.expect_no_more());
  }
  mask.groups = std::move(stored);
  return {};
}

/// As above, for a format that is known only at run time.
template <class OpenGroup>
Result<void> read_groups(MaskFormat format, BlockMask& mask, OpenGroup&& open_group) {
  switch (format) {
    case MaskFormat::segment:
      return read_groups<SegmentMask>(mask, open_group);
    case MaskFormat::parametric:
      return read_groups<ParametricMask>(mask, open_group);
    case MaskFormat::bitset:
      return read_groups<BlockBitset>(mask, open_group);
    case MaskFormat::bcsr:
      return read_groups<BcsrMask>(mask, open_group);
    case MaskFormat::columns:
      return read_groups<ColumnIntervals>(mask, open_group);
    case MaskFormat::dense:
      return read_groups<DenseBits>(mask, open_group);
  }
  return Error{ErrorCode::internal, "a mask of no known format"};
}

}  // namespace fdma::io
