// HfPadding: the two-dimensional attention_mask of Hugging Face tokenizers, on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// attention_mask [batch, keys], 1 for tokens and 0 for padding on either side or anywhere else,
/// and the way models apply it. Row q of batch element b sees key k iff attention_mask[b, k] = 1
/// and, in a decoder, k <= q + kv_len - q_len (the rows are the last q_len positions). Rows of
/// padding are not masked. A row that sees nothing stays so.
///
/// Example     "two tokens" padded on the left to three, decoder: attention_mask {0, 1, 1}, q_len
///             3, causal; row 0 sees nothing
/// Shapes      attention_mask [num_batches, kv_len], 0 or 1
/// Invariants  none are assumed: block_mask_from_hf_padding checks everything
/// Owner       owns its array
struct HfPadding {
  std::int64_t num_batches = 1;
  std::int64_t num_heads = 1;  ///< one mask for all heads
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  bool is_causal = false;
  std::vector<std::uint8_t> attention_mask;
  friend bool operator==(const HfPadding&, const HfPadding&) = default;
};

/// The array of this mask, not causal if that holds the mask. Keys that no row can see are 1 iff
/// there are no query rows.
///
/// Errors      unsupported: neither form, or not the form that is_causal asks for, has these cells
///             (the message names the first cell that does not fit); heads or lengths differ
/// Cost        O(num_batches * kv_len), and two conversions
Result<HfPadding> hf_padding_from_block_mask(const BlockMask& mask,
                                             std::optional<bool> is_causal = std::nullopt);

/// The mask of this array.
///
/// Errors      shape_mismatch (extents), invalid_argument (lengths, counts, a value that is neither
///             0 nor 1, block)
/// Cost        O(num_batches * kv_len), and the conversion to segments
Result<BlockMask> block_mask_from_hf_padding(const HfPadding& padding, BlockShape block = {});

}  // namespace fdma
