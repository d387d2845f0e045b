// What the forward kernel is launched with, and where things lie in its shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "sm90/device_plan.hpp"

namespace fdma::sm90 {

/// Arguments of one launch. Strides in elements.
struct ForwardParams {
  CUtensorMap q;        ///< boxes of 64 rows
  CUtensorMap k, v;     ///< boxes of 128 rows
  CUtensorMap out_map;  ///< boxes of 64 rows
  PlanArrays plan;
  std::int32_t* next_item;  ///< items taken beyond the first of each block; 0 at launch
  std::int32_t group_size;  ///< query heads of a KV head
  std::int32_t v_rows;      ///< extent of V along keys: what lies past it reads as 0
  std::int32_t out_rows;    ///< extent of out along queries: what lies past it is not written
  float scale_log2;         ///< softmax scale times log2(e)
  void* out;
  std::int64_t out_batch_stride, out_row_stride, out_head_stride;
  float* lse;  ///< or null
  std::int64_t lse_batch_stride, lse_head_stride, lse_row_stride;
  const float* key_bias;  ///< or null; read by the general kernel only
  std::int64_t bias_batch_stride, bias_head_stride;
};

inline constexpr int kTileRows = 128;
inline constexpr int kTileKeys = 128;
inline constexpr int kHalfRows = 64;  ///< of one of the two warpgroups that compute
inline constexpr int kForwardThreads = 384;
inline constexpr int kComputeWarps = 8;
inline constexpr int kMaskWarps = 2;

inline constexpr std::int32_t kNoItem = -1;  ///< in place of an item after the last

/// A work item as the loading thread publishes it to the other warps.
struct alignas(16) PublishedItem {
  std::int32_t num_tiles;  ///< at least 1, or kNoItem
  std::int32_t q_begin;    ///< first query row
  std::int32_t head;
  std::int32_t batch;
  std::int32_t q_len;
  std::int32_t kv_len;
  std::int32_t first_segment;
  std::int32_t num_segments;
  std::int32_t step;
};

/// Byte offsets in shared memory, from a 1024-aligned base.
///
/// Q is double-buffered: the output of an item leaves through its Q buffer while the Q of the next
/// is there already. Mask words have a ring of their own, of tiles that need them only.
template <int kHeadDim>
struct ForwardLayout {
  static constexpr int kQBuffers = 2;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 2;
  static constexpr int kMaskSlots = 3 * kMaskWarps;
  static constexpr int kItemSlots = 2;
  static constexpr int kItemBytes = 64;
  static constexpr int kQBytes = kTileRows * kHeadDim * 2;
  static constexpr int kTileBytes = kTileKeys * kHeadDim * 2;
  static constexpr int kMaskBytes = kTileRows * kTileKeys / 8;
  static constexpr int kBiasBytes = kTileKeys * 4;

  static constexpr int kQ = 0;
  static constexpr int kK = kQ + kQBuffers * kQBytes;
  static constexpr int kV = kK + kStages * kTileBytes;
  static constexpr int kMask = kV + kStages * kTileBytes;
  static constexpr int kBias = kMask + kMaskSlots * kMaskBytes;
  static constexpr int kItem = kBias + kMaskSlots * kBiasBytes;
  static constexpr int kIsMasked =
      kItem + kItemSlots * kItemBytes;  ///< one word a stage: the tile has mask words
  static constexpr int kBarriers = kIsMasked + 16;

  // Barriers, 8 bytes each.
  static constexpr int kQFull = kBarriers;
  static constexpr int kQEmpty = kQFull + 8 * kQBuffers;
  static constexpr int kKFull = kQEmpty + 8 * kQBuffers;
  static constexpr int kKEmpty = kKFull + 8 * kStages;
  static constexpr int kVFull = kKEmpty + 8 * kStages;
  static constexpr int kVEmpty = kVFull + 8 * kStages;
  /// Of each stage and mask warp: loaded, and this warp has to zero its tail.
  static constexpr int kVTail = kVEmpty + 8 * kStages;
  static constexpr int kMaskFull = kVTail + 8 * kStages * kMaskWarps;
  static constexpr int kMaskEmpty = kMaskFull + 8 * kMaskSlots;
  static constexpr int kOutFull = kMaskEmpty + 8 * kMaskSlots;  ///< of each half
  static constexpr int kItemFull = kOutFull + 8 * 2 * kQBuffers;
  static constexpr int kItemEmpty = kItemFull + 8 * kItemSlots;
  static constexpr int kEnd = kItemEmpty + 8 * kItemSlots;

  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = kEnd + kAlignment;  ///< to ask for at launch
  static_assert(sizeof(PublishedItem) <= kItemBytes && kStages <= 4);
  static_assert(kBytes <= 232448, "a block has 227 KB");
};

/// The first of two named barriers: whose turn it is to issue products.
inline constexpr int kOrderBarrier = 1;

}  // namespace fdma::sm90
