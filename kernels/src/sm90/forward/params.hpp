// What the forward kernel is launched with, and where things lie in its shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/device_plan.hpp"
#include "cuda/key_rows.hpp"
#include "cuda/tile_rows.hpp"

namespace fdma::sm90 {

/// Arguments of one launch. Strides in elements.
struct ForwardParams {
  static constexpr bool kIsTransposed = false;  ///< rows of tiles are queries
  CUtensorMap q;                                ///< boxes of 64 rows
  CUtensorMap k, v;                             ///< boxes of the keys of a step
  CUtensorMap out_map;                          ///< boxes of 64 rows
  PlanArrays plan;
  RunTimeLengths lengths;
  const TileRow* tile_rows;  ///< of a parametric plan, in the order of order_tile_rows
  std::int32_t* next_item;   ///< items taken beyond each block's first; 0 at launch and at the end
  std::int32_t group_size;   ///< query heads of a KV head
  std::int32_t head_dim_v;
  std::int32_t v_rows;    ///< extent of V along keys: what lies past it reads as 0
  std::int32_t out_rows;  ///< extent of out along queries: what lies past it is not written
  float scale_log2;       ///< softmax scale times log2(e)
  void* out;
  void* out_residual;  ///< or null: what rounding took from out, in the places of out's elements
  std::int64_t out_batch_stride, out_row_stride, out_head_stride;
  float* lse;  ///< or null
  std::int64_t lse_batch_stride, lse_head_stride, lse_row_stride;
  const float* key_bias;  ///< or null; read by the general kernel only
  std::int64_t bias_batch_stride, bias_head_stride;
  float* partial_out;  ///< of split rows [partial, 128, head_dim_v]
  float* partial_lse;  ///< [partial, 128]
  // Read by the gathering kernels only.
  GatherArrays gather;
  KeyRows k_gather, v_gather;
  // Of moved keys (permute_kv.hpp).
  CUtensorMap moved_k, moved_v;
  const float* moved_bias;  ///< [batch, heads_kv, max_moved_keys]
  std::int64_t max_moved_keys;
};

inline constexpr int kTileRows = 128;
inline constexpr int kTileKeys = 128;
inline constexpr int kUnitKeys = 32;  ///< last chunks of gather lists have whole units
inline constexpr int kHalfRows = 64;  ///< of one of the two warpgroups that compute
inline constexpr int kForwardThreads = 384;
inline constexpr int kGatherWarps = 4;  ///< that the gathering kernels have besides
inline constexpr int kGatherThreads = 32 * kGatherWarps;
inline constexpr int kComputeWarps = 8;
inline constexpr int kMaskWarps = 2;

inline constexpr std::int32_t kNoItem = -1;  ///< in place of an item after the last

/// A work item as the loading thread publishes it to the other warps.
struct alignas(16) PublishedItem {
  std::int32_t num_tiles;  ///< at least 1, or kNoItem
  std::int32_t q_begin;    ///< first query row
  std::int32_t head;       ///< of several the first
  std::int32_t batch;
  std::int32_t q_len;
  std::int32_t kv_len;         ///< of the keys that its tiles count
  std::int32_t first_segment;  ///< of the plan, or kOwnSegments
  std::int32_t num_segments;
  std::int32_t step;
  std::int32_t first_tile;                     ///< tiles of its segments that are another item's
  std::int32_t partial;                        ///< where it leaves its result, or kWholeRow
  std::int32_t first_document, last_document;  ///< of its rows; parametric plans. Or kMovedKeys
  std::int32_t kv_head;
  std::int32_t head_in_group;  ///< head - kv_head * group_size
  std::int32_t num_heads;      ///< that share the tile and exist
};

/// In place of a first document (-1 is that of rows before the first): tiles count moved keys.
inline constexpr std::int32_t kMovedKeys = -2;

inline constexpr int kMaxBlockBytes = 232448;  ///< of shared memory

/// In place of a first segment: they lie behind the item in shared memory.
inline constexpr std::int32_t kOwnSegments = -1;
inline constexpr int kMaxOwnSegments = 6;

/// Byte offsets in shared memory, from a 1024-aligned base, of the kernel for head_dim up to
/// kDimQk and head_dim_v up to kDimV.
///
/// With two Q buffers the output of an item leaves through its Q buffer while the Q of the next is
/// there already; where there is room for one only, Q of the next item comes when the last scores
/// of this one are computed, and outputs are written from registers. Tiles of 128 keys are computed
/// in steps of kStepKeys. Mask words have a ring of their own, of tiles that need them only.
template <int kDimQk, int kDimV>
struct ForwardLayout {
  static constexpr int kPanelsQk = (kDimQk + 63) / 64;
  static constexpr int kPanelsV = (kDimV + 63) / 64;
  static constexpr int kStepKeys = kDimV > 128 ? 64 : 128;
  static constexpr int kSteps = kTileKeys / kStepKeys;  ///< of a tile
  static constexpr int kQBuffers = kDimQk > 128 ? 1 : 2;
  static constexpr bool kOverlapsItems = kDimV <= 128;  ///< outputs of 256 leave no registers
  static constexpr int kStages = kDimQk == 64 ? 4 : 2;
  static constexpr int kMaskSlots = 3 * kMaskWarps;
  static constexpr int kItemSlots = 2;
  /// A slot of an item: PublishedItem; of a parametric plan FormulaBand and segments.
  static constexpr int kItemBand = 64;
  static constexpr int kItemGather = kItemBand;  ///< in its place, of gathering kernels
  static constexpr int kItemSegments = kItemBand + static_cast<int>(sizeof(FormulaBand));
  static constexpr int kSegmentBytes = kMaxOwnSegments * static_cast<int>(sizeof(PlanSegment));
  static constexpr int kItemSlotBytes = kItemSegments + (kSegmentBytes + 15) / 16 * 16;
  static constexpr int kPanelBytesQ = kHalfRows * 128;  ///< of a half
  static constexpr int kPanelBytesKey = kStepKeys * 128;
  static constexpr int kQBytes = 2 * kPanelsQk * kPanelBytesQ;
  static constexpr int kKBytes = kPanelsQk * kPanelBytesKey;
  static constexpr int kVBytes = kPanelsV * kPanelBytesKey;
  static constexpr int kMaskBytes = kTileRows * kTileKeys / 8;
  static constexpr int kBiasBytes = kTileKeys * 4;

  static constexpr int kQ = 0;
  static constexpr int kK = kQ + kQBuffers * kQBytes;
  static constexpr int kV = kK + kStages * kKBytes;
  static constexpr int kMask = kV + kStages * kVBytes;
  static constexpr int kBias = kMask + kMaskSlots * kMaskBytes;
  static constexpr int kItem = kBias + kMaskSlots * kBiasBytes;
  static constexpr int kIsMasked =
      kItem + kItemSlots * kItemSlotBytes;  ///< one word a stage: the tile has mask words
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

  /// Of gathering kernels for bfloat16: the biases of a slot's keys as terms (bias_terms.cuh), and
  /// as many zeros behind the last.
  static constexpr int kTermBytes = kTileKeys * 16;
  static constexpr int kTerms = (kEnd + 127) / 128 * 128;
  static constexpr int kTermZeros = kTerms + kMaskSlots * kTermBytes;

  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = kEnd + kAlignment;  ///< to ask for at launch
  static constexpr int kBytesWithTerms = kTermZeros + kTermBytes + kAlignment;
  static_assert(sizeof(PublishedItem) <= kItemBand && kStages <= 4 && kItem % 16 == 0);
  static_assert(kQBuffers == 1 || kPanelsV <= kPanelsQk, "outputs leave through Q's buffer");
  static_assert(kBytes <= kMaxBlockBytes && (kDimQk > 128 || kBytesWithTerms <= kMaxBlockBytes));
};

/// The first of two named barriers: whose turn it is to issue products.
inline constexpr int kOrderBarrier = 1;

}  // namespace fdma::sm90
