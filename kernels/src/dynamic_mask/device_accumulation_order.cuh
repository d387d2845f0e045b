// The work tiles of kv worklists in the order in which they add to dQ, and the positions of their
// visits (accumulation_order.hpp). Its two launches replace write_work_tiles of
// device_kv_worklist.cu.
//
// Work tiles that begin in a segment of queries are in the order of WorklistPlace: those that begin
// last come first, and among these the ones that end last. The work tile that reaches a tile first
// was therefore taken first, and work tiles that begin together finish the segment in the order in
// which they were taken. Segments of kRowsTogether rows are interleaved, so that few work tiles of
// a row are computed at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "dynamic_mask/device_kv_worklist.hpp"
#include "dynamic_mask/ordered_keys.cuh"
#include "plan/worklist_place.hpp"

namespace fdma::dynamic_mask {

inline constexpr int kRankThreads = 128;

// The number of work tiles of each row of a group in a segment, and where they go.
struct SegmentOfRows {
  // Index of the work tile at `place` of row `row` of the group.
  __device__ int work_tile_at(int row, int place) const {
    int at = first;
#pragma unroll
    for (int i = 0; i < kRowsTogether; ++i) {
      at += min(counts[i], place) + (i < row && counts[i] > place ? 1 : 0);
    }
    return at;
  }
  int counts[kRowsTogether];  // 0 past the last row
  int first;  // number of work tiles of earlier groups, and of earlier segments of the group
};

// Sum of a value over a block of kKeySegmentThreads threads. `warps` is shared memory of
// kKeySegmentWarps words.
static __device__ int block_sum(int value, int* warps) {
  value = __reduce_add_sync(~0u, value);
  __syncthreads();  // the previous sum has been read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kKeySegmentWarps; ++i) sum += warps[i];
  return sum;
}

// A block handles a segment of a row.
static __global__ void __launch_bounds__(kKeySegmentThreads)
    write_work_tiles_in_dq_order(const __grid_constant__ Lists call) {
  __shared__ int warps[kKeySegmentWarps];
  __shared__ SegmentOfRows here;
  __shared__ int num_found;
  const int num_segments = call.num_segments;
  const auto row = static_cast<int>(blockIdx.x) / num_segments;
  const auto segment = static_cast<int>(blockIdx.x) % num_segments;
  const int first_row = row / kRowsTogether * kRowsTogether;
  const int num_rows = static_cast<int>(gridDim.x) / num_segments;
  if (threadIdx.x < kRowsTogether) {
    const int each = first_row + static_cast<int>(threadIdx.x);
    here.counts[threadIdx.x] =
        each < num_rows ? call.segment_work_tiles[each * num_segments + segment] : 0;
  }
  int before = 0, before_in_row = 0;
  const int end = min(first_row + kRowsTogether, num_rows) * num_segments;
  for (int i = static_cast<int>(threadIdx.x); i < end; i += kKeySegmentThreads) {
    const bool is_before = i < first_row * num_segments || i % num_segments < segment;
    const int count = is_before ? call.segment_work_tiles[i] : 0;
    before += count;
    if (i / num_segments == row) before_in_row += count;
  }
  before = block_sum(before, warps);
  before_in_row = block_sum(before_in_row, warps);
  if (threadIdx.x == 0) {
    here.first = before;
    num_found = 0;
  }
  __syncthreads();
  const int num_here = here.counts[row - first_row];
  if (row == num_rows - 1 && segment == num_segments - 1 && threadIdx.x == 0) {
    *call.num_work_tiles = here.work_tile_at(0, 0x7FFFFFFF);
  }
  if (num_here == 0) return;

  // Work tiles are stored in any order first.
  const std::int64_t at = std::int64_t{row} * call.num_tiles + before_in_row;
  const TileRange* const tiles = call.tiles + std::int64_t{row} * call.num_tiles;
  int4* const unordered = call.unordered + at;
  const int num_tiles = call.tiles_of(row);
  for (int i = static_cast<int>(threadIdx.x); i < num_tiles; i += kKeySegmentThreads) {
    const TileRange tile = tiles[i];
    if (tile.begin / call.segment_tiles == segment) {
      unordered[atomicAdd(&num_found, 1)] = make_int4(tile.begin, tile.end, i, 0);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_here; i += kKeySegmentThreads) {
    const int4 own = unordered[i];
    const WorklistPlace own_place{own.x, own.y, own.z};
    int place = 0;
    for (int j = 0; j < num_here; ++j) {
      const int4 other = unordered[j];
      if (WorklistPlace{other.x, other.y, other.z} < own_place) ++place;
    }
    const TileRange tile = tiles[own.z];
    const int index = here.work_tile_at(row - first_row, place);
    KvWorkTile work_tile{};
    work_tile.batch = row / call.heads_kv;
    work_tile.kv_head = row % call.heads_kv;
    work_tile.key_tile = row * call.num_tiles + own.z;
    work_tile.first_accum_row = row * call.sum_rows;
    work_tile.begin_tile = tile.begin;
    work_tile.end_tile = tile.end;
    work_tile.full_begin = tile.full_begin;
    work_tile.full_end = tile.full_end;
    call.work_tiles[index] = work_tile;
    call.first_positions[index] = index * call.q_tiles + tile.begin;
    call.in_order[at + place] = make_int4(tile.begin, tile.end, index, 0);
  }
}

// A thread has a tile of queries of a row, and counts the work tiles that visit it.
static __global__ void __launch_bounds__(kRankThreads)
    write_ranks(const __grid_constant__ Lists call, int blocks_of_row) {
  __shared__ int4 work_tiles[kRankThreads];
  const std::int64_t row = blockIdx.x / blocks_of_row;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_tile = static_cast<int>(blockIdx.x) % blocks_of_row * kRankThreads;
  const int tile = first_tile + thread,
            last_segment = (first_tile + kRankThreads - 1) / call.segment_tiles;
  const int num_work_tiles = call.tiles_of(row);
  const int4* const in_order = call.in_order + row * call.num_tiles;
  int position = 0;
  for (int first = 0; first < num_work_tiles; first += kRankThreads) {
    __syncthreads();  // the previous work tiles have been read
    if (first + thread < num_work_tiles) work_tiles[thread] = in_order[first + thread];
    __syncthreads();
    if (work_tiles[0].x / call.segment_tiles > last_segment) break;
    const int count = min(num_work_tiles - first, kRankThreads);
    for (int i = 0; i < count; ++i) {
      const int4 work_tile = work_tiles[i];
      if (tile < work_tile.x || tile >= work_tile.y) continue;
      call.positions[work_tile.z * call.q_tiles + tile] = position++;
    }
  }
}

}  // namespace fdma::dynamic_mask
