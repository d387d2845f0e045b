// Arguments of the forward kernel and the layout of its shared memory. Host code fills
// ForwardParams; the layout is shared with device code.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "call/strided_views.hpp"
#include "cuda/dropout_params.hpp"
#include "cuda/key_rows.hpp"
#include "cuda/partials.hpp"
#include "cuda/plan_arrays.hpp"
#include "cuda/tile_rows.hpp"
#include "cuda/work_tile.hpp"
#include "sm90/shared/fragment.hpp"
#include "sm90/shared/neutral.hpp"

namespace fdma::sm90 {

/// Arguments of one launch. Strides in elements.
struct ForwardParams {
  static constexpr bool kIsTransposed = false;  ///< rows of tiles are queries
  CUtensorMap q;                                ///< boxes of 64 rows
  CUtensorMap k, v;                             ///< boxes of the keys of a step
  CUtensorMap out_map;                          ///< boxes of 64 rows
  PlanArrays plan;
  RunTimeLengths lengths;
  const TileRow* tile_rows;  ///< tile rows of a closed-form plan, in the order of order_tile_rows
  /// Work tiles taken beyond each block's first; 0 at launch and at the end
  std::int32_t* next_work_tile;
  std::int32_t group_size;  ///< query heads per KV head
  std::int32_t head_dim_v;
  /// Extent of V along keys: rows past it read as 0
  std::int32_t v_rows;
  /// Extent of out along queries: rows past it are not written
  std::int32_t out_rows;
  float scale_log2;  ///< softmax scale times log2(e)
  void* out;
  /// Or null: the low half of out, at the same offsets as out's elements
  void* out_low;
  TensorStrides out_strides;
  QueryValues<float> lse;           ///< or null
  KeyValues<const float> key_bias;  ///< or null; read by the bias kernel only
  float* partial_out;               ///< partial results of split rows [partial, 128, head_dim_v]
  float* partial_lse;               ///< [partial, 128]
  // Read by the gathering kernels only.
  KvIndexArrays gather;
  KeyRows k_gather, v_gather;
  // Keys and values in their permuted order (permute_kv.hpp).
  CUtensorMap permuted_k, permuted_v;
  const float* permuted_bias;  ///< [batch, heads_kv, max_permuted_keys]
  std::int64_t max_permuted_keys;
  PairValues<const void> sinks;  ///< or null: a value of each row, float32 or of q's type
  DropoutParams dropout;
};

/// The keys of the last index tile of a kv index list are copied by this many at a time
inline constexpr int kCopyKeys = 32;
inline constexpr int kForwardThreads = 384;
inline constexpr int kGatherWarps = 4;  ///< additional warps of the gathering kernels
inline constexpr int kGatherThreads = 32 * kGatherWarps;
inline constexpr int kComputeWarps = 8;
inline constexpr int kMaskWarps = 2;

inline constexpr int kMaxBlockBytes = 232448;  ///< of shared memory

/// Byte offsets in shared memory, from a 1024-aligned base, of the kernel for head_dim up to kDimQk
/// and head_dim_v up to kDimV.
///
/// With two Q buffers the output of a work tile leaves through its Q buffer while the Q of the next
/// work tile is already there. With one Q buffer (head_dim above 128, where shared memory has no
/// room for two) Q of the next work tile is loaded once the last scores of this one are computed,
/// and outputs are written from registers. Tiles of 128 keys are computed in steps of kStepKeys
/// keys. Mask fragments have a ring of their own, which holds only the tiles that need them.
template <int kDimQk, int kDimV>
struct ForwardLayout {
  static constexpr int kPanelsQk = (kDimQk + 63) / 64;
  static constexpr int kPanelsV = (kDimV + 63) / 64;
  static constexpr int kStepKeys = kDimV > 128 ? 64 : 128;
  static constexpr int kSteps = kTileKeys / kStepKeys;  ///< steps of a tile
  static constexpr int kQBuffers = kDimQk > 128 ? 1 : 2;
  /// Outputs of 256 columns leave no registers for it
  static constexpr bool kOverlapsWorkTiles = kDimV <= 128;
  static constexpr int kStages = kDimQk == 64 ? 4 : 2;
  static constexpr int kMaskSlots = 3 * kMaskWarps;
  static constexpr int kWorkTileSlots = 2;
  /// Layout of a work tile slot: BroadcastTile, then in closed-form plans ClosedFormBand and
  /// segments.
  static constexpr int kWorkTileBand = 64;
  /// in the same place, in gathering kernels
  static constexpr int kWorkTileGather = kWorkTileBand;
  static constexpr int kWorkTileSegments = kWorkTileBand + static_cast<int>(sizeof(ClosedFormBand));
  static constexpr int kSegmentBytes = kMaxOwnSegments * static_cast<int>(sizeof(PlanSegment));
  static constexpr int kWorkTileSlotBytes = kWorkTileSegments + (kSegmentBytes + 15) / 16 * 16;
  static constexpr int kPanelBytesQ = kHalfRows * 128;  ///< one panel of a half
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
  /// One word per stage (step_word): whether the tile has mask fragments.
  static constexpr int kStepWords = kItem + kWorkTileSlots * kWorkTileSlotBytes;
  static constexpr int kBarriers = kStepWords + 16;

  // Barriers, 8 bytes each.
  static constexpr int kQFull = kBarriers;
  static constexpr int kQEmpty = kQFull + 8 * kQBuffers;
  static constexpr int kKFull = kQEmpty + 8 * kQBuffers;
  static constexpr int kKEmpty = kKFull + 8 * kStages;
  static constexpr int kVFull = kKEmpty + 8 * kStages;
  static constexpr int kVEmpty = kVFull + 8 * kStages;
  /// One for each stage and mask warp: V has been loaded, and this warp has to zero its tail.
  static constexpr int kVTail = kVEmpty + 8 * kStages;
  static constexpr int kMaskFull = kVTail + 8 * kStages * kMaskWarps;
  static constexpr int kMaskEmpty = kMaskFull + 8 * kMaskSlots;
  static constexpr int kOutFull = kMaskEmpty + 8 * kMaskSlots;  ///< one for each half
  static constexpr int kWorkTileFull = kOutFull + 8 * 2 * kQBuffers;
  static constexpr int kWorkTileEmpty = kWorkTileFull + 8 * kWorkTileSlots;
  static constexpr int kEnd = kWorkTileEmpty + 8 * kWorkTileSlots;

  /// In gathering kernels for bfloat16: the biases of a slot's keys as terms (bias_terms.cuh), and
  /// after the last slot an equal number of zeros.
  static constexpr int kTermBytes = kTileKeys * 16;
  static constexpr int kTerms = (kEnd + 127) / 128 * 128;
  static constexpr int kTermZeros = kTerms + kMaskSlots * kTermBytes;

  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = kEnd + kAlignment;  ///< requested at launch
  static constexpr int kBytesWithTerms = kTermZeros + kTermBytes + kAlignment;
  static_assert(sizeof(BroadcastTile) <= kWorkTileBand && kStages <= 4 && kItem % 16 == 0);
  static_assert(kQBuffers == 1 || kPanelsV <= kPanelsQk, "outputs leave through Q's buffer");
  static_assert(kBytes <= kMaxBlockBytes && (kDimQk > 128 || kBytesWithTerms <= kMaxBlockBytes));
};

/// The first of two named barriers, which order the issue of products between the two warpgroups.
inline constexpr int kOrderBarrier = 1;

}  // namespace fdma::sm90
