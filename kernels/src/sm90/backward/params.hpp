// Arguments of the main backward kernel, the words its warps exchange, and the layout of shared
// memory.
//
// A backward plan is the plan of the transposed mask: its rows are keys, its columns are queries.
// In code shared with the forward kernel (TilePlace, mask fragments) a query therefore means a row
// of the plan, and a key means a column. Tile groups have names of their own (cuda/work_tile.hpp).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "call/strided_views.hpp"
#include "cuda/dropout_params.hpp"
#include "cuda/query_places.hpp"
#include "cuda/rows_view.hpp"
#include "fdma/kernels/kv_worklist.hpp"
#include "sm90/forward/params.hpp"
#include "sm90/shared/fragment.hpp"

namespace fdma::sm90 {

/// The kv worklist of a launch over worklist keys (plan/kv_worklist.hpp) in device memory. An uploaded
/// plan holds it, or kernels before the launch make it.
///
/// If a key has a row of fp32 accumulators, its gradients (dk without the softmax scale) are added
/// to row first_accum_row + accum_row, which is zero at launch or cleared by ZeroFill. For other
/// keys the rows of dk and dv are written, and dkey_bias if it is wanted. Rows of keys that are not
/// listed are not touched. Kernels before and after the launch zero them and move accumulators to
/// dk and dv. dkey_bias is zeroed before and added to in place, unless it has accumulators.
struct KvWorklistArrays {
  const WorklistEntry* keys;
  const KvWorkTile* work_tiles;        ///< in the order in which blocks take them
  const std::int32_t* num_work_tiles;  ///< may be 0
  float* dk_accum;                     ///< [rows, kDimQk]
  float* dv_accum;                     ///< [rows, kDimV]
  float* dbias_accum;                  ///< [rows], or null: added to dkey_bias at once
  KeyRows k, v;
  /// Only in deterministic calls: for each work tile its first entry of positions, and for each
  /// tile that a work tile visits the number of earlier work tiles of its KV head that visit the
  /// same tile. At most two entries share a row.
  const std::int32_t* first_positions;
  const std::int32_t* positions;
};

/// Chunks of a KV head's accumulators: how many are taken to be zeroed, and how many are zero.
struct alignas(8) ZeroFillCounters {
  std::int32_t next, done;
};

/// Zero fill by the main kernel (zero_fill.cuh), in ordinary calls over tile groups that are
/// grouped by KV head (a row: batch * heads_kv + kv_head), with rows in ascending order. The
/// accumulators of dQ and of worklist keys then need not be zero at launch, except those of the
/// first row.
struct ZeroFill {
  ZeroFillCounters* counters;  ///< [num_rows], 0 at launch; or null: accumulators are zero
  /// [num_rows]: accumulator rows of worklist keys; or null: none
  const std::int32_t* num_accum_rows;
  std::int64_t accum_rows_of_head;  ///< distance from the accumulators of one KV head to the next
  std::int32_t num_rows;
  std::int32_t heads_kv;
};

/// Arguments of the main kernel.
struct BackwardParams {
  static constexpr bool kIsTransposed = true;  ///< rows of tiles are keys
  CUtensorMap q, dout;                         ///< boxes of the queries of a step
  CUtensorMap k, v;                            ///< boxes of the keys of a block
  PlanArrays plan;
  RunTimeLengths lengths;
  TileRow* tile_rows;             ///< of a closed-form plan, or null
  std::int32_t* next_tile_group;  ///< tile groups taken beyond the first of each block; 0 at launch
  QueryPlaces places;
  std::int32_t group_size;  ///< query heads of a KV head
  std::int32_t head_dim, head_dim_v;
  std::int32_t q_rows, dout_rows, k_rows, v_rows;  ///< extents: rows past them read as 0
  float scale, scale_log2;                         ///< softmax scale; times log2(e)
  RowsView dk, dv;
  KeyValues<const float> key_bias;  ///< or null; read by the bias kernel only
  KeyValues<float> dkey_bias;       ///< or null; bias kernel only
  /// The dQ semaphore of deterministic calls, or null: for each 64 rows of dQ the number of
  /// contributions that have been added, by each of the two warpgroups or (kAddsInBulk) by both
  /// together. Plan, tile rows or lists then have an accumulation order. Where dQ is not added in
  /// bulk, only the bias kernel reads it.
  std::int32_t* dq_semaphores;
  /// of a closed-form plan: [batch, padded_q_len / kTileKeys]
  const DqSemaphoreOffsets* dq_semaphore_offsets;
  bool walks_down;            ///< walks work tiles from the last query tile to the first
  KvWorklistArrays worklist;  ///< read only by the kernels over worklist keys, which read no plan
  ZeroFill zero_fill;
  DropoutParams dropout;
};

/// What a launch of the main kernel computes.
enum class Gradients : std::uint8_t {
  all,
  values,
  keys,    ///< dK, dQ and the gradient of the bias
  shifts,  ///< none: the correction of D is added to QueryPlaces::missing
};

/// A step of a tile group, as the loading thread describes it to the computing warps.
struct alignas(16) BackwardStep {
  std::int32_t flags;
  std::uint32_t mask;     ///< shared address of its mask fragments, or 0
  std::int32_t sum_tile;  ///< of dq_accum: the first of the step
  std::int32_t position;  ///< deterministic calls: its position in the accumulation order of dQ
  std::int32_t batch, kv_head;
  std::int32_t key_begin;  ///< the first key, or its index in the list
  std::int32_t kv_len;     ///< over worklist keys KvWorkTile::first_accum_row
};
/// the last step that reads these mask fragments
inline constexpr std::int32_t kStepReleasesMask = 1;
inline constexpr std::int32_t kStepIsSecondHalf = 2;  ///< the second half of the words' columns
/// a step without queries: the tile group is done
inline constexpr std::int32_t kStepEndsTileGroup = 4;
inline constexpr std::int32_t kStepEndsAll = 8;  ///< and it was the last
/// Shifted left by 0 or 1: the step has no cell for that computing warpgroup.
inline constexpr std::int32_t kStepIsEmpty = 16;

/// A request of the loading thread to the helper warp: to zero rows past a length that a copy
/// brings along, before they are used; or one of the requests below.
struct alignas(16) HelperTask {
  std::uint32_t tile;       ///< shared address
  std::int32_t num_panels;  ///< of num_rows * 128 bytes each
  std::int32_t first_row, num_rows;
  std::uint32_t full;  ///< the barrier of the tile, at which the helper warp arrives
};
/// Deterministic calls that add in bulk: what the loading thread tells the helper warp of a step of
/// a tile group. It is 64 bits, written and read in one access: the sum tile (the first of the
/// step, or kNoDqPosition if there are no more steps), above it the position, which is less than
/// 2^30, and two bits.
inline constexpr std::int32_t kNoDqPosition = -1;
/// No dQ is added: the counter is only incremented
inline constexpr std::uint32_t kDqStepIsEmpty = 1u << 30;
/// 1 in the first round of the ring, then alternating
inline constexpr std::uint32_t kDqSemaphoreLap = 1u << 31;

/// In place of a tile: take the next tile group; there are no more tile groups; look up the
/// worklist keys of the tile group at address `full`.
inline constexpr std::uint32_t kHelperTaskTileGroup = 1, kHelperTaskEnd = 2, kHelperTaskKeys = 3;

inline constexpr int kLoadWarp = 2, kHelperWarp = 3;  ///< of the first warpgroup

/// Up to this head size dQ of a step goes to memory through shared memory, by bulk reduction.
/// Larger head sizes have no room for it there and add dQ straight from registers.
inline constexpr int kMaxBulkDim = 128;

/// Byte offsets in shared memory, from a 1024-aligned base, of the kernel for head_dim up to kDimQk
/// and head_dim_v up to kDimV.
///
/// A tile group is what one block computes without a break: a tile of 128 keys of a KV head against
/// the queries of all query heads of the group, in steps of kStepQueries queries.
template <int kDimQk_, int kDimV_>
struct BackwardLayout {
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_;
  static constexpr int kPanelsQk = (kDimQk + 63) / 64;
  static constexpr int kPanelsV = (kDimV + 63) / 64;
  static constexpr int kStepQueries = kDimQk == 64 && kDimV == 64 ? 128 : 64;
  static constexpr int kStepsOfTile = kTileKeys / kStepQueries;  ///< a tile has 128 columns
  static constexpr int kTileGroupKeys = kTileRows;
  static constexpr int kStages = kDimQk > 128 ? 1 : 2;
  static constexpr int kMaskSlots = 2 * kMaskWarps;
  static constexpr int kWorkTileSlots = 2;
  static constexpr int kWorkTileBand = 64;
  static constexpr int kWorkTileSegments = kWorkTileBand + static_cast<int>(sizeof(ClosedFormBand));
  static constexpr int kSegmentBytes = kMaxOwnSegments * static_cast<int>(sizeof(PlanSegment));
  static constexpr int kWorkTileSlotBytes = kWorkTileSegments + (kSegmentBytes + 15) / 16 * 16;
  static constexpr int kHelperTaskSlots = 4;
  /// Nobody waits for a slot, because at most 12 are in use. The steps under way are three (the
  /// loading thread waits for the end of the step two before). Before each of them and after the
  /// last there are at most two empty ones. The end takes one.
  static constexpr int kDqPositionSlots = 16;
  static constexpr bool kAddsInBulk = kDimQk <= kMaxBulkDim;
  /// The warpgroups compute dQ of a step alternately, so neither waits for the other at each step.
  static constexpr bool kAlternates = kAddsInBulk && kStepQueries == 64;
  /// of a step
  static constexpr int kDqAccumWarps = kAlternates ? kComputeWarps / 2 : kComputeWarps;
  /// Part of K is kept in registers. Otherwise S^T would read both operands from shared memory,
  /// whose bandwidth would bound it.
  static constexpr bool kHoldsKeys = kDimQk == 128 && kDimV == 128;

  static constexpr int kPanelBytesKey = kTileGroupKeys * 128;
  static constexpr int kPanelBytesQuery = kStepQueries * 128;
  static constexpr int kKBytes = kPanelsQk * kPanelBytesKey;
  static constexpr int kVBytes = kPanelsV * kPanelBytesKey;
  static constexpr int kQBytes = kPanelsQk * kPanelBytesQuery;
  static constexpr int kOBytes = kPanelsV * kPanelBytesQuery;                        ///< of dO
  static constexpr int kScoreBytes = kStepQueries / 64 * kPanelBytesKey;             ///< of dS
  static constexpr int kDqAccumBytes = kAddsInBulk ? kStepQueries * kDimQk * 4 : 0;  ///< of dQ
  static constexpr int kRowBytes = kStepQueries * 4;  ///< of lse and of deltas each
  static constexpr int kMaskBytes = kTileRows * kTileKeys / 8;

  static constexpr int kK = 0;
  static constexpr int kV = kK + kKBytes;
  static constexpr int kQ = kV + kVBytes;
  static constexpr int kO = kQ + kStages * kQBytes;
  static constexpr int kScores = kO + kStages * kOBytes;
  static constexpr int kDqAccum = kScores + kStages * kScoreBytes;
  static constexpr int kLse = kDqAccum + kDqAccumBytes;
  static constexpr int kDeltas = kLse + kStages * kRowBytes;
  static constexpr int kMask = kDeltas + kStages * kRowBytes;
  static constexpr int kStep = kMask + kMaskSlots * kMaskBytes;
  static constexpr int kItem = kStep + kStages * static_cast<int>(sizeof(BackwardStep));
  static constexpr int kHelperTask = kItem + kWorkTileSlots * kWorkTileSlotBytes;
  /// One pair for each computing thread, bias kernel only: dS of its two keys, summed over the
  /// queries.
  static constexpr int kBiasAccum =
      kHelperTask + kHelperTaskSlots * static_cast<int>(sizeof(HelperTask));
  /// Over worklist keys, for successive tile groups: key and accum_row of each, then batch and KV
  /// head; biases times log2(e). When a slot is written, at most the end of the tile group two
  /// before has not been reached.
  static constexpr int kKeySlots = 4;
  static constexpr int kEntryBytes = 8 * kTileGroupKeys + 16, kBiasBytes = 4 * kTileGroupKeys;
  static constexpr int kEntries = kBiasAccum + 8 * 2 * kWarpgroupThreads;
  static constexpr int kBiases = kEntries + kKeySlots * kEntryBytes;
  /// For each mask slot: which quarters have a cell (quarters_with_cells).
  static constexpr int kMaskQuarters = kBiases + kKeySlots * kBiasBytes;
  static constexpr int kDqPositions = kMaskQuarters + (4 * kMaskSlots + 15) / 16 * 16;
  static constexpr int kNumDqSemaphores = kDqPositions + 8 * kDqPositionSlots;
  static constexpr int kTaken = kNumDqSemaphores + 8;  ///< state of DqSemaphoreWaiter
  /// Counters of the helper warp: requests, tile groups, tile groups of worklist keys.
  static constexpr int kServed = kNumDqSemaphores + 16;
  /// The loading thread's last KV head whose accumulators are known to be zero; then the state of
  /// ZeroFillWriter.
  static constexpr int kZeroedRow = kServed + 12, kZeroFillState = kServed + 16;
  /// State of each warp that makes masks, parked while it makes one.
  static constexpr int kMaskWalks = kZeroFillState + 16, kMaskWalkBytes = 48;
  static constexpr int kBarriers = kMaskWalks + kMaskWarps * kMaskWalkBytes;

  // Barriers, 8 bytes each.
  static constexpr int kKFull = kBarriers;
  static constexpr int kVFull = kKFull + 8;
  static constexpr int kKvEmpty = kVFull + 8;
  static constexpr int kQFull = kKvEmpty + 8;
  static constexpr int kQEmpty = kQFull + 8 * kStages;
  static constexpr int kOFull = kQEmpty + 8 * kStages;
  static constexpr int kOEmpty = kOFull + 8 * kStages;
  static constexpr int kMaskFull = kOEmpty + 8 * kStages;
  static constexpr int kMaskEmpty = kMaskFull + 8 * kMaskSlots;
  static constexpr int kWorkTileFull = kMaskEmpty + 8 * kMaskSlots;
  static constexpr int kWorkTileEmpty = kWorkTileFull + 8 * kWorkTileSlots;
  static constexpr int kHelperTaskFull = kWorkTileEmpty + 8 * kWorkTileSlots;
  static constexpr int kHelperTaskEmpty = kHelperTaskFull + 8 * kHelperTaskSlots;
  /// deterministic calls
  static constexpr int kDqAccumFull = kHelperTaskEmpty + 8 * kHelperTaskSlots;
  static constexpr int kDqAccumEmpty = kDqAccumFull + 8;
  static constexpr int kKeysFull = kDqAccumEmpty + 8;  ///< over worklist keys: one for each slot
  static constexpr int kEnd = kKeysFull + 8 * kKeySlots;

  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = kEnd + kAlignment;  ///< requested at launch
  /// Source of zero fills, where the kernel fills with zeros. kBytesWithZeroFill is requested in
  /// place of kBytes then.
  static constexpr int kZeroFill = (kEnd + 127) / 128 * 128;
  static constexpr int kZeroFillBytes = 8192;
  static constexpr int kBytesWithZeroFill = kZeroFill + kZeroFillBytes + kAlignment;
  static_assert(sizeof(BroadcastTile) <= kWorkTileBand && kItem % 16 == 0 && kHelperTask % 16 == 0);
  static_assert((kAddsInBulk ? kBytesWithZeroFill : kBytes) <= 232448, "a block has 227 KB");
};

/// Whether the kernel can zero accumulators.
template <class Layout, Gradients kGradients>
inline constexpr bool kHasZeroFill = kGradients == Gradients::all&& Layout::kAddsInBulk;

/// The layout for Gradients::shifts, whose warpgroups wait for their positions themselves.
template <int kDimQk, int kDimV>
struct ShiftLayout : BackwardLayout<kDimQk, kDimV> {
  static constexpr bool kAddsInBulk = false;
  static constexpr bool kHoldsKeys = false;
};
template <Gradients kGradients, int kDimQk, int kDimV>
using LayoutFor = std::conditional_t<kGradients == Gradients::shifts, ShiftLayout<kDimQk, kDimV>,
                                     BackwardLayout<kDimQk, kDimV>>;

/// k16 steps of K that a launch keeps in registers, and the registers of a loading and of a
/// computing thread: 65536 for 384 threads. The helper warp of worklist keys needs more than 24
/// registers. kTakesMore: a policy asks for places, or the score bends, which
/// takes some of a computing thread.
template <class Layout, class Reader>
inline constexpr int kHeldSteps = Layout::kHoldsKeys && !Reader::kIsListed ? 4 : 0;
template <Gradients kGradients, class Layout, class Reader, bool kTakesMore>
inline constexpr int kBackwardLoadRegisters =
    // Kernels for shifts keep no gradients in registers, and their loading thread also finds
    // positions.
    kGradients == Gradients::shifts    ? 88
    : kTakesMore && !Reader::kIsListed ? 24
                                       : 56 - 8 * kHeldSteps<Layout, Reader>;
template <Gradients kGradients, class Layout, class Reader, bool kTakesMore>
inline constexpr int kBackwardComputeRegisters =
    (504 - kBackwardLoadRegisters<kGradients, Layout, Reader, kTakesMore>) / 2;

/// Named barriers. kScoreBarrier: the computing warpgroups have written dS (where they alternate
/// two barriers, one for each warpgroup that waits). kDqOrderBarrier: two, for the dQ semaphore.
inline constexpr int kScoreBarrier = 1, kDqOrderBarrier = 3;

}  // namespace fdma::sm90
