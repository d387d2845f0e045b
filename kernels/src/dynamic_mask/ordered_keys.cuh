// The first four launches of device_kv_worklist.cu. They cut the kept keys of each row and put them
// in the order of plan/kv_worklist.hpp. For each tile of keys they compute the queries that see some of
// them and the queries that see all.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "dynamic_mask/live_keys.cuh"
#include "fdma/kernels/kv_worklist.hpp"
#include "plan/kv_cuts.hpp"
#include "ptx/warp_sums.cuh"
#include "selection/topk/block_sort.cuh"

namespace fdma::dynamic_mask {

inline constexpr int kKeySegmentThreads = 256;
inline constexpr int kKeySegmentWarps = kKeySegmentThreads / kWarp;
inline constexpr int kRounds = kKeySegmentSize / kKeySegmentThreads;  // of a warp, 32 keys each
inline constexpr int kBins = 1024;                                    // steps of live_range_shift
inline constexpr int kRowThreads = 1024;  // threads of kernels with one block per row
inline constexpr int kMaxBlockTiles = 8;
static_assert(kBins == kRowThreads && kMaxBlockTiles == kKeySegmentWarps);

// A tile of worklist keys: its range of queries, in tiles.
struct __align__(16) TileRange {
  std::int32_t begin, end;            // tiles that see some key
  std::int32_t full_begin, full_end;  // tiles that see all keys
};

struct Lists {
  const int2* kept;
  std::int64_t kv_len;
  const std::int32_t* q_lens;
  std::uint32_t num_key_segments;  // per row
  std::int32_t heads_kv;
  std::int32_t num_tiles, num_segments;  // per row, upper bounds
  std::int32_t segment_tiles, sum_rows;
  std::int32_t longest_short_life;
  std::int32_t q_tiles;  // per row, upper bound
  std::uint32_t*
      counts;  // [rows, key segments, kBins]; later the sums over earlier key segments of the row
  std::int32_t*
      key_segment_accum_rows;  // [rows, key segments], accumulator rows; later the sums over earlier key segments
  std::int32_t* bin_begins;            // [rows, kBins]
  std::int32_t* num_worklist_entries;  // [rows]
  TileRange* tiles;                    // [rows, num_tiles]
  std::int32_t* segment_work_tiles;    // [rows, num_segments]
  int4* keys;                          // WorklistEntry
  KvWorkTile* work_tiles;
  std::int32_t* num_work_tiles;
  AccumKey* accum_keys;
  std::int32_t* num_accum_rows;
  // With an accumulation order, otherwise null.
  int4* unordered;  // [rows, num_tiles], the tiles of each segment: first and last query, tile
  int4* in_order;   // the same tiles in order: first and last query, work tile
  std::int32_t *first_positions, *positions;

  __device__ int4* keys_of(std::int64_t row) const {
    return keys + row * num_tiles * kWorklistTile;
  }
  __device__ int tiles_of(std::int64_t row) const {
    return (num_worklist_entries[row] + kWorklistTile - 1) / kWorklistTile;
  }
  __device__ int segment_queries() const { return segment_tiles * kWorklistTile; }
  // Number of accumulator rows of a key that is listed `num_parts` times.
  __device__ int num_accum_rows_of(int num_parts) const {
    return num_parts < 2 ? 0 : positions == nullptr ? 1 : (num_parts + 1) / 2;
  }
};

// The kept keys of a key segment. Those of a warp are adjacent, 32 in a round.
struct KeySegmentKeys {
  __device__ explicit KeySegmentKeys(const Lists& call)
      : row(blockIdx.x / call.num_key_segments),
        key_segment(static_cast<int>(blockIdx.x % call.num_key_segments)),
        first(static_cast<int>(key_segment * kKeySegmentSize) +
              static_cast<int>(threadIdx.x) / kWarp * kRounds * kWarp +
              static_cast<int>(threadIdx.x) % kWarp),
        shift(live_range_shift(call.q_lens[row])) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const std::int64_t key = first + i * kWarp;
      queries[i] = key < call.kv_len ? __ldg(call.kept + row * call.kv_len + key) : make_int2(0, 0);
    }
  }
  __device__ bool is_kept(int i) const { return queries[i].x < queries[i].y; }
  // Whether the block's intervals are cut. `counts` is shared memory of kKeySegmentWarps words.
  __device__ bool cuts(const Lists& call, int* counts) const {
    int count = 0;  // long intervals are counted in the upper half
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const bool is_long = queries[i].y - queries[i].x > call.longest_short_life;
      count += (is_kept(i) ? 1 : 0) + (is_kept(i) && is_long ? 1 << 16 : 0);
    }
    count = __reduce_add_sync(~0u, count);
    if (threadIdx.x % kWarp == 0) counts[threadIdx.x / kWarp] = count;
    __syncthreads();
    count = 0;
#pragma unroll
    for (int i = 0; i < kKeySegmentWarps; ++i) count += counts[i];
    __syncthreads();
    return cuts_key_segment(count & 0xFFFF, count >> 16);
  }

  std::int64_t row;
  int key_segment, first, shift;
  int2 queries[kRounds];
};
static_assert(kKeySegmentSize == kCutKeys);

static __global__ void __launch_bounds__(kKeySegmentThreads)
    count_ends(const __grid_constant__ Lists call) {
  __shared__ std::uint32_t counts[kBins];
  __shared__ int warps[kKeySegmentWarps];
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kKeySegmentThreads)
    counts[bin] = 0;
  const KeySegmentKeys keys(call);
  const bool cuts = keys.cuts(call, warps);
  const int segment = call.segment_queries();
  int num_accum_rows = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if (!keys.is_kept(i)) continue;
    const int last = keys.queries[i].y - 1;
    const int first_end = (keys.queries[i].x / segment + 1) * segment;
    if (cuts && first_end <= last) {
      num_accum_rows += call.num_accum_rows_of(last / segment - first_end / segment + 2);
      for (int end = first_end; end <= last; end += segment) {
        atomicAdd(counts + ((end - 1) >> keys.shift), 1u);
      }
    }
    atomicAdd(counts + (last >> keys.shift), 1u);
  }
  num_accum_rows = __reduce_add_sync(~0u, num_accum_rows);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = num_accum_rows;
  __syncthreads();
  std::uint32_t* const out = call.counts + std::int64_t{blockIdx.x} * kBins;
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kKeySegmentThreads) {
    out[bin] = counts[bin];
  }
  if (threadIdx.x == 0) {
    num_accum_rows = 0;
#pragma unroll
    for (const int each : warps) num_accum_rows += each;
    call.key_segment_accum_rows[blockIdx.x] = num_accum_rows;
  }
}

// Sums of a value over earlier threads, and over all threads. A block of kRowThreads threads.
struct DeltaSource {
  __device__ int before(int value) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int up_to = ptx::sum_up_to(value, lane);
    __syncthreads();  // the previous sums have been read
    if (lane == kWarp - 1) warps[warp] = up_to;
    __syncthreads();
    const int of_warps = ptx::sum_up_to(warps[lane], lane);
    all = __shfl_sync(~0u, of_warps, kWarp - 1);
    const int earlier = __shfl_sync(~0u, of_warps, max(warp - 1, 0));
    return up_to - value + (warp > 0 ? earlier : 0);
  }
  int* warps;  // shared memory, kWarp words
  int all = 0;
};
static_assert(kRowThreads == kWarp * kWarp);

// A thread has a bin.
static __global__ void __launch_bounds__(kRowThreads)
    place_bins(const __grid_constant__ Lists call) {
  __shared__ int warps[kWarp];
  const std::int64_t row = blockIdx.x;
  const int bin = static_cast<int>(threadIdx.x);
  std::uint32_t* counts = call.counts + row * call.num_key_segments * kBins + bin;
  constexpr std::uint32_t kAtOnce = 16;  // loads before the stores that might change what they read
  int sum = 0;
  for (std::uint32_t key_segment = 0; key_segment < call.num_key_segments; key_segment += kAtOnce) {
    std::uint32_t here[kAtOnce];
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      here[i] = key_segment + i < call.num_key_segments ? counts[(key_segment + i) * kBins] : 0;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kAtOnce; ++i) {
      if (key_segment + i < call.num_key_segments)
        counts[(key_segment + i) * kBins] = static_cast<std::uint32_t>(sum);
      sum += static_cast<int>(here[i]);
    }
  }
  DeltaSource sums{warps};
  call.bin_begins[row * kBins + bin] = sums.before(sum);
  if (bin == 0) call.num_worklist_entries[row] = min(sums.all, call.num_tiles * kWorklistTile);
  for (int i = bin; i < call.num_segments; i += kRowThreads) {
    call.segment_work_tiles[row * call.num_segments + i] = 0;
  }
  int num_accum_rows = 0;
  for (std::uint32_t first = 0; first < call.num_key_segments; first += kRowThreads) {
    const std::uint32_t key_segment = first + threadIdx.x;
    std::int32_t* const of_key_segment =
        call.key_segment_accum_rows + row * call.num_key_segments + key_segment;
    const int before =
        num_accum_rows + sums.before(key_segment < call.num_key_segments ? *of_key_segment : 0);
    if (key_segment < call.num_key_segments) *of_key_segment = before;
    num_accum_rows += sums.all;
  }
  if (bin == 0) call.num_accum_rows[row] = min(num_accum_rows, call.sum_rows);
}

static __global__ void __launch_bounds__(kKeySegmentThreads)
    place_keys(const __grid_constant__ Lists call) {
  __shared__ int places[kKeySegmentWarps]
                       [kBins];  // counts of a warp; then the place of its next part
  // Relative to the warp's first key
  __shared__ std::uint8_t kept_keys[kKeySegmentWarps][kRounds * kWarp];
  __shared__ int warps[kKeySegmentWarps];
  static_assert(kRounds * kWarp <= 256);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int i = static_cast<int>(threadIdx.x); i < kKeySegmentWarps * kBins;
       i += kKeySegmentThreads) {
    (&places[0][0])[i] = 0;
  }
  const KeySegmentKeys keys(call);
  const bool cuts = keys.cuts(call, warps);
  // Compacts the kept keys of a warp; 32 of them are a round.
  int num_kept = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const std::uint32_t kept = __ballot_sync(~0u, keys.is_kept(i));
    if (keys.is_kept(i)) {
      kept_keys[warp][num_kept + __popc(kept & lanes_below(lane))] =
          static_cast<std::uint8_t>(i * kWarp + lane);
    }
    num_kept += __popc(kept);
  }
  __syncwarp();
  const auto key_at = [&](int i) { return keys.first - lane + kept_keys[warp][i]; };
  // Returns a reversed interval where there is no key.
  const auto queries_of = [&](int i) {
    return i < num_kept ? __ldg(call.kept + keys.row * call.kv_len + key_at(i)) : make_int2(0, 0);
  };
  const int segment = call.segment_queries();
  // The segments that list a key.
  const auto segments_of = [&](const int2& queries) {
    if (queries.x >= queries.y) return make_int2(0x7FFFFFFF, -1);
    const int last = (queries.y - 1) / segment;
    return make_int2(cuts ? queries.x / segment : last, last);
  };
  // The queries of a key that segment s lists.
  const auto part_of = [&](const int2& queries, int s) {
    return make_int2(cuts ? max(queries.x, s * segment) : queries.x,
                     min(queries.y, (s + 1) * segment));
  };
  const auto num_accum_rows_of = [&](const int2& segments) {
    return segments.x < segments.y ? call.num_accum_rows_of(segments.y - segments.x + 1) : 0;
  };
  int num_accum_rows = 0;
  for (int i = lane; i - lane < num_kept; i += kWarp) {
    const int2 queries = queries_of(i), segments = segments_of(queries);
    num_accum_rows += num_accum_rows_of(segments);
    for (int s = segments.x; s <= segments.y; ++s) {
      atomicAdd(&places[warp][(part_of(queries, s).y - 1) >> keys.shift], 1);
    }
  }
  num_accum_rows = __reduce_add_sync(~0u, num_accum_rows);
  if (lane == 0) warps[warp] = num_accum_rows;
  __syncthreads();
  int accum_row = call.key_segment_accum_rows[blockIdx.x];
  for (int i = 0; i < warp; ++i) accum_row += warps[i];
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kKeySegmentThreads) {
    int at = call.bin_begins[keys.row * kBins + bin] +
             static_cast<int>(call.counts[std::int64_t{blockIdx.x} * kBins + bin]);
#pragma unroll
    for (int i = 0; i < kKeySegmentWarps; ++i) {
      const int count = places[i][bin];
      places[i][bin] = at;
      at += count;
    }
  }
  __syncthreads();
  int4* const out = call.keys_of(keys.row);
  const int capacity = call.num_tiles * kWorklistTile;
  for (int i = lane; i - lane < num_kept; i += kWarp) {
    const int key = i < num_kept ? key_at(i) : 0;
    const int2 queries = queries_of(i), segments = segments_of(queries);
    const int num_rows = num_accum_rows_of(segments), rows_up_to = ptx::sum_up_to(num_rows, lane);
    const int first_accum_row = accum_row + rows_up_to - num_rows;
    for (int at = first_accum_row; at < min(first_accum_row + num_rows, call.sum_rows); ++at) {
      call.accum_keys[keys.row * call.sum_rows + at] = {static_cast<std::int32_t>(keys.row), key};
    }
    accum_row += __shfl_sync(~0u, rows_up_to, kWarp - 1);
    // Goes segment by segment: parts of a bin come in the order of their keys.
    const int last = __reduce_max_sync(~0u, segments.y);
    for (int s = __reduce_min_sync(~0u, segments.x); s <= last; ++s) {
      const bool has_worklist = segments.x <= s && s <= segments.y;
      if (!__any_sync(~0u, has_worklist)) continue;
      const int2 part = part_of(queries, s);
      const int bin = has_worklist ? (part.y - 1) >> keys.shift : -1;
      const std::uint32_t same = __match_any_sync(~0u, bin);
      const int at = bin >= 0 ? places[warp][bin] : 0;
      __syncwarp();
      if (bin >= 0) {
        const int before = __popc(same & lanes_below(lane));
        const int sums = first_accum_row + (call.positions == nullptr ? 0 : (s - segments.x) / 2);
        const bool has_accum = num_rows > 0 && sums < call.sum_rows;
        if (at + before < capacity) {
          out[at + before] = make_int4(key, part.x, part.y, has_accum ? sums : kNoAccum);
        }
        if (before == 0) places[warp][bin] = at + __popc(same);
      }
      __syncwarp();
    }
  }
}

// A block sorts a block of tiles; a warp has a tile of the result.
static __global__ void __launch_bounds__(kKeySegmentThreads)
    order_blocks(const __grid_constant__ Lists call, int blocks_of_row) {
  constexpr int kMaxKeys = kMaxBlockTiles * kWorklistTile;
  constexpr int kItemsOfThread = zoh::kSortItems;
  static_assert(kMaxKeys == kKeySegmentThreads * kItemsOfThread &&
                kWorklistTile == kWarp * kItemsOfThread);
  __shared__ zoh::RankStorage<kMaxKeys> storage;
  __shared__ int4 unordered[kMaxKeys];
  const std::int64_t row = blockIdx.x / blocks_of_row;
  const int block_tiles = order_block_tiles(call.tiles_of(row));
  const int first_tile = static_cast<int>(blockIdx.x % blocks_of_row) * block_tiles;
  const int num_left = call.num_worklist_entries[row] - first_tile * kWorklistTile;
  if (num_left <= 0) return;
  const int size = min(num_left, block_tiles * kWorklistTile);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  int4* const keys = call.keys_of(row) + first_tile * kWorklistTile;
  std::uint64_t
      positions[kItemsOfThread];  // larger positions begin earlier, or come first in the list
#pragma unroll
  for (int i = 0; i < kItemsOfThread; ++i) {
    const int at = i * kKeySegmentThreads + thread;
    positions[i] = 0;
    if (at >= size) continue;
    unordered[at] = keys[at];
    positions[i] = std::uint64_t{~static_cast<std::uint32_t>(unordered[at].y)} << 32 |
                   ~static_cast<std::uint32_t>(at);
  }
  __syncthreads();
  zoh::sort_key_segment(storage, positions);

  int min_begin = 0x7FFFFFFF, max_begin = 0, min_end = 0x7FFFFFFF, max_end = 0;
  const int first = thread * kItemsOfThread;
  const int padded = (size + kWorklistTile - 1) / kWorklistTile * kWorklistTile;
#pragma unroll
  for (int i = 0; i < kItemsOfThread; ++i) {
    if (first + i >= padded) continue;
    int4 key = make_int4(-1, 0, 0, kNoAccum);
    if (first + i < size) {
      key = unordered[~static_cast<std::uint32_t>(positions[i])];
      min_begin = min(min_begin, key.y);
      max_begin = max(max_begin, key.y);
      min_end = min(min_end, key.z);
      max_end = max(max_end, key.z);
    }
    keys[first + i] = key;
  }
  if (warp * kWorklistTile >= size) return;
  min_begin = __reduce_min_sync(~0u, min_begin);
  max_begin = __reduce_max_sync(~0u, max_begin);
  min_end = __reduce_min_sync(~0u, min_end);
  max_end = __reduce_max_sync(~0u, max_end);
  if (lane != 0) return;
  const int q_len = call.q_lens[row];
  const auto tiles_up_to = [](int queries) {
    return (queries + kWorklistTile - 1) / kWorklistTile;
  };
  TileRange tile{min_begin / kWorklistTile, tiles_up_to(max_end), tiles_up_to(max_begin), 0};
  // The last tile of queries may end before its 128th query.
  tile.full_end = min_end == q_len ? tiles_up_to(q_len) : min_end / kWorklistTile;
  if (tile.full_begin >= tile.full_end || (warp + 1) * kWorklistTile > size) {
    tile.full_begin = tile.full_end = tile.begin;
  }
  call.tiles[row * call.num_tiles + first_tile + warp] = tile;
  atomicAdd(call.segment_work_tiles + row * call.num_segments + tile.begin / call.segment_tiles, 1);
}

}  // namespace fdma::dynamic_mask
