// Keys by index: the additional role of the gathering kernels. A fourth warpgroup copies rows of K
// and V that a kv index list names to the places where TMA would put the rows of a tile, in index
// tiles of 128 keys. An index tile is then used like any other tile. Index tiles come after the
// other tiles of a work tile.
//
// Eight threads copy the 128 bytes of a row of a panel, 16 each. There are sixteen such groups, and
// each takes every sixteenth row, so that each thread writes at one place of the swizzle. A thread
// holds one index a step and passes it round its group by shuffles. Indices are read a step ahead.
//
// In the last index tile of a list only the units of 32 keys that hold entries are copied. No score
// of another unit is used (with kHasNarrowSteps none is computed), and no value of it is
// multiplied. Entries after the last one in its unit are copies of the last one, and masked.
//
// An index tile of consecutive keys that all rows see is a tile that begins at any key. One thread
// issues a TMA load for it, which needs no copying threads and takes a seventh less time. Each warp
// looks up which index tiles are such runs for 32 of a work tile at once. The keys of an index tile
// ascend, so its first and its last key suffice.
//
// The first index tiles of a list may be shared with another list (KvIndexListOnDevice): then only
// their keys are read.
#pragma once

#include <cstdint>

#include "cuda/mask_fragments.cuh"
#include "ptx/addresses.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/forward/bias_terms.cuh"
#include "sm90/forward/params.hpp"

namespace fdma::sm90 {

/// The gathered part of a work tile. It is broadcast behind the work tile in shared memory.
struct alignas(16) GatherDescriptor {
  std::int32_t num_tiles;    ///< tiles before the index tiles
  std::int32_t num_entries;  ///< of its index tiles
  std::int32_t num_full;     ///< entries that all rows see: at least this many come first
  std::int32_t last_keys;    ///< keys of its last tile or index tile, in whole units
  std::uint64_t place;       ///< KvIndexListOnDevice::place
  static constexpr int kLastKeysAt = 12;  ///< bytes

  __device__ __forceinline__ std::int64_t first_entry() const {
    constexpr std::uint64_t kEntries = (std::uint64_t{1} << KvIndexListOnDevice::kEntryBits) - 1;
    return static_cast<std::int64_t>(place & kEntries);
  }
  /// Offset of the key of an entry, from first_entry on.
  __device__ __forceinline__ int key_place(int entry) const {
    constexpr int kLowBits = KvIndexListOnDevice::kEntryBits - 32;
    constexpr int kChunkBits = KvIndexListOnDevice::kChunkBits;
    const auto shared = static_cast<std::uint32_t>(place >> 32) >> kLowBits;
    const int num_shared = static_cast<int>(shared % (1u << kChunkBits)) * kTileKeys;
    return entry - (entry < num_shared ? static_cast<int>(shared >> kChunkBits) * 8 : 0);
  }

  __device__ __forceinline__ bool is_masked(int index_tile) const {
    return (index_tile + 1) * kTileKeys > num_full;
  }
};

/// Finds the gathered part of a work tile and cuts the work tile's num_tiles at the end of the
/// list.
__device__ __forceinline__ GatherDescriptor take_gather(const ForwardParams& p,
                                                        WorkTile& work_tile) {
  // A work tile without keys has one tile, which has no cells.
  GatherDescriptor part{max(work_tile.num_tiles, 1), 0, 0, kTileKeys, 0};
  if (work_tile.num_tiles == kNoWorkTile || work_tile.num_segments == 0) return part;
  const PlanSegment* segment = p.plan.segments + work_tile.first_segment;
  const PlanSegment* last = segment + work_tile.num_segments - 1;
  if (last->kind != PlanSegmentKind::gather) return part;
  int tiles = 0;
  for (; segment != last; ++segment) {
    tiles += segment->end_tile - segment->first_tile +
             work_tile.step * (segment->step_end - segment->step_first);
  }
  const int4 list = __ldcg(reinterpret_cast<const int4*>(p.gather.lists + last->data_index));
  const std::uint64_t place =
      static_cast<std::uint32_t>(list.x) | std::uint64_t{static_cast<std::uint32_t>(list.y)} << 32;
  const int num_chunks = (list.z + kTileKeys - 1) / kTileKeys;
  const int first_chunk = max(work_tile.first_tile - tiles, 0);
  work_tile.num_tiles = min(max(tiles + num_chunks - work_tile.first_tile, 0), work_tile.num_tiles);
  part.num_tiles = min(max(tiles - work_tile.first_tile, 0), work_tile.num_tiles);
  part.num_entries =
      min(list.z - first_chunk * kTileKeys, (work_tile.num_tiles - part.num_tiles) * kTileKeys);
  part.num_full = list.w - first_chunk * kTileKeys;
  if (part.num_entries > 0) {
    const int last_entries = (part.num_entries - 1) % kTileKeys + 1;
    part.last_keys = (last_entries + kCopyKeys - 1) / kCopyKeys * kCopyKeys;
  }
  part.place = place + static_cast<std::uint32_t>(first_chunk * kTileKeys);
  if (work_tile.num_tiles == 0) {
    work_tile.num_segments = 0;
    part.num_tiles = 1;
  }
  return part;
}

__device__ __forceinline__ void broadcast_gather(std::uint32_t to, const GatherDescriptor& part) {
  store_words(to, make_uint4(part.num_tiles, part.num_entries, part.num_full, part.last_keys));
  store_words(to + 16, make_uint4(static_cast<std::uint32_t>(part.place),
                                  static_cast<std::uint32_t>(part.place >> 32), 0, 0));
}
__device__ __forceinline__ GatherDescriptor read_gather(std::uint32_t from) {
  const uint4 counts = load_words(from), entry = load_words(from + 16);
  return {static_cast<int>(counts.x), static_cast<int>(counts.y), static_cast<int>(counts.z),
          static_cast<int>(counts.w), std::uint64_t{entry.x} | std::uint64_t{entry.y} << 32};
}

/// Writes the mask fragments of an index tile. A lane holds four keys as in write_columns. Where
/// the rows that see a key begin and end within the tile, the key's bit is toggled in the words of
/// the row where they begin and of the row where they end. A row's words are then the XOR of the
/// toggles of all rows up to it.
///
/// Example     keys 0 and 2 seen from row 0 and from row 5 on, key 0 up to row 9: toggles 1 at row
///             0, 4 at row 5, 1 at row 9; words 1 in rows 0 to 4, 5 up to row 8, then 4
/// Cost        some 150 instructions, for any number of such keys
__device__ __forceinline__ void write_index_tile_mask(std::uint32_t slot, const ForwardParams& p,
                                                      const GatherDescriptor& part, int index_tile,
                                                      int lane) {
  // All loads come first: one after the other they take longer than the products of an index tile.
  std::uint32_t queries[4];
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    const int entry = index_tile * kTileKeys + lane / 2 * 8 + lane % 2 + 2 * quad;
    queries[quad] = 0;
    if (entry >= part.num_full && entry < part.num_entries) {
      queries[quad] = __ldcg(
          reinterpret_cast<const unsigned short*>(p.gather.rows + part.first_entry() + entry));
    }
  }
#pragma unroll
  for (int i = lane; i < kWordQuads; i += kWarpSize) {
    store_words(slot + 16 * i, make_uint4(0, 0, 0, 0));
  }
  __syncwarp();
  const int own_quad = lane % 4;
  std::uint32_t above = 0;  // words of this lane's quad in the row above its first row
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    const int entry = index_tile * kTileKeys + lane / 2 * 8 + lane % 2 + 2 * quad;
    const int begin = static_cast<int>(queries[quad] & 255) << p.plan.pack_shift;
    const int end = entry < part.num_full
                        ? kTileRows
                        : static_cast<int>(queries[quad] >> 8) << p.plan.pack_shift;
    const std::uint32_t first = __ballot_sync(~0u, begin == 0 && end > 0);
    if (own_quad == quad) above = first;
    const auto toggle = [&](int row) {
      ptx::toggle_bits(row_address(slot, row) + 8 * quad, 1u << lane);
    };
    if (begin < end) {
      if (begin > 0) toggle(begin);
      if (end < kTileRows) toggle(end);
    }
  }
  __syncwarp();
  // Four lanes, one for each quad, take 16 rows.
  constexpr int kHalf = 8;
  const std::uint32_t own = row_address(slot, lane / 4 * (2 * kHalf)) + 8 * own_quad;
  std::uint32_t upper[kHalf], lower[kHalf];  // 8 rows, and the 8 rows below them
  std::uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const int2 words = ptx::load_words2(own + 32 * i);
    upper[i] = static_cast<std::uint32_t>(words.x);
    lower[i] = static_cast<std::uint32_t>(words.y);
    all ^= upper[i] ^ lower[i];
  }
  std::uint32_t up_to = all;
#pragma unroll
  for (int distance = 4; distance < kWarpSize; distance *= 2) {
    const std::uint32_t other = __shfl_up_sync(~0u, up_to, distance);
    if (lane >= distance) up_to ^= other;
  }
  above ^= up_to ^ all;
#pragma unroll
  for (std::uint32_t& word : upper) word = above ^= word;
#pragma unroll
  for (std::uint32_t& word : lower) word = above ^= word;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    ptx::store_words2(own + 32 * i, static_cast<int>(upper[i]), static_cast<int>(lower[i]));
  }
}

/// Writes the key biases of an index tile, times log2(e) or as terms. A lane loads its four keys at
/// once, then their biases: one after the other they take longer than the products of an index
/// tile.
template <bool kTerms>
__device__ __forceinline__ void write_index_tile_biases(std::uint32_t to, const ForwardParams& p,
                                                        const BroadcastTile& work_tile,
                                                        const GatherDescriptor& part,
                                                        int index_tile, int lane) {
  constexpr float kLog2E = 1.44269504088896340736f;
  constexpr int kLaneKeys = kTileKeys / kWarpSize;
  const float* bias = p.key_bias.head(work_tile.batch, work_tile.kv_head);
  const int num_biases = p.key_bias.data != nullptr ? part.num_entries : 0;
  const int first = index_tile * kTileKeys + lane;
  int keys[kLaneKeys];
  float values[kLaneKeys];
#pragma unroll
  for (int i = 0; i < kLaneKeys; ++i) {
    const int entry = first + i * kWarpSize;
    keys[i] =
        entry < num_biases ? __ldcg(p.gather.keys + part.first_entry() + part.key_place(entry)) : 0;
  }
#pragma unroll
  for (int i = 0; i < kLaneKeys; ++i) {
    values[i] = first + i * kWarpSize < num_biases ? __ldg(bias + keys[i]) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kLaneKeys; ++i) {
    const int at = lane + i * kWarpSize;
    if constexpr (kTerms) {
      store_words(to + 16 * at, bias_terms(values[i] * inverse_scale(fabsf(p.scale_log2))));
    } else {
      ptx::store_float(to + 4 * at, values[i] * kLog2E);
    }
  }
}

/// Writes the mask fragments and, where they are added, the biases of an index tile.
/// `work_tile_address` and `gather_address` are where its work tile is broadcast.
template <bool kAddsKeyBias, bool kTerms>
__device__ __forceinline__ void write_index_tile(std::uint32_t slot, std::uint32_t biases,
                                                 const ForwardParams& p,
                                                 std::uint32_t work_tile_address,
                                                 std::uint32_t gather_address, int index_tile,
                                                 bool is_masked, int lane) {
  const GatherDescriptor part = read_gather(gather_address);
  if (is_masked) write_index_tile_mask(slot, p, part, index_tile, lane);
  if constexpr (kAddsKeyBias) {
    write_index_tile_biases<kTerms>(biases, p, read_work_tile(work_tile_address), part, index_tile,
                                    lane);
  }
}

constexpr int kRowThreads = kPanelRowBytes / 16;         ///< threads that copy a row of a panel
constexpr int kCopyRows = kGatherThreads / kRowThreads;  ///< rows that all threads copy at once

/// Copies this thread's part of the rows of a step, for the units that hold its `num_entries`
/// entries. `own_key` is the index that the thread holds.
template <int kPanels, int kStepKeys>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const std::uint8_t* from,
                                          std::int64_t row_stride, int row_bytes, int own_key,
                                          int num_entries) {
#pragma unroll
  for (int round = 0; round < kStepKeys / kCopyRows; ++round) {
    const int row_begin = round * kCopyRows;
    if (row_begin > 0 && row_begin % kCopyKeys == 0 && row_begin >= num_entries) break;
    const auto key = static_cast<std::uint32_t>(__shfl_sync(~0u, own_key, round, kRowThreads));
    const std::uint8_t* row = from + key * static_cast<std::uint64_t>(row_stride);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::copy_16_async(
          to + panel * (kStepKeys * kPanelRowBytes) + round * (kCopyRows * kPanelRowBytes),
          row + panel * kPanelRowBytes, row_bytes > panel * kPanelRowBytes ? 16 : 0);
    }
  }
}

/// Issues the TMA loads of the rows of a step that begin at `key`; `map` has boxes of a step. One
/// thread calls it in place of its arrival.
template <int kPanels, int kStepKeys>
__device__ __forceinline__ void copy_run(std::uint32_t to, const void* map, std::uint32_t full,
                                         int key, int kv_head, int batch) {
  constexpr int kPanelBytes = kStepKeys * kPanelRowBytes;
  ptx::mbarrier_arrive_expect(full, kPanels * kPanelBytes);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    ptx::tma_load_5d(to + panel * kPanelBytes, map, full, panel * kPanelColumns, 0, key, kv_head,
                     batch, ptx::kEvictLast);
  }
}

/// How the rows of a step are copied: by TMA of another thread, by cp.async of the threads, or by
/// TMA of this warpgroup.
enum class Copier : std::uint8_t { none, threads, engine };

/// Copies the rows of the index tiles of all work tiles, in the order of load_tiles: K of a step,
/// then V of the step before. It waits for steps of other tiles and leaves them to the loading
/// thread. One warpgroup.
template <class Layout>
__device__ __forceinline__ void gather_rows(const ForwardParams& p, std::uint32_t base,
                                            int thread) {
  constexpr int kStepKeys = Layout::kStepKeys, kSteps = Layout::kSteps;
  const int lane = thread % kWarpSize;
  const int group = thread / kRowThreads, piece = thread % kRowThreads;
  const std::uint32_t place =
      base + static_cast<std::uint32_t>(group * kPanelRowBytes + ((piece ^ group % 8) << 4));
  // The thread holds the index of this entry of a step; thread 0 holds the first.
  const int own_entry = group + kCopyRows * piece;
  const int k_bytes = p.k_gather.row_bytes - 16 * piece,
            v_bytes = p.v_gather.row_bytes - 16 * piece;
  int step = 0, work_tile_index = 0;  // counted over all work tiles: they give stages and phases
  const auto stage_of = [](int index) { return index % Layout::kStages; };
  const auto empty_phase_of = [](int index) {
    return static_cast<std::uint32_t>(index / Layout::kStages + 1) & 1;
  };
  // Signals that the rows copied by this warp are complete.
  const auto hand_on = [&](std::uint32_t full) {
    ptx::fence_async_shared();
    __syncwarp();
    ptx::mbarrier_arrive_warp(full, lane);
  };
  // For a step that TMA copies: thread 0 issues the copy and arrives with it, the other threads
  // arrive here.
  const auto arrive_for_run = [&](std::uint32_t full) {
    if (thread != 0) ptx::mbarrier_arrive_warp(full, lane);
  };

  // The V that is copied next, that of the step before.
  Copier pending = Copier::none;
  int pending_key = 0, pending_entries = 0, pending_head = 0, pending_batch = 0;
  const auto copy_pending = [&] {
    if (pending == Copier::none) return;
    const int stage = stage_of(step - 1);
    const std::uint32_t full = base + Layout::kVFull + 8 * stage;
    ptx::mbarrier_wait(base + Layout::kVEmpty + 8 * stage, empty_phase_of(step - 1),
                       "gather: V empty");
    if (pending == Copier::engine) {
      arrive_for_run(full);
      if (thread == 0) {
        copy_run<Layout::kPanelsV, kStepKeys>(base + Layout::kV + stage * Layout::kVBytes, &p.v,
                                              full, pending_key, pending_head, pending_batch);
      }
      return;
    }
    const std::uint8_t* v =
        p.v_gather.strides.head_of(p.v_gather.data, pending_batch, pending_head) + 16 * piece;
    copy_rows<Layout::kPanelsV, kStepKeys>(place + Layout::kV + stage * Layout::kVBytes, v,
                                           p.v_gather.strides.row, v_bytes, pending_key,
                                           pending_entries);
    ptx::copies_commit();
  };
  const auto hand_pending_on = [&] {
    if (pending != Copier::threads) return;
    ptx::copies_wait<0>();
    hand_on(base + Layout::kVFull + 8 * stage_of(step - 1));
  };

  ptx::wait_for_grid_before();
  for (;; ++work_tile_index) {
    const int work_tile_stage = work_tile_index % Layout::kWorkTileSlots;
    ptx::mbarrier_wait(base + Layout::kWorkTileFull + 8 * work_tile_stage,
                       static_cast<std::uint32_t>(work_tile_index / Layout::kWorkTileSlots) & 1,
                       "gather: work tile full");
    const std::uint32_t slot = base + Layout::kItem + work_tile_stage * Layout::kWorkTileSlotBytes;
    const uint4 header = load_words(slot), tail = load_words(slot + 48);
    const GatherDescriptor part = read_gather(slot + Layout::kWorkTileGather);
    __syncwarp();
    ptx::mbarrier_arrive_warp(base + Layout::kWorkTileEmpty + 8 * work_tile_stage, lane);
    const int num_tiles = static_cast<int>(header.x);
    if (num_tiles == kNoWorkTile) break;
    const int batch = static_cast<int>(header.w), kv_head = static_cast<int>(tail.y);
    const std::uint8_t* k =
        p.k_gather.strides.head_of(p.k_gather.data, batch, kv_head) + 16 * piece;
    const std::int32_t* keys = p.gather.keys + part.first_entry();
    const auto key_of = [&](int entry) { return __ldcg(keys + part.key_place(entry)); };
    // After the last entry this is the last one once more. The rows copied for it are masked.
    const auto read_key = [&](int n) {
      const int entry = min(n * kStepKeys + own_entry, part.num_entries - 1);
      return entry >= 0 ? key_of(entry) : 0;
    };
    // Returns which of the 32 steps from n on are runs, one bit each. The first is never one, which
    // leaves time for the look-up.
    const auto find_runs = [&](int n) {
      const int first = (n + lane) * kStepKeys, last = first + kStepKeys - 1;
      const bool is_full = lane > 0 && last < min(part.num_full, part.num_entries);
      return __ballot_sync(~0u, is_full && key_of(last) - key_of(first) == kStepKeys - 1);
    };
    int key = read_key(0);
    std::uint32_t runs = 0;
    const int end = (num_tiles - part.num_tiles) * kSteps;
    for (int n = -part.num_tiles * kSteps; n < end; ++n, ++step) {
      const int stage = stage_of(step);
      const std::uint32_t full = base + Layout::kKFull + 8 * stage;
      ptx::mbarrier_wait(base + Layout::kKEmpty + 8 * stage, empty_phase_of(step),
                         "gather: K empty");
      const int next_key = n < 0 ? key : read_key(n + 1);
      const int num_entries = part.num_entries - n * kStepKeys;
      Copier copier = Copier::none;
      if (n >= 0) {
        const int bit = n % kWarpSize;
        copier = bit != 0 && (runs >> bit & 1) != 0 ? Copier::engine : Copier::threads;
      }
      if (copier == Copier::engine) {
        arrive_for_run(full);
        if (thread == 0) {
          copy_run<Layout::kPanelsQk, kStepKeys>(base + Layout::kK + stage * Layout::kKBytes, &p.k,
                                                 full, key, kv_head, batch);
        }
      } else if (copier == Copier::threads) {
        copy_rows<Layout::kPanelsQk, kStepKeys>(place + Layout::kK + stage * Layout::kKBytes, k,
                                                p.k_gather.strides.row, k_bytes, key, num_entries);
        ptx::copies_commit();
      }
      copy_pending();
      if (copier == Copier::threads) {
        if (pending == Copier::threads) {
          ptx::copies_wait<1>();
        } else {
          ptx::copies_wait<0>();
        }
        hand_on(full);
      }
      hand_pending_on();
      if (n >= 0 && n % kWarpSize == 0) runs = find_runs(n);
      pending = copier;
      pending_key = key;
      pending_entries = num_entries;
      pending_head = kv_head;
      pending_batch = batch;
      key = next_key;
    }
  }
  copy_pending();
  hand_pending_on();
}

}  // namespace fdma::sm90
