// FlashMask: the column-wise mask of PaddlePaddle's flashmask_attention, on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// The argument startend_row_indices and the flag that says how to read it. The columns of the
/// array are those that its line names, in the order LTS, LTE, UTS, UTE. Key j is masked for rows
/// i:
///
///   causal, 1 column       i >= LTS, or j > i + kv_len - q_len
///   causal, 2 columns      LTS <= i < LTE, or j > i + kv_len - q_len
///   not causal, 2 columns  i >= LTS, or i < UTE
///   not causal, 4 columns  LTS <= i < LTE, or UTS <= i < UTE
///
/// Example     causal documents of 2 and 3 tokens: causal, 1 column, {2, 2, 5, 5, 5}
/// Shapes      indices [num_batches, num_heads, kv_len, num_columns], each in [0, q_len]
/// Invariants  none are assumed: block_mask_from_flash_mask checks everything
/// Owner       owns its array
struct FlashMask {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t num_batches = 1;
  std::int64_t num_heads = 1;  ///< 1, the number of KV heads or the number of query heads
  bool is_causal = true;
  std::int64_t num_columns = 1;
  std::vector<std::int32_t> indices;
  friend bool operator==(const FlashMask&, const FlashMask&) = default;
};

struct FlashMaskExportOptions {
  std::optional<bool> is_causal;            ///< default: causal if that can hold the mask
  std::optional<std::int64_t> num_columns;  ///< default: as few as can hold it
};

/// The array of this mask. Equal masks give equal arrays: intervals ascend
/// (UTS <= UTE <= LTS <= LTE, which the kernels' backward skips best), absent intervals are [0, 0)
/// and [q_len, q_len), and the LTS of a key that no row sees is as small as it can be.
///
/// Errors      unsupported: a key's masked rows are more intervals than the form has (the message
///             names the first such key), or lengths differ by batch element
///             invalid_argument: options
/// Cost        O(pairs * kv_len), and the conversion to columns
Result<FlashMask> flash_mask_from_block_mask(const BlockMask& mask,
                                             const FlashMaskExportOptions& options = {});

/// The mask of this array. Query head h reads head h / (num_heads / mask.num_heads) of the array;
/// num_heads 0 means the array's number.
///
/// Errors      shape_mismatch (extents, num_heads no multiple), invalid_argument (columns, an index
///             outside [0, q_len], block)
/// Cost        O(pairs * kv_len), and the conversion to segments
Result<BlockMask> block_mask_from_flash_mask(const FlashMask& mask, BlockShape block = {},
                                             std::int64_t num_heads = 0);

}  // namespace fdma
