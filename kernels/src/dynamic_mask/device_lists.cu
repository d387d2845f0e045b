// Lists in two launches.
//   1. compact_kept   pieces of 2,048 keys: those that anybody keeps move together, in place, and
//                     of each piece it is known how many they are, the first query that keeps one
//                     and the last
//   2. cut_lists      a block takes 16 consecutive tiles of a row. It finds the keys that live in
//                     any of them once, from the pieces that reach into the group, and puts them
//                     into shared memory in order; of each 32 it notes for every tile which of
//                     them all rows see, and which some. Then each warp goes over those marks for
//                     a tile of its own: first the keys that all rows see, 32 at a time, for they
//                     are most, then those that some rows see.
// A group with more live keys than shared memory holds takes them in batches, twice.
//
// Example     128K tokens, w = 2,048, random scores: 10,600 of 131,072 keys are ever kept, 2,048 to
//             4,096 live in a group of 16 tiles, and 2,048 to 2,175 in a tile
// Fits less   few keys of every piece live very long, and all keys are kept for a while: then each
//             group looks at every key
// Cost        8 B read a key; 10 B a kept key and group whose pieces it is in, from cache; 4 B
//             written an entry, and 2 B where not all rows see it
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <string>

#include "dynamic_mask/device_lists.hpp"
#include "dynamic_mask/live_keys.cuh"
#include "sm90/cuda_error.hpp"

namespace fdma::dynamic_mask {
namespace {

constexpr int kCompactThreads = 256;
constexpr int kCompactWarps = kCompactThreads / kWarp;
constexpr int kRoundsOfWarp = kPieceKeys / kCompactThreads;  // 32 keys each

__global__ void __launch_bounds__(kCompactThreads)
    compact_kept(const __grid_constant__ Kernel call) {
  __shared__ int counts[kCompactWarps], begins[kCompactWarps], ends[kCompactWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row_at = blockIdx.x / call.num_pieces * call.kv_len;
  const std::int64_t first_key = blockIdx.x % call.num_pieces * kPieceKeys;
  const int first = warp * kRoundsOfWarp * kWarp + lane;
  int2 queries[kRoundsOfWarp];
  std::uint32_t kept[kRoundsOfWarp];
  int count = 0, begin = 0x7FFFFFFF, end = 0;
#pragma unroll
  for (int i = 0; i < kRoundsOfWarp; ++i) {
    const std::int64_t key = first_key + first + i * kWarp;
    queries[i] = key < call.kv_len ? __ldg(call.kept + row_at + key) : make_int2(0, 0);
  }
#pragma unroll
  for (int i = 0; i < kRoundsOfWarp; ++i) {
    const bool is_kept = queries[i].x < queries[i].y;
    kept[i] = __ballot_sync(~0u, is_kept);
    count += __popc(kept[i]);
    if (is_kept) {
      begin = min(begin, queries[i].x);
      end = max(end, queries[i].y);
    }
  }
  begin = __reduce_min_sync(~0u, begin);
  end = __reduce_max_sync(~0u, end);
  if (lane == 0) {
    counts[warp] = count;
    begins[warp] = begin;
    ends[warp] = end;
  }
  __syncthreads();
  std::int64_t at = row_at + first_key;
#pragma unroll
  for (int i = 0; i < kCompactWarps; ++i) at += i < warp ? counts[i] : 0;
#pragma unroll
  for (int i = 0; i < kRoundsOfWarp; ++i) {
    if ((kept[i] >> lane & 1) != 0) {
      const std::int64_t to = at + __popc(kept[i] & lanes_below(lane));
      call.kept_queries[to] = queries[i];
      call.kept_offsets[to] = static_cast<std::uint16_t>(first + i * kWarp);
    }
    at += __popc(kept[i]);
  }
  if (threadIdx.x == 0) {
    Piece piece{0, begins[0], ends[0], 0};
#pragma unroll
    for (int i = 0; i < kCompactWarps; ++i) {
      piece.num_kept += counts[i];
      piece.first_begin = min(piece.first_begin, begins[i]);
      piece.last_end = max(piece.last_end, ends[i]);
    }
    call.pieces[blockIdx.x] = piece;
  }
}

// The list of one tile as its warp writes it.
class TileList {
 public:
  __device__ TileList(const Kernel& call, int row, int first_tile, int tile_in_group, int lane)
      : call_(call), lane_(lane), bit_(tile_in_group) {
    const int tile = first_tile + tile_in_group;
    if (tile >= call.num_tiles) return;
    index_ = row * call.num_tiles + tile;
    begin_ = tile_in_group * call.block_q;
    end_ = begin_ + max(min(call.block_q, call.q_lens[row] - tile * call.block_q), 0);
    first_ = call.first_entries[index_];
    room_ = static_cast<int>(call.first_entries[index_ + 1] - first_);
  }

  __device__ bool has_rows() const { return begin_ < end_; }

  // Keys that all rows see, 32 steps at a time: all of some that follow each other, or most.
  __device__ void add_full(const LiveList& live, int size) {
    for (int first = 0; first * kWarp < size; first += kWarp) {
      const std::uint32_t keys_of_lane = marks(live, first, size, bit_);
      const int count = __popc(keys_of_lane), up_to = sum_up_to(count, lane_);
      const int before = num_full_ + up_to - count;
      num_full_ += __shfl_sync(~0u, up_to, kWarp - 1);
      const std::uint32_t steps = __ballot_sync(~0u, keys_of_lane != 0);
      if (steps == 0) continue;
      const int begin = __ffs(static_cast<int>(steps)) - 1, end = kWarp - __clz(steps);
      const bool are_whole = __all_sync(~0u, keys_of_lane == ~0u || keys_of_lane == 0);
      if (are_whole && __popc(steps) == end - begin) {
        const int at = __shfl_sync(~0u, before, begin) + lane_;
        const std::int32_t* const from = live.keys + (first + begin) * kWarp + lane_;
#pragma unroll 4
        for (int i = 0; i < (end - begin) * kWarp; i += kWarp) {
          if (at + i < room_) call_.keys[first_ + at + i] = from[i];
        }
        continue;
      }
#pragma unroll 4
      for (int step = begin; step < end; ++step) {
        const std::uint32_t keys = __shfl_sync(~0u, keys_of_lane, step);
        const int at = __shfl_sync(~0u, before, step) + __popc(keys & lanes_below(lane_));
        if ((keys >> lane_ & 1) != 0 && at < room_) {
          call_.keys[first_ + at] = live.keys[(first + step) * kWarp + lane_];
        }
      }
    }
  }

  // After all of those the others: few of each step, then a lane has a step, or most of a few.
  __device__ void add_parts(const LiveList& live, int size) {
    for (int first = 0; first * kWarp < size; first += kWarp) {
      std::uint32_t keys_of_lane = marks(live, first, size, kGroupTiles + bit_);
      const int count = __popc(keys_of_lane), up_to = sum_up_to(count, lane_);
      int at = num_full_ + num_parts_ + up_to - count;
      num_parts_ += __shfl_sync(~0u, up_to, kWarp - 1);
      std::uint32_t steps = __ballot_sync(~0u, keys_of_lane != 0);
      if (__reduce_max_sync(~0u, count) < __popc(steps)) {
        for (; keys_of_lane != 0; keys_of_lane &= keys_of_lane - 1, ++at) {
          const int key = __ffs(static_cast<int>(keys_of_lane)) - 1;
          add_part(live, (first + lane_) * kWarp + key, at);
        }
        continue;
      }
      for (; steps != 0; steps &= steps - 1) {
        const int step = __ffs(static_cast<int>(steps)) - 1;
        const std::uint32_t keys = __shfl_sync(~0u, keys_of_lane, step);
        const int to = __shfl_sync(~0u, at, step) + __popc(keys & lanes_below(lane_));
        if ((keys >> lane_ & 1) != 0) add_part(live, (first + step) * kWarp + lane_, to);
      }
    }
  }

  __device__ void finish() {
    if (lane_ != 0 || index_ < 0) return;
    const int size = num_full_ + num_parts_;
    call_.lists[index_] = {first_, min(size, room_), min(num_full_, room_)};
    if (size > room_ && call_.status != nullptr) atomicOr(call_.status, kListTooLong);
  }

 private:
  __device__ void add_part(const LiveList& live, int key, int at) {
    if (at >= room_) return;
    const std::uint32_t queries = live.queries[key];
    call_.keys[first_ + at] = live.keys[key];
    call_.rows[first_ + at] =
        make_uchar2(static_cast<unsigned char>(max(begin_of(queries) - begin_, 0)),
                    static_cast<unsigned char>(min(end_of(queries), end_) - begin_));
  }
  // Of the lane's one of 32 steps.
  __device__ std::uint32_t marks(const LiveList& live, int first, int size, int word) const {
    const int step = first + lane_;
    return step * kWarp < size ? live.marks[step * kStepMarks + word] : 0;
  }

  const Kernel& call_;
  int lane_, bit_;
  int index_ = -1;           // of the list; there is none
  int begin_ = 0, end_ = 0;  // queries, relative to the group
  std::int64_t first_ = 0;
  int room_ = 0;
  int num_full_ = 0, num_parts_ = 0;
};

__global__ void __launch_bounds__(kCutThreads, 3) cut_lists(const __grid_constant__ Kernel call) {
  __shared__ Shared shared;
  extern __shared__ std::int32_t live_memory[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  // Late groups first: under causal they have most to do.
  const int row = static_cast<int>(blockIdx.x % call.num_rows);
  const int group = static_cast<int>((gridDim.x - 1 - blockIdx.x) / call.num_rows);
  const int q_begin = group * kGroupTiles * call.block_q;
  const int q_end = min(q_begin + kGroupTiles * call.block_q, call.q_lens[row]);
  auto* const queries = reinterpret_cast<std::uint32_t*>(live_memory + call.batch_entries);
  const LiveList live{live_memory, queries, queries + call.batch_entries};
  LiveKeys keys(call, shared, live, row, q_begin, q_end);
  keys.restart();
  const bool is_one_batch = !keys.fill();
  TileList list(call, row, group * kGroupTiles, warp, lane);
  if (is_one_batch) {
    if (list.has_rows()) {
      list.add_full(live, keys.size());
      list.add_parts(live, keys.size());
    }
    list.finish();
    return;
  }
  for (bool has_more = true;; has_more = keys.fill()) {
    if (list.has_rows()) list.add_full(live, keys.size());
    if (!has_more) break;
  }
  keys.restart();
  for (bool has_more = true; has_more;) {
    has_more = keys.fill();
    if (list.has_rows()) list.add_parts(live, keys.size());
  }
  list.finish();
}
static_assert(kGroupTiles == kCutWarps);

std::int64_t num_pieces_of(std::int64_t kv_len) { return ceil_div(kv_len, kPieceKeys); }

}  // namespace

std::int32_t batch_entries(std::int64_t most_entries, std::int32_t block_q) {
  // What lives in a group: the keys of its first tile and one more for each further query, under
  // masks in which keys appear one by one; others may need several batches.
  const std::int64_t live = most_entries + (kGroupTiles - 1) * std::int64_t{block_q} + kRound;
  const std::int64_t steps = ceil_div(live, std::int64_t{kWarp}) * kWarp;
  return steps <= kSingleBatch ? static_cast<std::int32_t>(steps) : kManyBatches;
}

std::int64_t lists_workspace_bytes(std::int64_t num_rows, std::int64_t kv_len) {
  constexpr std::int64_t kKeyBytes = sizeof(int2) + sizeof(std::uint16_t);
  return num_rows * num_pieces_of(kv_len) * static_cast<std::int64_t>(sizeof(Piece)) +
         num_rows * kv_len * kKeyBytes;
}

Result<void> make_lists(const ListsCall& call, Stream stream) {
  if (call.num_rows == 0 || call.num_tiles == 0) return {};
  const std::int64_t num_pieces = num_pieces_of(call.kv_len);
  const std::int64_t num_groups = ceil_div(std::int64_t{call.num_tiles}, std::int64_t{kGroupTiles});
  constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();
  if (call.num_rows * std::max<std::int64_t>(num_pieces, call.num_tiles) > kMostBlocks) {
    return Error{ErrorCode::unsupported, "lists: " + std::to_string(call.num_rows) + " rows of " +
                                             std::to_string(call.kv_len) +
                                             " keys need more than 2^31 - 1 blocks"};
  }
  Kernel kernel{};
  kernel.kept = reinterpret_cast<const int2*>(call.kept);
  kernel.kv_len = call.kv_len;
  kernel.num_pieces = static_cast<std::uint32_t>(num_pieces);
  kernel.num_rows = static_cast<std::uint32_t>(call.num_rows);
  kernel.q_lens = call.q_lens;
  kernel.num_tiles = call.num_tiles;
  kernel.block_q = call.block_q;
  kernel.batch_entries = ceil_div(std::max(call.batch_entries, kRound), kWarp) * kWarp;
  kernel.first_entries = call.first_entries;
  kernel.pieces = static_cast<Piece*>(call.workspace);
  kernel.kept_queries = reinterpret_cast<int2*>(kernel.pieces + call.num_rows * num_pieces);
  kernel.kept_offsets =
      reinterpret_cast<std::uint16_t*>(kernel.kept_queries + call.num_rows * call.kv_len);
  kernel.lists = call.lists;
  kernel.keys = call.keys;
  kernel.rows = reinterpret_cast<uchar2*>(call.rows);
  kernel.status = call.status;
  if (num_pieces > 0) {
    compact_kept<<<static_cast<unsigned>(call.num_rows * num_pieces), kCompactThreads, 0, stream>>>(
        kernel);
    FDMA_TRY_VOID(sm90::check_cuda(cudaGetLastError(), "launch of the kernel that compacts keys"));
  }
  constexpr std::size_t kStepBytes = (2 * kWarp + kStepMarks) * sizeof(std::int32_t);
  const std::size_t bytes = static_cast<std::size_t>(kernel.batch_entries / kWarp) * kStepBytes;
  FDMA_TRY_VOID(
      sm90::check_cuda(cudaFuncSetAttribute(cut_lists, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(bytes)),
                       "cudaFuncSetAttribute"));
  cut_lists<<<static_cast<unsigned>(call.num_rows * num_groups), kCutThreads, bytes, stream>>>(
      kernel);
  return sm90::check_cuda(cudaGetLastError(), "launch of the kernel that cuts lists");
}

}  // namespace fdma::dynamic_mask
