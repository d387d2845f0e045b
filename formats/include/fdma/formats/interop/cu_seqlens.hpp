// CuSeqlens: sequences of different lengths one after another, as FlashAttention's varlen functions
// take them, on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// Arguments cu_seqlens_q, cu_seqlens_k, causal, window_size (left, right), seqused_q and seqused_k
/// of flash_attn_varlen_func. Sequence b has query rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]) and
/// keys likewise; what belongs to different sequences never meets. In a sequence of sq rows and sk
/// keys row i sees the keys
///
///   i + sk - sq - left <= j <= i + sk - sq + right,   -1: no bound on that side; causal: right = 0
///
/// so that the last row meets the last key. seqused says how many of a sequence's rows and keys are
/// in use, from its first: sq and sk are then these numbers, the rest sees and is seen by nothing.
///
/// Example     causal documents of 2 and 3 tokens: cu_seqlens_q = cu_seqlens_k = {0, 2, 5}, causal
/// Shapes      cu_seqlens [sequences + 1], from 0, ascending (equal: an empty sequence); seqused
///             [sequences]
/// Invariants  none: block_mask_from_cu_seqlens checks everything
/// Owner       owns its arrays
struct CuSeqlens {
  std::vector<std::int32_t> cu_seqlens_q;
  std::vector<std::int32_t> cu_seqlens_k;
  bool is_causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::optional<std::vector<std::int32_t>> seqused_q;
  std::optional<std::vector<std::int32_t>> seqused_k;
  /// What the mask is: one batch element that holds all sequences, as they lie in memory, or one
  /// batch element per sequence, each with its own lengths.
  bool is_packed = true;
  std::int64_t num_heads = 1;  ///< FlashAttention has one mask for all heads
  friend bool operator==(const CuSeqlens&, const CuSeqlens&) = default;
};

/// The arguments of this mask, in one form for equal masks: a mask of one batch element is packed
/// (as few sequences as see each other; rows and keys that nothing meets join one of them where
/// that changes nothing, and are sequences of rows or keys alone elsewhere), of several one
/// sequence each; windows are open where that is the same, and right = 0 is causal.
///
/// Errors      unsupported: no window over sequences has these cells (the first cell that does not
///             fit is named), heads that differ
/// Cost        O(query rows * intervals per row)
Result<CuSeqlens> cu_seqlens_from_block_mask(const BlockMask& mask);

/// The mask of these arguments.
///
/// Errors      shape_mismatch (extents); invalid_argument: offsets that do not ascend from 0, a
///             count outside its sequence, a window below -1, block
/// Cost        O(sequences), and the conversion to segments: runs that move in step stay in step
Result<BlockMask> block_mask_from_cu_seqlens(const CuSeqlens& sequences, BlockShape block = {});

}  // namespace fdma
