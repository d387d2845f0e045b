// CuSeqlens: concatenated sequences of different lengths, as FlashAttention's varlen functions take
// them, on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// The arguments cu_seqlens_q, cu_seqlens_k, causal, window_size (left, right), seqused_q and
/// seqused_k of flash_attn_varlen_func. Sequence b has query rows
/// [cu_seqlens_q[b], cu_seqlens_q[b + 1]) and keys likewise. Rows do not see keys of another
/// sequence. In a sequence of sq rows and sk keys row i sees the keys
///
///   i + sk - sq - left <= j <= i + sk - sq + right
///
/// so that the last row meets the last key. -1 means no bound on that side; causal means right = 0.
/// seqused gives the number of rows and keys of a sequence that are in use, from its first. sq and
/// sk are then these numbers; the other rows see no key, the other keys are seen by no row.
///
/// Example     causal documents of 2 and 3 tokens: cu_seqlens_q = cu_seqlens_k = {0, 2, 5}, causal
/// Shapes      cu_seqlens [sequences + 1], from 0, ascending (equal: an empty sequence)
///             seqused    [sequences]
/// Invariants  none are assumed: block_mask_from_cu_seqlens checks everything
/// Owner       owns its arrays
struct CuSeqlens {
  std::vector<std::int32_t> cu_seqlens_q;
  std::vector<std::int32_t> cu_seqlens_k;
  bool is_causal = false;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::optional<std::vector<std::int32_t>> seqused_q;
  std::optional<std::vector<std::int32_t>> seqused_k;
  /// True: the mask has one batch element that holds all sequences as they lie in memory. False: it
  /// has one batch element per sequence, each with its own lengths.
  bool is_packed = true;
  std::int64_t num_heads = 1;  ///< of the mask; FlashAttention has one mask for all heads
  friend bool operator==(const CuSeqlens&, const CuSeqlens&) = default;
};

/// The arguments of this mask. Equal masks give equal arguments:
///   a mask of one batch element is packed, into as few sequences as see each other; rows and keys
///   that meet nothing join one of these where that changes no cell, and otherwise are sequences of
///   rows or of keys alone
///   a mask of several batch elements has one sequence for each
///   a window is open on a side where a bound changes no cell, and right = 0 is causal
///
/// Errors      unsupported: no window over sequences has these cells (the message names the first
///             cell that does not fit), or heads differ
/// Cost        O(query rows * intervals per row)
Result<CuSeqlens> cu_seqlens_from_block_mask(const BlockMask& mask);

/// The mask of these arguments.
///
/// Errors      shape_mismatch (extents); invalid_argument: offsets that do not ascend from 0, a
///             count outside its sequence, a window below -1, block
/// Cost        O(sequences), and the conversion to segments; runs that move in step stay in step
Result<BlockMask> block_mask_from_cu_seqlens(const CuSeqlens& sequences, BlockShape block = {});

}  // namespace fdma
