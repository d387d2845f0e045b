// The first four launches of device_key_lists.cu: the kept keys of each row in the order of
// key_lists.hpp, and of each tile of them the queries that see some and that see all.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "dynamic_mask/live_keys.cuh"
#include "fdma/kernels/key_lists.hpp"
#include "zoh/piece_sort.cuh"

namespace fdma::dynamic_mask {

inline constexpr int kPieceThreads = 256;
inline constexpr int kPieceWarps = kPieceThreads / kWarp;
inline constexpr int kRounds = kPieceKeys / kPieceThreads;  // of a warp, 32 keys each
inline constexpr int kBins = 1024;                          // steps of lifetime_shift
inline constexpr int kRowThreads = 1024;                    // of kernels of a block a row
inline constexpr int kMaxBlockTiles = 8;
static_assert(kBins == kRowThreads && kMaxBlockTiles == kPieceWarps);

// A tile of listed keys: its queries in tiles, and its rows of sums.
struct __align__(8) TileRange {
  std::int32_t begin, end;            // that see some key
  std::int32_t full_begin, full_end;  // that see all
  std::int32_t first_sum;             // or kNoSums: it is not cut
  std::int32_t unused;
};

struct Lists {
  const int2* kept;
  std::int64_t kv_len;
  const std::int32_t* q_lens;
  std::uint32_t num_pieces;  // of a row
  std::int32_t heads_kv;
  std::int32_t num_tiles, num_segments;  // of a row at most
  std::int32_t segment_tiles, extra_items, sum_rows;
  std::uint32_t* counts;        // [rows, pieces, kBins]; then those before, of the row
  std::int32_t* bin_begins;     // [rows, kBins]
  std::int32_t* num_kept;       // [rows]
  TileRange* tiles;             // [rows, num_tiles]
  std::int32_t* segment_items;  // [rows, num_segments]
  int4* keys;                   // ListedKey
  KeyItem* items;
  std::int32_t* num_items;
  SumKey* sum_keys;
  std::int32_t* num_sums;

  __device__ int4* keys_of(std::int64_t row) const { return keys + row * num_tiles * kListTile; }
  __device__ int tiles_of(std::int64_t row) const {
    return (num_kept[row] + kListTile - 1) / kListTile;
  }
};

// The keys of a piece: those of a warp lie side by side, 32 in a round.
struct PieceKeys {
  __device__ explicit PieceKeys(const Lists& call)
      : row(blockIdx.x / call.num_pieces),
        piece(static_cast<int>(blockIdx.x % call.num_pieces)),
        first(static_cast<int>(piece * kPieceKeys) +
              static_cast<int>(threadIdx.x) / kWarp * kRounds * kWarp +
              static_cast<int>(threadIdx.x) % kWarp) {
    const int shift = lifetime_shift(call.q_lens[row]);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const std::int64_t key = first + i * kWarp;
      queries[i] = key < call.kv_len ? __ldg(call.kept + row * call.kv_len + key) : make_int2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      bins[i] = queries[i].x < queries[i].y ? (queries[i].y - 1) >> shift : -1;
    }
  }
  std::int64_t row;
  int piece, first;
  int2 queries[kRounds];
  int bins[kRounds];  // -1: nobody keeps it
};

static __global__ void __launch_bounds__(kPieceThreads)
    count_ends(const __grid_constant__ Lists call) {
  __shared__ std::uint32_t counts[kBins];
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kPieceThreads) counts[bin] = 0;
  const PieceKeys keys(call);
  __syncthreads();
#pragma unroll
  for (const int bin : keys.bins) {
    if (bin >= 0) atomicAdd(counts + bin, 1u);
  }
  __syncthreads();
  std::uint32_t* const out = call.counts + std::int64_t{blockIdx.x} * kBins;
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kPieceThreads) {
    out[bin] = counts[bin];
  }
}

// Sums of a value over the threads before this one, and over all of them. A block of kRowThreads.
struct RowSums {
  __device__ int before(int value) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int up_to = sum_up_to(value, lane);
    __syncthreads();  // the sums before these have been read
    if (lane == kWarp - 1) warps[warp] = up_to;
    __syncthreads();
    const int of_warps = sum_up_to(warps[lane], lane);
    all = __shfl_sync(~0u, of_warps, kWarp - 1);
    const int earlier = __shfl_sync(~0u, of_warps, max(warp - 1, 0));
    return up_to - value + (warp > 0 ? earlier : 0);
  }
  int* warps;  // shared, kWarp of them
  int all = 0;
};
static_assert(kRowThreads == kWarp * kWarp);

// A thread has a bin.
static __global__ void __launch_bounds__(kRowThreads)
    place_bins(const __grid_constant__ Lists call) {
  __shared__ int warps[kWarp];
  const std::int64_t row = blockIdx.x;
  const int bin = static_cast<int>(threadIdx.x);
  std::uint32_t* counts = call.counts + row * call.num_pieces * kBins + bin;
  int sum = 0;
#pragma unroll 16
  for (std::uint32_t piece = 0; piece < call.num_pieces; ++piece, counts += kBins) {
    const auto count = static_cast<int>(*counts);
    *counts = static_cast<std::uint32_t>(sum);
    sum += count;
  }
  RowSums sums{warps};
  call.bin_begins[row * kBins + bin] = sums.before(sum);
  if (bin == 0) call.num_kept[row] = sums.all;
}

static __global__ void __launch_bounds__(kPieceThreads)
    place_keys(const __grid_constant__ Lists call) {
  __shared__ int places[kPieceWarps][kBins];  // counts of a warp; then where its next key goes
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int i = static_cast<int>(threadIdx.x); i < kPieceWarps * kBins; i += kPieceThreads) {
    (&places[0][0])[i] = 0;
  }
  const PieceKeys keys(call);
  __syncthreads();
#pragma unroll
  for (const int bin : keys.bins) {
    if (bin >= 0) atomicAdd(&places[warp][bin], 1);
  }
  __syncthreads();
  for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kPieceThreads) {
    int at = call.bin_begins[keys.row * kBins + bin] +
             static_cast<int>(call.counts[std::int64_t{blockIdx.x} * kBins + bin]);
#pragma unroll
    for (int i = 0; i < kPieceWarps; ++i) {
      const int count = places[i][bin];
      places[i][bin] = at;
      at += count;
    }
  }
  __syncthreads();
  int4* const out = call.keys_of(keys.row);
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int bin = keys.bins[i];
    const std::uint32_t same = __match_any_sync(~0u, bin);
    const int at = bin >= 0 ? places[warp][bin] : 0;
    __syncwarp();
    if (bin >= 0) {
      const int before = __popc(same & lanes_below(lane));
      out[at + before] = make_int4(keys.first + i * kWarp, keys.queries[i].x, keys.queries[i].y, 0);
      if (before == 0) places[warp][bin] = at + __popc(same);
    }
    __syncwarp();
  }
}

// A block sorts a block of tiles; a warp has a tile of the result.
static __global__ void __launch_bounds__(kPieceThreads)
    order_blocks(const __grid_constant__ Lists call, int blocks_of_row) {
  constexpr int kMaxKeys = kMaxBlockTiles * kListTile;
  constexpr int kItemsOfThread = zoh::kSortItems;
  static_assert(kMaxKeys == kPieceThreads * kItemsOfThread && kListTile == kWarp * kItemsOfThread);
  __shared__ zoh::RankStorage<kMaxKeys> storage;
  __shared__ int4 unordered[kMaxKeys];
  const std::int64_t row = blockIdx.x / blocks_of_row;
  const int block_tiles = order_block_tiles(call.tiles_of(row));
  const int first_tile = static_cast<int>(blockIdx.x % blocks_of_row) * block_tiles;
  const int num_left = call.num_kept[row] - first_tile * kListTile;
  if (num_left <= 0) return;
  const int size = min(num_left, block_tiles * kListTile);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  int4* const keys = call.keys_of(row) + first_tile * kListTile;
  std::uint64_t ranks[kItemsOfThread];  // larger ones are lower keys; below them their places
#pragma unroll
  for (int i = 0; i < kItemsOfThread; ++i) {
    const int at = i * kPieceThreads + thread;
    ranks[i] = 0;
    if (at >= size) continue;
    unordered[at] = keys[at];
    ranks[i] = std::uint64_t{~static_cast<std::uint32_t>(unordered[at].x)} << 32 |
               static_cast<std::uint32_t>(at);
  }
  __syncthreads();
  zoh::sort_piece(storage, ranks);

  int min_begin = 0x7FFFFFFF, max_begin = 0, min_end = 0x7FFFFFFF, max_end = 0;
  const int first = thread * kItemsOfThread;
  const int padded = (size + kListTile - 1) / kListTile * kListTile;
#pragma unroll
  for (int i = 0; i < kItemsOfThread; ++i) {
    if (first + i >= padded) continue;
    int4 key = make_int4(-1, 0, 0, kNoSums);
    if (first + i < size) {
      key = unordered[static_cast<std::uint32_t>(ranks[i])];
      key.w = (first + i) % kListTile;
      min_begin = min(min_begin, key.y);
      max_begin = max(max_begin, key.y);
      min_end = min(min_end, key.z);
      max_end = max(max_end, key.z);
    }
    keys[first + i] = key;
  }
  if (warp * kListTile >= size) return;
  min_begin = __reduce_min_sync(~0u, min_begin);
  max_begin = __reduce_max_sync(~0u, max_begin);
  min_end = __reduce_min_sync(~0u, min_end);
  max_end = __reduce_max_sync(~0u, max_end);
  if (lane != 0) return;
  const int q_len = call.q_lens[row];
  const auto tiles_up_to = [](int queries) { return (queries + kListTile - 1) / kListTile; };
  TileRange tile{
      min_begin / kListTile, tiles_up_to(max_end), tiles_up_to(max_begin), 0, kNoSums, 0};
  // The last tile of queries may end before its 128th.
  tile.full_end = min_end == q_len ? tiles_up_to(q_len) : min_end / kListTile;
  if (tile.full_begin >= tile.full_end || (warp + 1) * kListTile > size) {
    tile.full_begin = tile.full_end = tile.begin;
  }
  call.tiles[row * call.num_tiles + first_tile + warp] = tile;
}

}  // namespace fdma::dynamic_mask
