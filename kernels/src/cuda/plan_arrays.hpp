// The arrays of an uploaded plan, as kernels read them: pointers into one allocation of device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "fdma/base/interval.hpp"
#include "fdma/kernels/closed_form_mask.hpp"
#include "fdma/kernels/host_device.hpp"
#include "fdma/kernels/kv_worklist.hpp"
#include "fdma/kernels/plan_arrays.hpp"

namespace fdma::gpu {

/// The arrays of an AttentionPlan that the kernels read. Offsets count as in the plan.
struct PlanArrays {
  /// On the device num_entries of a work tile is the number of keys in its kv permutation, whose
  /// rows are copied before the kernel and in which its tiles count keys; or it is kTensorKeys.
  const WorkTile* work_tiles;
  const PlanSegment* segments;
  PatternArrays patterns;
  const uint4* bitmaps;  ///< 128 x 16 bytes per bitmap, each the words of two threads
  const std::int64_t* row_offsets;
  const Interval* row_intervals;
  const std::int64_t* column_tables;
  const std::int64_t* column_offsets;
  const Interval* column_intervals;
  const SplitRow* split_rows;
  const ClosedFormMask* closed_forms;
  const std::int32_t* borders;
  const int2* lengths;  ///< {q_len, kv_len} of each batch element
  // The accumulation order of deterministic calls (accumulation_order.hpp), or null. Over kv worklists
  // tile groups is empty.
  const std::int32_t* tile_groups;
  const std::int32_t* first_positions;
  const std::int32_t* positions;
  std::int32_t num_work_tiles;
  std::int32_t num_split_rows;
  std::int32_t block_q;     ///< queries of a tile; backward: keys
  std::int32_t pack_shift;  ///< log2 of the heads that share a tile
  std::int32_t num_sets;    ///< sets of such heads per KV head
  // For closed-form plans.
  std::int32_t num_closed_forms;  ///< 0: the plan has work tiles and segments
  std::int32_t max_tile_rows;     ///< per batch element
  std::int32_t heads_kv;
  std::int32_t heads_in_l2;
  std::int32_t num_splits;
  bool is_backward;  ///< tile rows are keys, their columns queries
  bool walks_down;   ///< walks work tiles of deterministic calls from their last tile to the first
};

/// A kv index list (KvIndexList) on the device. Its first index tiles, of 128 entries that all rows
/// see, may be shared with a list before it. Entry i is entry first_entry + i of the arrays, except
/// that for i < num_shared its key is `distance` entries before that. The three numbers are packed
/// into one word, as the kernel keeps them, because it has no register for more. Lists of split
/// rows share nothing.
struct alignas(16) KvIndexListOnDevice {
  static constexpr int kEntryBits = 36, kChunkBits = 7;
  static constexpr std::int32_t kMaxShared = 128 * ((1 << kChunkBits) - 1);
  /// Above the largest distance. Like distances it is a multiple of 8.
  static constexpr std::int64_t kEndDistance = std::int64_t{8} << (64 - kEntryBits - kChunkBits);

  std::uint64_t place;  ///< from the lowest bit: first_entry, num_shared / 128, distance / 8
  std::int32_t num_entries;
  std::int32_t num_full;

  FDMA_HOST_DEVICE static constexpr std::uint64_t place_of(std::int64_t first_entry,
                                                           std::int32_t num_shared,
                                                           std::int64_t distance) {
    return static_cast<std::uint64_t>(first_entry) |
           static_cast<std::uint64_t>(num_shared / 128) << kEntryBits |
           static_cast<std::uint64_t>(distance / 8) << (kEntryBits + kChunkBits);
  }
};

/// Lists that a kernel before the launch may have made, for work tiles and segments that stay the
/// same: the kv index lists that segments of kind gather name, and intervals of column tables.
///
/// The number of index tiles (128 keys) that a work tile reads follows from its list (num_entries,
/// which may be 0). The segment's end_tile, and with it WorkTile::num_tiles, is an upper bound.
/// Keys are below the kv_len of the batch element.
struct KvIndexArrays {
  const KvIndexListOnDevice* lists;  ///< indexed by data index of the segment
  const std::int32_t* keys;          ///< of each entry
  /// {row_begin, row_end} of each entry, in queries of the tile; those of a list's first num_full
  /// entries are not read.
  const uchar2* rows;
  /// In place of the plan's intervals (column_offsets counts in them), or null.
  const Interval* column_intervals = nullptr;
};

/// Value of WorkTile::num_entries on the device where tiles count the keys of the tensors.
inline constexpr std::int32_t kTensorKeys = 0;

/// The kv permutations of a plan (KvPermutation).
struct KvPermutationsOnDevice {
  const KvPermutation* orders = nullptr;
  const std::int32_t* keys = nullptr;            ///< SegmentPlan::permuted_keys
  const std::int32_t* permutation_of = nullptr;  ///< [batch * heads_kv]
  std::int32_t max_keys = 0;  ///< largest order; 0: the plan has no kv permutation
};

/// The kv worklist of a backward plan (plan/kv_worklist.hpp).
struct KvWorklistOnDevice {
  const WorklistEntry* keys = nullptr;
  const KvWorkTile* work_tiles = nullptr;
  const AccumKey* accum_keys = nullptr;
  const std::int32_t* num_work_tiles = nullptr;  ///< on the device, for kernels
  std::int32_t max_work_tiles = 0;               ///< the same on the host
  std::int64_t num_accum_rows = 0;
};

/// Head sizes, of keys and of values, that the gathering kernels take.
inline constexpr std::int32_t kMaxGatherDim = 128;

}  // namespace fdma::gpu
