// HfMask: the four-dimensional attention mask of Hugging Face models, on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// attention_mask [batch, heads or 1, query rows, keys] in either of two forms:
///
///   boolean   true attends, as in scaled_dot_product_attention; 0 and 1 as uint8 or int8 likewise
///   additive  float16, bfloat16, float32 or float64, added to the scores: 0 attends; -inf and
///             finfo(dtype).min do not, nor does the lowest finite number of a narrower type (a
///             mask that was widened)
///
/// Any other value is an error, so that masks of the wrong polarity (1 and 0 as floats) and biases
/// are not taken for masks.
///
/// Example     causal, 2 x 2, float32: {0, -3.4028235e38, 0, 0}
/// Shapes      values [num_batches, num_heads, q_len, kv_len], contiguous
/// Invariants  none are assumed: block_mask_from_hf_mask checks everything
/// Owner       owns its array
struct HfMask {
  std::int64_t num_batches = 1;
  std::int64_t num_heads = 1;
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  DType dtype = DType::boolean;
  std::vector<std::byte> values;
  friend bool operator==(const HfMask&, const HfMask&) = default;
};

struct HfMaskExportOptions {
  DType dtype = DType::boolean;  ///< boolean, or a float type for the additive form
  bool use_infinity = false;     ///< additive: -inf instead of finfo(dtype).min
  std::int64_t max_bytes = std::int64_t{1} << 34;
};

/// The array of this mask.
///
/// Errors      unsupported (lengths differ by batch element), invalid_argument (dtype),
///             out_of_memory
/// Cost        O(array)
Result<HfMask> hf_mask_from_block_mask(const BlockMask& mask,
                                       const HfMaskExportOptions& options = {});

/// The mask of this array. An array of one head can be spread over num_heads; 0 means the array's
/// number.
///
/// Errors      shape_mismatch (extents, num_heads); invalid_argument: dtype, lengths, block, a
///             value that no form has, with its place
/// Cost        O(array), one (batch, head) pair at a time; q_len * kv_len / 8 bytes of memory
Result<BlockMask> block_mask_from_hf_mask(const HfMask& mask, BlockShape block = {},
                                          std::int64_t num_heads = 0);

}  // namespace fdma
