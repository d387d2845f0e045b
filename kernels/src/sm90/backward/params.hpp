// What the backward kernels are launched with, where things lie in shared memory and in the
// workspace.
//
// A backward plan is the plan of the transposed mask: its rows are keys, its columns queries. Where
// code is shared with the forward kernel (TileWalk, mask words), what is called a query there is a
// row of the plan, and what is called a key a column.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "fdma/kernels/kv_worklist.hpp"
#include "sm90/forward/params.hpp"
#include "sm90/shared/fragment.hpp"

namespace fdma::sm90 {

/// A tensor [batch, row, head, column] on the device, strides in elements.
struct RowsView {
  void* data;
  std::int64_t batch_stride, row_stride, head_stride;
  bool is_float32;  ///< or of the kernel's 16-bit type
};

/// Where per-query figures and sums of one call lie: rows padded to tiles, heads one by one.
struct QueryPlaces {
  float* lse_log2;  ///< [batch * heads_q, padded_q_len]: +inf for rows without keys or past the end
  float* deltas;    ///< the same: D
  float* missing;   ///< the same, of each two sums: what D lacks, with RowSums::keys
  float* dq_sums;   ///< [batch * heads_q, padded_q_len / 64] tiles of 64 x kDim, below
  std::int32_t heads_q;
  std::int32_t padded_q_len;  ///< a multiple of kTileKeys

  FDMA_HOST_DEVICE std::int64_t first_row(std::int32_t batch, std::int32_t head) const {
    return (std::int64_t{batch} * heads_q + head) * padded_q_len;
  }
};

/// Sums of dQ are kept in the order of accumulator registers (fragment.hpp): of each tile of 64
/// rows for the columns that one warpgroup computes, its warps one after the other (16 rows each),
/// of a warp for each 8 columns four floats a lane. What a warp adds lies side by side.
inline constexpr int kSumRows = 64;
template <int kDim>
inline constexpr int kSumColumns = kDim <= 128 ? kDim : kDim / 2;  ///< of one warpgroup
inline constexpr int kSumLanes = 32 * 4;  ///< floats of a warp for 8 columns

/// Where in a tile of sums the four floats of 8 columns of a thread of its warpgroup lie.
template <int kDim>
FDMA_HOST_DEVICE constexpr int sum_place(int thread, int column) {
  return (column / kSumColumns<kDim> * 4 + thread / 32) * (kSumColumns<kDim> * 16) +
         column % kSumColumns<kDim> / 8 * kSumLanes + thread % 32 * 4;
}

/// The lists of a launch over listed keys (plan/kv_worklist.hpp), in device memory: of an uploaded plan,
/// or made by kernels before the launch.
///
/// Of a key with a row of sums, float32 gradients (dk without the softmax scale) are added to row
/// first_sum + sum_row, which is zero at launch or by RowZeros; of others the rows of dk and dv are
/// written, and dkey_bias where it is wanted. What is of no listed key is not touched: zeroing it,
/// and moving sums to dk and dv, is for kernels before and after. dkey_bias is added to in place,
/// having been zeroed, unless it has sums.
struct KeyListArrays {
  const ListedKey* keys;
  const KeyItem* items;           ///< in the order in which blocks take them
  const std::int32_t* num_items;  ///< may be 0
  float* dk_sums;                 ///< [rows, kDimQk]
  float* dv_sums;                 ///< [rows, kDimV]
  float* dbias_sums;              ///< [rows], or null: to dkey_bias at once
  KeyRows k, v;
  /// Deterministic calls: of each item its first entry of ranks; of each tile that an item visits
  /// how many items before it, of its KV head, visit the same one. Two entries at most share a row.
  const std::int32_t* first_ranks;
  const std::int32_t* ranks;
};

/// How many chunks of a KV head's sums have been taken to write zeros, and how many are written.
struct alignas(8) ZeroCounters {
  std::int32_t next, done;
};

/// Ordinary calls over units that are together by KV head (a row: batch * heads_kv + kv_head), rows
/// in their order: sums of all rows but the first, those of dQ and of listed keys, need not be zero
/// at launch, the main kernel sees to them (zero_fill.cuh).
struct RowZeros {
  ZeroCounters* counters;        ///< [num_rows], 0 at launch; or null: sums are zero
  const std::int32_t* num_sums;  ///< [num_rows]: rows of sums of listed keys; or null: none
  std::int64_t sums_of_row;      ///< from those of one KV head to the next
  std::int32_t num_rows;
  std::int32_t heads_kv;
};

/// Arguments of the main kernel. Strides in elements.
struct BackwardParams {
  static constexpr bool kIsTransposed = true;  ///< rows of tiles are keys
  CUtensorMap q, dout;                         ///< boxes of the queries of a step
  CUtensorMap k, v;                            ///< boxes of the keys of a block
  PlanArrays plan;
  RunTimeLengths lengths;
  TileRow* tile_rows;       ///< of a parametric plan, or null
  std::int32_t* next_unit;  ///< taken beyond the first of each block; 0 at launch
  QueryPlaces places;
  std::int32_t group_size;  ///< query heads of a KV head
  std::int32_t head_dim, head_dim_v;
  std::int32_t q_rows, dout_rows, k_rows, v_rows;  ///< extents: what lies past them reads as 0
  float scale, scale_log2;                         ///< softmax scale; times log2(e)
  RowsView dk, dv;
  const float* key_bias;  ///< or null; read by the general kernel only
  std::int64_t bias_batch_stride, bias_head_stride;
  float* dkey_bias;  ///< or null; general kernel only
  std::int64_t dbias_batch_stride, dbias_head_stride;
  /// Deterministic calls, or null: how many parts of the dQ of each 64 rows have been added, by
  /// each of the two warpgroups or (kAddsInBulk) by both. Plan, tile rows or lists have an order
  /// then. Where dQ is not added in bulk, the general kernel only.
  std::int32_t* turns;
  const TurnOffsets* turn_offsets;  ///< of a parametric plan: [batch, padded_q_len / kTileKeys]
  bool walks_down;                  ///< items, from the last query tile to the first
  KeyListArrays lists;  ///< read by the kernels over listed keys only, which read no plan
  RowZeros zeros;
};

/// What a launch of the main kernel computes.
enum class Gradients : std::uint8_t {
  all,
  values,
  keys,    ///< dK, dQ and that of the bias
  shifts,  ///< none: what D of `out` lacks is added to QueryPlaces::missing
};

/// A step of a unit as the loading thread tells the computing warps of it.
struct alignas(16) BackwardStep {
  std::int32_t flags;
  std::uint32_t mask;     ///< shared address of its words, or 0
  std::int32_t sum_tile;  ///< of dq_sums: the first of the step
  std::int32_t rank;      ///< deterministic calls: whose turn it is to add to dQ
  std::int32_t batch, kv_head;
  std::int32_t key_begin;  ///< the first key, or its place in the list
  std::int32_t kv_len;     ///< over listed keys KeyItem::first_sum
};
inline constexpr std::int32_t kStepReleasesMask = 1;  ///< the last that reads these words
inline constexpr std::int32_t kStepIsSecondHalf = 2;  ///< of the words' columns
inline constexpr std::int32_t kStepEndsUnit = 4;      ///< no queries: the unit is done
inline constexpr std::int32_t kStepEndsAll = 8;       ///< and it was the last
/// Shifted left by 0 or 1: no cell for that warpgroup that computes.
inline constexpr std::int32_t kStepIsEmpty = 16;

/// What the loading thread asks the serving warp for: to zero rows past a length that a copy brings
/// along, before they are computed with; or one of those below.
struct alignas(16) ServeRequest {
  std::uint32_t tile;       ///< shared address
  std::int32_t num_panels;  ///< of num_rows * 128 bytes
  std::int32_t first_row, num_rows;
  std::uint32_t full;  ///< the barrier of the tile, for which the warp arrives
};
/// Deterministic calls that add in bulk: what the loading thread tells the serving warp of a step
/// of a unit, in 64 bits that are one access: the sum tile (the first of the step, or kNoTurn:
/// there are no more steps), above it the rank, which is less than 2^30, and two bits.
inline constexpr std::int32_t kNoTurn = -1;
inline constexpr std::uint32_t kTurnIsEmpty = 1u << 30;  ///< no dQ is added: the turn is passed on
inline constexpr std::uint32_t kTurnLap = 1u << 31;  ///< 1 the first time round the ring, then 0

/// In place of a tile: take the next unit; there are none any more; look up the listed keys of the
/// unit at address `full`.
inline constexpr std::uint32_t kRequestUnit = 1, kRequestEnd = 2, kRequestKeys = 3;

inline constexpr int kLoadWarp = 2, kServeWarp = 3;  ///< of the warpgroup that loads

/// Up to this head size dQ of a step goes to memory through shared memory, by the copy engine.
/// Beyond, there is no room for it: straight from registers.
inline constexpr int kMaxBulkDim = 128;

/// Byte offsets in shared memory, from a 1024-aligned base, of the kernel for head_dim up to kDimQk
/// and head_dim_v up to kDimV.
///
/// A unit is what one block computes without a break: a tile of 128 keys of a KV head against the
/// queries of all its query heads, in steps of kStepQueries queries.
template <int kDimQk_, int kDimV_>
struct BackwardLayout {
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_;
  static constexpr int kPanelsQk = (kDimQk + 63) / 64;
  static constexpr int kPanelsV = (kDimV + 63) / 64;
  static constexpr int kStepQueries = kDimQk == 64 && kDimV == 64 ? 128 : 64;
  static constexpr int kStepsOfTile = kTileKeys / kStepQueries;  ///< a tile has 128 columns
  static constexpr int kUnitKeys = kTileRows;
  static constexpr int kStages = kDimQk > 128 ? 1 : 2;
  static constexpr int kMaskSlots = 2 * kMaskWarps;
  static constexpr int kItemSlots = 2;
  static constexpr int kItemBand = 64;
  static constexpr int kItemSegments = kItemBand + static_cast<int>(sizeof(FormulaBand));
  static constexpr int kSegmentBytes = kMaxOwnSegments * static_cast<int>(sizeof(PlanSegment));
  static constexpr int kItemSlotBytes = kItemSegments + (kSegmentBytes + 15) / 16 * 16;
  static constexpr int kRequestSlots = 4;
  /// More than the steps under way (three: whoever loads waits for the end of the step two before)
  /// with the empty ones, at most two before each and behind the last, and the end: 12, so nobody
  /// waits for a slot.
  static constexpr int kTurnSlots = 16;
  static constexpr bool kAddsInBulk = kDimQk <= kMaxBulkDim;
  /// The warpgroups compute dQ of a step in turn, and neither waits for the other at each step.
  static constexpr bool kAlternates = kAddsInBulk && kStepQueries == 64;
  static constexpr int kSumWarps = kAlternates ? kComputeWarps / 2 : kComputeWarps;  ///< of a step
  /// Part of K is kept in registers: S^T reads both operands from shared memory else, as fast as
  /// that goes.
  static constexpr bool kHoldsKeys = kDimQk == 128 && kDimV == 128;

  static constexpr int kPanelBytesKey = kUnitKeys * 128;
  static constexpr int kPanelBytesQuery = kStepQueries * 128;
  static constexpr int kKBytes = kPanelsQk * kPanelBytesKey;
  static constexpr int kVBytes = kPanelsV * kPanelBytesKey;
  static constexpr int kQBytes = kPanelsQk * kPanelBytesQuery;
  static constexpr int kOBytes = kPanelsV * kPanelBytesQuery;                    ///< of dO
  static constexpr int kScoreBytes = kStepQueries / 64 * kPanelBytesKey;         ///< of dS
  static constexpr int kSumBytes = kAddsInBulk ? kStepQueries * kDimQk * 4 : 0;  ///< of dQ
  static constexpr int kRowBytes = kStepQueries * 4;  ///< of lse, of deltas
  static constexpr int kMaskBytes = kTileRows * kTileKeys / 8;

  static constexpr int kK = 0;
  static constexpr int kV = kK + kKBytes;
  static constexpr int kQ = kV + kVBytes;
  static constexpr int kO = kQ + kStages * kQBytes;
  static constexpr int kScores = kO + kStages * kOBytes;
  static constexpr int kSums = kScores + kStages * kScoreBytes;
  static constexpr int kLse = kSums + kSumBytes;
  static constexpr int kDeltas = kLse + kStages * kRowBytes;
  static constexpr int kMask = kDeltas + kStages * kRowBytes;
  static constexpr int kStep = kMask + kMaskSlots * kMaskBytes;
  static constexpr int kItem = kStep + kStages * static_cast<int>(sizeof(BackwardStep));
  static constexpr int kRequest = kItem + kItemSlots * kItemSlotBytes;
  /// Of each computing thread, general kernel only: dS of its two keys, summed over the queries.
  static constexpr int kBiasSums =
      kRequest + kRequestSlots * static_cast<int>(sizeof(ServeRequest));
  /// Over listed keys, of units in turn: key and sum_row of each, then batch and KV head; biases
  /// times log2(e). A slot is written when at most the end of the unit two before is not reached.
  static constexpr int kKeySlots = 4;
  static constexpr int kEntryBytes = 8 * kUnitKeys + 16, kBiasBytes = 4 * kUnitKeys;
  static constexpr int kEntries = kBiasSums + 8 * 2 * kWarpgroupThreads;
  static constexpr int kBiases = kEntries + kKeySlots * kEntryBytes;
  /// Of each mask slot, which quarters have a cell: quarters_with_cells.
  static constexpr int kMaskQuarters = kBiases + kKeySlots * kBiasBytes;
  static constexpr int kTurns = kMaskQuarters + (4 * kMaskSlots + 15) / 16 * 16;
  static constexpr int kNumTurns = kTurns + 8 * kTurnSlots;
  static constexpr int kTaken = kNumTurns + 8;  ///< TurnTaker
  /// What the serving warp counts: requests, units, units of listed keys.
  static constexpr int kServed = kNumTurns + 16;
  /// A KV head whose sums are known to be zero, of the loading thread; then ZeroWriter.
  static constexpr int kZeroedRow = kServed + 12, kZeroState = kServed + 16;
  /// Of each warp that makes masks, while it does.
  static constexpr int kMaskWalks = kZeroState + 16, kMaskWalkBytes = 48;
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
  static constexpr int kItemFull = kMaskEmpty + 8 * kMaskSlots;
  static constexpr int kItemEmpty = kItemFull + 8 * kItemSlots;
  static constexpr int kRequestFull = kItemEmpty + 8 * kItemSlots;
  static constexpr int kRequestEmpty = kRequestFull + 8 * kRequestSlots;
  static constexpr int kSumsFull = kRequestEmpty + 8 * kRequestSlots;  ///< deterministic calls
  static constexpr int kSumsEmpty = kSumsFull + 8;
  static constexpr int kKeysFull = kSumsEmpty + 8;  ///< over listed keys: of each slot
  static constexpr int kEnd = kKeysFull + 8 * kKeySlots;

  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = kEnd + kAlignment;  ///< to ask for at launch
  /// What zeros are copied from, where the kernel writes some; to ask for in place of kBytes.
  static constexpr int kZeros = (kEnd + 127) / 128 * 128;
  static constexpr int kZeroBytes = 8192;
  static constexpr int kBytesWithZeros = kZeros + kZeroBytes + kAlignment;
  static_assert(sizeof(PublishedItem) <= kItemBand && kItem % 16 == 0 && kRequest % 16 == 0);
  static_assert((kAddsInBulk ? kBytesWithZeros : kBytes) <= 232448, "a block has 227 KB");
};

/// Whether the kernel can write zeros.
template <class Layout, Gradients kGradients>
inline constexpr bool kWritesZeros = kGradients == Gradients::all&& Layout::kAddsInBulk;

/// For Gradients::shifts, whose warpgroups take turns themselves.
template <int kDimQk, int kDimV>
struct ShiftLayout : BackwardLayout<kDimQk, kDimV> {
  static constexpr bool kAddsInBulk = false;
  static constexpr bool kHoldsKeys = false;
};
template <Gradients kGradients, int kDimQk, int kDimV>
using LayoutFor = std::conditional_t<kGradients == Gradients::shifts, ShiftLayout<kDimQk, kDimV>,
                                     BackwardLayout<kDimQk, kDimV>>;

/// k16 steps of K that a launch keeps in registers, and the registers of a thread that loads and of
/// one that computes: 65536 for 384 threads. What serves listed keys takes more than 24.
template <class Layout, bool kListed>
inline constexpr int kHeldSteps = Layout::kHoldsKeys && !kListed ? 4 : 0;
template <Gradients kGradients, class Layout, bool kListed>
inline constexpr int kBackwardLoadRegisters =
    // Shifts keep no gradients in registers, and their loading thread finds ranks besides.
    kGradients == Gradients::shifts ? 88 : 56 - 8 * kHeldSteps<Layout, kListed>;
template <Gradients kGradients, class Layout, bool kListed>
inline constexpr int kBackwardComputeRegisters =
    (504 - kBackwardLoadRegisters<kGradients, Layout, kListed>) / 2;

/// Named barriers: the warpgroups that compute have written dS (where they alternate two, one for
/// each that waits); two for turns.
inline constexpr int kScoreBarrier = 1, kTurnBarrier = 3;

}  // namespace fdma::sm90
