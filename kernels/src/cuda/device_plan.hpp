// A plan as kernels for sm_90a read it: pointers into one allocation of device memory.
#pragma once

#include <cstdint>

#include "fdma/kernels/device_plan.hpp"
#include "fdma/kernels/host_device.hpp"

namespace fdma::sm90 {

/// The arrays of an AttentionPlan that the kernels read. Offsets count as in the plan.
struct PlanArrays {
  /// Their num_entries is how many keys there are in the order that their tiles count keys in (its
  /// rows are moved before the kernel), or kTensorKeys.
  const WorkItem* items;
  const PlanSegment* segments;
  const uint4* bitmaps;  ///< 128 of 16 bytes a bitmap: the words of two threads each
  const std::int64_t* row_offsets;
  const Interval* row_intervals;
  const std::int64_t* column_tables;
  const std::int64_t* column_offsets;
  const Interval* column_intervals;
  const SplitRow* split_rows;
  const MaskFormula* formulas;
  const std::int32_t* borders;
  const int2* lengths;  ///< {q_len, kv_len} of each batch element
  // The order of deterministic calls (accumulation_order.hpp), or null; over key lists units is empty.
  const std::int32_t* units;
  const std::int32_t* first_visits;
  const std::int32_t* ranks;
  std::int32_t num_items;
  std::int32_t num_split_rows;
  std::int32_t block_q;     ///< queries of a tile; backward: keys
  std::int32_t pack_shift;  ///< log2 of the heads that share a tile
  std::int32_t num_sets;    ///< of such heads, for each KV head
  // Of a parametric plan.
  std::int32_t num_formulas;   ///< 0: items and segments
  std::int32_t max_tile_rows;  ///< of a batch element
  std::int32_t heads_kv;
  std::int32_t section_heads;
  std::int32_t num_splits;
  bool is_backward;  ///< tile rows are keys, their columns queries
  bool walks_down;   ///< items of deterministic calls, from their last tile to the first
};

/// A gather list (GatherList) on the device. Its first chunks, of 128 entries that all rows see,
/// may be those of a list before it: entry i is entry first_entry + i of the arrays, but that its
/// key is `distance` entries before that where i < num_shared. These three are one word, as the
/// kernel keeps it, which has no register for more. Lists of split rows share nothing.
struct alignas(16) GatherListOnDevice {
  static constexpr int kEntryBits = 36, kChunkBits = 7;
  static constexpr std::int32_t kMaxShared = 128 * ((1 << kChunkBits) - 1);
  /// Past the last distance; a multiple of 8, as distances are.
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

/// Lists that a kernel before the launch may have made, for items and segments that stay the same:
/// the gather lists that segments of kind gather name, and intervals of column tables.
///
/// How many chunks of 128 keys an item reads follows from its list (num_entries, 0 possible): the
/// segment's end_tile, and with it WorkItem::num_tiles, is an upper bound. Keys are below the
/// kv_len of the batch element.
struct GatherArrays {
  const GatherListOnDevice* lists;  ///< [payload of the segment]
  const std::int32_t* keys;         ///< of each entry
  /// {row_begin, row_end} of each entry, in queries of the tile; those of a list's first num_full
  /// entries are not read.
  const uchar2* rows;
  /// In place of the plan's (column_offsets counts in them), or null.
  const Interval* column_intervals = nullptr;
};

/// WorkItem::num_entries on the device where tiles count the keys of the tensors.
inline constexpr std::int32_t kTensorKeys = 0;

/// The orders of keys of a plan (KeyOrder).
struct KeyOrdersOnDevice {
  const KeyOrder* orders = nullptr;
  const std::int32_t* keys = nullptr;      ///< AttentionPlan::ordered_keys
  const std::int32_t* order_of = nullptr;  ///< [batch * heads_kv]
  std::int32_t max_keys = 0;               ///< of an order; 0: no keys are moved
};

/// The lists of a backward plan over listed keys (plan/kv_worklist.hpp).
struct KeyListsOnDevice {
  const ListedKey* keys = nullptr;
  const KeyItem* items = nullptr;
  const SumKey* sum_keys = nullptr;
  const std::int32_t* num_items = nullptr;  ///< on the device, for kernels
  std::int32_t max_items = 0;               ///< the same on the host
  std::int64_t num_sums = 0;
};

/// Head sizes, of keys and of values, that the gathering kernels take.
inline constexpr std::int32_t kMaxGatherDim = 128;

}  // namespace fdma::sm90

namespace fdma {

struct DevicePlan::Impl {
  AttentionShape shape;
  ScoreSpec score;
  Direction direction = Direction::forward;
  BlockShape tile;
  int device = 0;
  int num_multiprocessors = 0;
  void* memory = nullptr;
  std::int64_t size_bytes = 0;
  std::int32_t max_partials = 0;  ///< of a tile row
  std::int64_t num_partials = 0;
  sm90::PlanArrays arrays{};
  bool is_gathering = false;    ///< segments of kind gather are among its own
  sm90::GatherArrays gather{};  ///< null where lists are made on the device
  bool is_listed = false;       ///< backward, over listed keys: there are no items
  bool is_ordered = false;      ///< uploaded for deterministic calls
  sm90::KeyListsOnDevice lists;
  sm90::KeyOrdersOnDevice orders;
  /// Backward: items are together by KV head, which have some for each multiprocessor (RowZeros).
  bool is_by_row = false;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();
};

}  // namespace fdma
