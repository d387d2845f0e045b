// Makes kv worklists on the device in five launches. A key segment is 2,048 keys of a row; order
// and cuts are those of plan/kv_worklist.hpp.
//   1. count_ends    per key segment: whether its intervals are cut at the ends of segments, and
//   how many
//                    parts of them end in each of 1,024 bins of queries
//   2. place_bins    per row: where the parts of a bin begin, and those of each key segment in it
//   3. place_keys    moves parts to their bins, in the permutation of keys
//   4. order_blocks  sorts blocks of some tiles by the first query; computes for each tile which
//                    queries see some of its keys and which see all, and for each segment how many
//                    tiles begin in it
//   5. write_work_tiles   per segment of a row: its work tiles, longest first; for worklists with
//   an order
//                    write_work_tiles_in_dq_order and write_ranks (device_accumulation_order.cuh)
// All counts are added in a fixed order or are integers, so the result is the same in every run.
//
// Example     131,072 tokens, w = 2,048, random scores: 10,474 keys listed 73,960 times, 578 work
// tiles
// Source      counting sort; blocks sorted by end and inside them by begin as in kv_permutation.cpp
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <string>

#include "cuda/cuda_error.hpp"
#include "dynamic_mask/device_accumulation_order.cuh"
#include "dynamic_mask/device_kv_worklist.hpp"
#include "dynamic_mask/ordered_keys.cuh"
#include "ptx/warp_sums.cuh"

namespace fdma::dynamic_mask {
namespace {

// The work tiles of one segment of a row, by length.
class SegmentWorkTiles {
 public:
  __device__ SegmentWorkTiles(const Lists& call, std::int64_t row, int segment)
      : call_(call), row_(row), segment_(segment) {}

  // The tile cut to this segment; end <= begin: it has no work tile here.
  __device__ TileRange tile_here(int index, int num_tiles) const {
    if (index >= num_tiles) return {0, 0, 0, 0};
    TileRange tile = call_.tiles[row_ * call_.num_tiles + index];
    if (tile.begin / call_.segment_tiles != segment_) tile.end = tile.begin;
    return tile;
  }
  // The sort class, longest first; -1: none.
  __device__ int rank_of(const TileRange& tile) const {
    return tile.begin < tile.end
               ? call_.segment_tiles - min(tile.end - tile.begin, call_.segment_tiles)
               : -1;
  }

 private:
  const Lists& call_;
  std::int64_t row_;
  int segment_;
};

__global__ void __launch_bounds__(kKeySegmentThreads)
    write_work_tiles(const __grid_constant__ Lists call) {
  __shared__ int places[kKeySegmentWarps][kMaxSegmentTiles];  // as in place_keys, for each length
  __shared__ int totals[kKeySegmentWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row = blockIdx.x / call.num_segments;
  const int segment = static_cast<int>(blockIdx.x % call.num_segments);
  // Number of work tiles of all earlier segments.
  int before = 0;
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(blockIdx.x);
       i += kKeySegmentThreads) {
    before += call.segment_work_tiles[i];
  }
  before = __reduce_add_sync(~0u, before);
  if (lane == 0) totals[warp] = before;
  for (int i = static_cast<int>(threadIdx.x); i < kKeySegmentWarps * kMaxSegmentTiles;
       i += kKeySegmentThreads) {
    (&places[0][0])[i] = 0;
  }
  __syncthreads();
  before = 0;
#pragma unroll
  for (const int total : totals) before += total;
  const int num_here = call.segment_work_tiles[blockIdx.x];
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) *call.num_work_tiles = before + num_here;
  if (num_here == 0) return;

  const SegmentWorkTiles work_tiles(call, row, segment);
  const int num_tiles = call.tiles_of(row);
  const int tiles_of_warp = (num_tiles + kKeySegmentThreads - 1) / kKeySegmentThreads * kWarp;
  const int first = warp * tiles_of_warp + lane, end = (warp + 1) * tiles_of_warp;
  for (int index = first; index < end; index += kWarp) {
    const int position = work_tiles.rank_of(work_tiles.tile_here(index, num_tiles));
    if (position >= 0) atomicAdd(&places[warp][position], 1);
  }
  __syncthreads();
  if (warp == 0) {
    constexpr int kRanksOfLane = kMaxSegmentTiles / kWarp;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kRanksOfLane * kKeySegmentWarps; ++i) {
      sum += places[i % kKeySegmentWarps][lane * kRanksOfLane + i / kKeySegmentWarps];
    }
    int at = before + ptx::sum_up_to(sum, lane) - sum;
#pragma unroll
    for (int i = 0; i < kRanksOfLane * kKeySegmentWarps; ++i) {
      int& place = places[i % kKeySegmentWarps][lane * kRanksOfLane + i / kKeySegmentWarps];
      const int count = place;
      place = at;
      at += count;
    }
  }
  __syncthreads();
  for (int index = first; index < end; index += kWarp) {
    const TileRange tile = work_tiles.tile_here(index, num_tiles);
    const int position = work_tiles.rank_of(tile);
    const std::uint32_t same = __match_any_sync(~0u, position);
    const int at = position >= 0 ? places[warp][position] : 0;
    __syncwarp();
    if (position >= 0) {
      const int earlier = __popc(same & lanes_below(lane));
      KvWorkTile work_tile{};
      work_tile.batch = static_cast<std::int32_t>(row / call.heads_kv);
      work_tile.kv_head = static_cast<std::int32_t>(row % call.heads_kv);
      work_tile.key_tile = static_cast<std::int32_t>(row * call.num_tiles) + index;
      work_tile.first_accum_row = static_cast<std::int32_t>(row * call.sum_rows);
      work_tile.begin_tile = tile.begin;
      work_tile.end_tile = tile.end;
      work_tile.full_begin = tile.full_begin;
      work_tile.full_end = tile.full_end;
      call.work_tiles[at + earlier] = work_tile;
      if (earlier == 0) places[warp][position] = at + __popc(same);
    }
    __syncwarp();
  }
}

// Upper bound of the blocks of tiles of a row.
int most_blocks(int num_tiles) {
  int most = 0;
  for (const int tiles : {15, 31, 127, 255, num_tiles}) {
    const int each = std::min(tiles, num_tiles);
    most = std::max(most, (each + order_block_tiles(each) - 1) / order_block_tiles(each));
  }
  return most;
}

std::int64_t num_key_segments_of(std::int64_t kv_len) { return ceil_div(kv_len, kKeySegmentSize); }

// Offsets in the workspace, in bytes.
struct Places {
  explicit Places(const KvWorklistRoom& room) {
    const auto take = [&](std::int64_t size) {
      const std::int64_t at = bytes;
      bytes += ceil_div(size, std::int64_t{16}) * 16;
      return at;
    };
    counts = take(room.num_rows * num_key_segments_of(room.kv_len) * kBins * 4);
    key_segment_accum_rows = take(room.num_rows * num_key_segments_of(room.kv_len) * 4);
    bin_begins = take(room.num_rows * kBins * 4);
    num_worklist_entries = take(room.num_rows * 4);
    tiles =
        take(room.num_rows * room.tiles_of_row() * static_cast<std::int64_t>(sizeof(TileRange)));
    segment_work_tiles = take(room.num_rows * room.num_segments() * 4);
    const std::int64_t in_turn = room.has_order ? room.work_tiles_capacity() : 0;
    unordered = take(in_turn * static_cast<std::int64_t>(sizeof(int4)));
    in_order = take(in_turn * static_cast<std::int64_t>(sizeof(int4)));
  }
  std::int64_t counts, key_segment_accum_rows, bin_begins, num_worklist_entries, tiles,
      segment_work_tiles;
  std::int64_t unordered, in_order;
  std::int64_t bytes = 0;
};

Result<void> check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return gpu::check_cuda(error, (std::string("launch of ") + kernel).c_str());
}

}  // namespace

std::int64_t KvWorklistRoom::workspace_bytes() const { return Places(*this).bytes; }

Result<void> make_kv_worklist_on_device(const KvWorklistCall& call, Stream stream) {
  const KvWorklistRoom& room = call.room;
  const std::int64_t num_key_segments = num_key_segments_of(room.kv_len),
                     num_segments = room.num_segments();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  // All are counted in 32 bits; the main kernel counts worklist keys.
  const std::int64_t count = std::max({room.keys_capacity(), room.num_rows * num_segments,
                                       room.accum_capacity(), room.positions_capacity()});
  if (count > kMost) {
    return Error{ErrorCode::unsupported,
                 "kv worklist: " + std::to_string(room.num_rows) + " rows of " +
                     std::to_string(room.kv_len) + " keys may need " + std::to_string(count) +
                     (room.has_order ? " worklist entries, sums or positions of deterministic calls"
                                     : " worklist entries or sums") +
                     ", expected at most 2^31 - 1"};
  }
  if (room.num_rows == 0 || num_key_segments == 0 || num_segments == 0) {
    return gpu::check_cuda(cudaMemsetAsync(call.num_work_tiles, 0, sizeof(std::int32_t), stream),
                           "cudaMemsetAsync");
  }
  const Places places(room);
  char* const base = static_cast<char*>(call.workspace);
  Lists lists{};
  lists.kept = reinterpret_cast<const int2*>(call.kept);
  lists.kv_len = room.kv_len;
  lists.q_lens = call.q_lens;
  lists.num_key_segments = static_cast<std::uint32_t>(num_key_segments);
  lists.heads_kv = call.heads_kv;
  lists.num_tiles = static_cast<std::int32_t>(room.tiles_of_row());
  lists.num_segments = static_cast<std::int32_t>(num_segments);
  lists.segment_tiles = room.segment_tiles;
  lists.sum_rows = static_cast<std::int32_t>(room.sum_rows());
  lists.longest_short_life =
      static_cast<std::int32_t>(longest_short_life(room.w, room.segment_tiles));
  lists.counts = reinterpret_cast<std::uint32_t*>(base + places.counts);
  lists.bin_begins = reinterpret_cast<std::int32_t*>(base + places.bin_begins);
  lists.num_worklist_entries = reinterpret_cast<std::int32_t*>(base + places.num_worklist_entries);
  lists.key_segment_accum_rows =
      reinterpret_cast<std::int32_t*>(base + places.key_segment_accum_rows);
  lists.tiles = reinterpret_cast<TileRange*>(base + places.tiles);
  lists.segment_work_tiles = reinterpret_cast<std::int32_t*>(base + places.segment_work_tiles);
  static_assert(sizeof(WorklistEntry) == sizeof(int4));
  lists.keys = reinterpret_cast<int4*>(call.keys);
  lists.work_tiles = call.work_tiles;
  lists.num_work_tiles = call.num_work_tiles;
  lists.accum_keys = call.accum_keys;
  lists.num_accum_rows = call.num_accum_rows;
  lists.q_tiles = static_cast<std::int32_t>(ceil_div(room.q_len, std::int64_t{kWorklistTile}));
  if (room.has_order) {
    lists.unordered = reinterpret_cast<int4*>(base + places.unordered);
    lists.in_order = reinterpret_cast<int4*>(base + places.in_order);
    lists.first_positions = call.first_positions;
    lists.positions = call.positions;
  }

  const auto num_rows = static_cast<unsigned>(room.num_rows);
  const unsigned all_pieces = num_rows * lists.num_key_segments;
  const int blocks_of_row = most_blocks(lists.num_tiles);
  count_ends<<<all_pieces, kKeySegmentThreads, 0, stream>>>(lists);
  FDMA_TRY_VOID(check_launch("count_ends"));
  place_bins<<<num_rows, kRowThreads, 0, stream>>>(lists);
  FDMA_TRY_VOID(check_launch("place_bins"));
  place_keys<<<all_pieces, kKeySegmentThreads, 0, stream>>>(lists);
  FDMA_TRY_VOID(check_launch("place_keys"));
  order_blocks<<<num_rows* static_cast<unsigned>(blocks_of_row), kKeySegmentThreads, 0, stream>>>(
      lists, blocks_of_row);
  FDMA_TRY_VOID(check_launch("order_blocks"));
  const unsigned all_segments = num_rows * static_cast<unsigned>(lists.num_segments);
  if (!room.has_order) {
    write_work_tiles<<<all_segments, kKeySegmentThreads, 0, stream>>>(lists);
    return check_launch("write_work_tiles");
  }
  write_work_tiles_in_dq_order<<<all_segments, kKeySegmentThreads, 0, stream>>>(lists);
  FDMA_TRY_VOID(check_launch("write_work_tiles_in_dq_order"));
  const int rank_blocks = ceil_div(lists.q_tiles, kRankThreads);
  write_ranks<<<num_rows* static_cast<unsigned>(rank_blocks), kRankThreads, 0, stream>>>(
      lists, rank_blocks);
  return check_launch("write_ranks");
}

}  // namespace fdma::dynamic_mask
