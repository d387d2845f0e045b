// kv worklists made on the GPU: from the queries that keep each key to the work tiles of the
// backward pass (plan/kv_worklist.hpp), without the host. DeviceBackward calls it.
#pragma once

#include <cstdint>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/kv_worklist.hpp"

namespace fdma::dynamic_mask {

/// Capacities of a worklist, known before any score is. A row is a (batch element, KV head).
///
/// A key is listed once, and once more for each end of a segment at which it is cut. No more than w
/// keys are live there, which bounds their number.
struct KvWorklistRoom {
  std::int64_t num_rows = 0;
  std::int64_t kv_len = 0;  ///< of the longest element
  std::int64_t q_len = 0;   ///< of the longest element
  std::int64_t w = 0;       ///< keys that a query keeps at most
  /// Tiles of 128 queries per segment: one or more steps of live_range_shift, at most
  /// kMaxSegmentTiles
  std::int32_t segment_tiles = 0;
  /// Whether additions have an order, so that gradients have the same bits in every run
  bool has_order = false;

  std::int64_t cuts_of_row() const;   ///< upper bound
  std::int64_t tiles_of_row() const;  ///< tiles of worklist keys
  std::int64_t num_segments() const;
  std::int64_t keys_capacity() const;  ///< worklist keys of all rows
  std::int64_t work_tiles_capacity() const;
  /// Accumulator rows of a row: its keys that are listed several times. With an order two entries
  /// of a key share one, because the order of two numbers added to 0 does not matter.
  std::int64_t sum_rows() const;
  std::int64_t accum_capacity() const;  ///< accumulator rows of all rows
  /// Each work tile may visit every tile of queries; 0: no order
  std::int64_t positions_capacity() const;
  std::int64_t workspace_bytes() const;
};
/// Enough for rows of up to 64 million queries.
inline constexpr std::int32_t kMaxSegmentTiles = 512;

/// Number of rows whose work tiles are interleaved if they have an order. With this number 132
/// blocks wait least in simulation (accumulation_order.cpp).
inline constexpr std::int32_t kRowsTogether = 8;

/// Capacities for a selection of w keys out of masks of the one-interval class. `group_size` is the
/// number of query heads of a KV head, which share the segments' memory.
///
/// Example     131,072 tokens, w = 2,048, one head in a group: 32 segments of 32 tiles, 63,488
///             accumulator rows for each row of scores; drifting scores need 59,125, random ones
///             8,174
KvWorklistRoom kv_worklist_room(std::int64_t num_rows, std::int64_t q_len, std::int64_t kv_len,
                                std::int64_t w, std::int32_t group_size);

/// Arguments; all pointers are to device memory.
struct KvWorklistCall {
  KvWorklistRoom room;
  /// [num_rows, kv_len]; in each row the begins of the kept keys do not decrease; 8-aligned
  const Interval* kept = nullptr;
  const std::int32_t* q_lens = nullptr;  ///< [num_rows]
  std::int32_t heads_kv = 1;
  void* workspace = nullptr;  ///< workspace_bytes, 16-aligned

  WorklistEntry* keys = nullptr;           ///< [keys_capacity]: tiles_of_row tiles for each row
  KvWorkTile* work_tiles = nullptr;        ///< [keys_capacity / 128]
  std::int32_t* num_work_tiles = nullptr;  ///< one word
  /// [accum_capacity]: those of a row begin at row * sum_rows
  AccumKey* accum_keys = nullptr;
  std::int32_t* num_accum_rows = nullptr;  ///< [num_rows]: accumulator rows in use
  /// With room.has_order, as in KvWorklistArrays (sm90/backward/params.hpp).
  std::int32_t* first_positions = nullptr;  ///< [work_tiles_capacity]
  std::int32_t* positions = nullptr;        ///< [positions_capacity]
};

/// Makes the worklists that make_head_worklist (plan/kv_worklist.hpp) makes; the same in every run. It
/// takes five launches, or six with an order, and does not wait. If more than w keys are live at
/// the end of a segment, entries beyond the capacity are left out.
///
/// With an order, work tiles of kRowsTogether rows are interleaved, segment by segment: the first
/// work tile of each row, then the second of each row, and so on (device_accumulation_order.cuh).
/// Each visit has a position: the number of work tiles of the row that visit the tile before.
/// Accumulator rows are those of pairs of entries.
///
/// Errors  unsupported: more than 2^31 - 1 worklist entries, sums or positions; cuda
/// Cost    8 B read per key, twice; 16 B written and read again per worklist key; with an order 4 B
///         per visit, and a look at each pair of work tiles of a segment
Result<void> make_kv_worklist_on_device(const KvWorklistCall& call, Stream stream);

}  // namespace fdma::dynamic_mask
