// The parts of class _fdma.BlockMask. Each function is in a file of its own and adds some methods.
#pragma once

#include <nanobind/nanobind.h>

#include "fdma/formats/block_mask.hpp"

namespace fdma::python {

using BlockMaskClass = nanobind::class_<BlockMask>;

/// to_dense, from_dense: cells as arrays.
void bind_mask_cells(nanobind::module_& module, BlockMaskClass& mask);

/// to_columns, from_columns: the query intervals of each key as arrays.
void bind_mask_columns(BlockMaskClass& mask);

/// group_of, arrays, from_arrays, stored_array_specs: the arrays that files and pickles hold.
void bind_mask_arrays(nanobind::module_& module, BlockMaskClass& mask);

/// difference_from and the class of its result.
void bind_mask_difference(nanobind::module_& module, BlockMaskClass& mask);

/// The batch elements [batch_begin, batch_end) and heads [head_begin, head_end) of a mask, in the
/// mask's own format. Errors: invalid_argument for an empty range or one outside the mask.
BlockMask select_pairs(const BlockMask& mask, std::int64_t batch_begin, std::int64_t batch_end,
                       std::int64_t head_begin, std::int64_t head_end);

/// One mask with the batch elements of all `masks` in order. The masks must have the same format,
/// block and number of heads. Errors: invalid_argument, shape_mismatch.
BlockMask stack_batches(const std::vector<const BlockMask*>& masks);

/// The mask in another format, with its spec. Returns the mask itself if nothing changes.
BlockMask convert_keeping_spec(BlockMask mask, MaskFormat format, BlockShape block);

}  // namespace fdma::python
