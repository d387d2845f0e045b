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
#include "ptx/addresses.cuh"
#include "ptx/grid.cuh"
#include "sm90/cuda_error.hpp"

namespace fdma::dynamic_mask {
namespace {

constexpr int kCompactThreads = 256;
constexpr int kCompactWarps = kCompactThreads / kWarp;
constexpr int kRoundsOfWarp = kPieceKeys / kCompactThreads;  // 32 keys each

__global__ void __launch_bounds__(kCompactThreads)
    compact_kept(const __grid_constant__ Kernel call) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
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
    queries[i] = key < call.kv_len ? call.kept[row_at + key] : make_int2(0, 0);
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

// What a list has so far.
struct ListSize {
  int num_full = 0, num_parts = 0;
};

// The list of one tile as its warp writes it.
class TileList {
 public:
  __device__ TileList(const Kernel& call, int row, int first_tile, int tile_in_group, int lane,
                      ListSize& size)
      : call_(call),
        size_(size),
        row_(row),
        tile_(first_tile + tile_in_group),
        bit_(tile_in_group),
        lane_(lane) {
    if (tile_ >= call.num_tiles) return;
    const std::int64_t first = call.first_entries[index()];
    room_ = static_cast<int>(call.first_entries[index() + 1] - first);
    keys_ = ptx::global_address(call.keys + first);
  }

  __device__ bool has_rows() const { return tile_ < call_.num_tiles && num_rows() > 0; }

  // Keys that all rows see, 32 steps at a time: all of some that follow each other, or most.
  __device__ void add_full(const LiveList& live, int size) {
    for (int first = 0; first * kWarp < size; first += kWarp) {
      const std::uint32_t keys_of_lane = marks(live, first, size, bit_);
      const int count = __popc(keys_of_lane), up_to = sum_up_to(count, lane_);
      const int before = size_.num_full + up_to - count;
      size_.num_full += __shfl_sync(~0u, up_to, kWarp - 1);
      const std::uint32_t steps = __ballot_sync(~0u, keys_of_lane != 0);
      if (steps == 0) continue;
      const int begin = __ffs(static_cast<int>(steps)) - 1, end = kWarp - __clz(steps);
      const std::int32_t* const from = live.keys + first * kWarp + lane_;
      const bool are_whole = __all_sync(~0u, keys_of_lane == ~0u || keys_of_lane == 0);
      if (are_whole && __popc(steps) == end - begin) {
        const int at = __shfl_sync(~0u, before, begin) + lane_;
        copy(from + begin * kWarp, at, (end - begin) * kWarp);
      } else if (size_.num_full <= room_) {
        add_steps<true>(from, keys_of_lane, before, begin, end);
      } else {
        add_steps<false>(from, keys_of_lane, before, begin, end);
      }
    }
  }

  // After all of those the others: most are few of their step, which a lane each writes; the rest
  // step by step.
  __device__ void add_parts(const LiveList& live, int size) {
    const int rows = num_rows();
    const std::uint64_t rows_at = ptx::global_address(call_.rows + first_entry());
    for (int first = 0; first * kWarp < size; first += kWarp) {
      std::uint32_t keys_of_lane = marks(live, first, size, kGroupTiles + bit_);
      const int count = __popc(keys_of_lane), up_to = sum_up_to(count, lane_);
      int at = size_.num_full + size_.num_parts + up_to - count;
      size_.num_parts += __shfl_sync(~0u, up_to, kWarp - 1);
      const bool is_dense = count > kFewOfStep;
      for (std::uint32_t steps = __ballot_sync(~0u, is_dense); steps != 0; steps &= steps - 1) {
        const int step = __ffs(static_cast<int>(steps)) - 1;
        const std::uint32_t keys = __shfl_sync(~0u, keys_of_lane, step);
        const int to = __shfl_sync(~0u, at, step) + __popc(keys & lanes_below(lane_));
        if ((keys >> lane_ & 1) != 0) {
          add_part(live, (first + step) * kWarp + lane_, to, rows, rows_at);
        }
      }
      if (is_dense) keys_of_lane = 0;
      for (; keys_of_lane != 0; keys_of_lane &= keys_of_lane - 1, ++at) {
        const int key = __ffs(static_cast<int>(keys_of_lane)) - 1;
        add_part(live, (first + lane_) * kWarp + key, at, rows, rows_at);
      }
      __syncwarp();
    }
  }

  __device__ void finish() {
    if (lane_ != 0 || tile_ >= call_.num_tiles) return;
    const int size = size_.num_full + size_.num_parts;
    call_.lists[index()] = {first_entry(), min(size, room_), min(size_.num_full, room_)};
    if (size > room_ && call_.status != nullptr) atomicOr(call_.status, kListTooLong);
  }

 private:
  static constexpr int kFewOfStep = 6;

  __device__ int index() const { return row_ * call_.num_tiles + tile_; }
  __device__ int begin() const { return bit_ * call_.block_q; }  // relative to the group
  __device__ int num_rows() const {
    return min(call_.block_q, call_.q_lens[row_] - tile_ * call_.block_q);
  }

  // All of some steps from the lane's first key on; its first one goes to `at`.
  __device__ void copy(const std::int32_t* from, int at, int num_keys) {
    const int end = min(num_keys, room_ - at);
#pragma unroll 4
    for (int i = 0; i < end; i += kWarp) store_key(at + i, from[i]);
  }
  // Steps [begin, end) of the 32 from `from` on: the keys of a step and how many entries are before
  // them, a lane has those of one. By fours: steps beside them have no keys.
  template <bool kHasRoom>
  __device__ __forceinline__ void add_steps(const std::int32_t* from, std::uint32_t keys_of_lane,
                                            int before, int begin, int end) {
    const std::uint32_t below = lanes_below(lane_), own = 1u << lane_;
    for (int first = begin & ~3; first < end; first += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t keys = __shfl_sync(~0u, keys_of_lane, first + i);
        const int at = __shfl_sync(~0u, before, first + i) + __popc(keys & below);
        if ((keys & own) != 0 && (kHasRoom || at < room_)) {
          store_key(at, from[(first + i) * kWarp]);
        }
      }
    }
  }
  __device__ __forceinline__ void add_part(const LiveList& live, int key, int at, int num_rows,
                                           std::uint64_t rows_at) {
    if (at >= room_) return;
    const std::uint32_t queries = live.queries[key];
    store_key(at, live.keys[key]);
    const int first_row = max(begin_of(queries) - begin(), 0);
    const int end_row = min(end_of(queries) - begin(), num_rows);
    ptx::store_global_u16(rows_at + at * std::int64_t{sizeof(uchar2)}, first_row | end_row << 8);
  }
  __device__ __forceinline__ void store_key(int at, std::int32_t key) const {
    ptx::store_global(keys_ + at * std::int64_t{sizeof(std::int32_t)}, key);
  }
  __device__ std::int64_t first_entry() const {
    return static_cast<std::int64_t>(keys_ - ptx::global_address(call_.keys)) /
           std::int64_t{sizeof(std::int32_t)};
  }
  // Of the lane's one of 32 steps.
  __device__ std::uint32_t marks(const LiveList& live, int first, int size, int word) const {
    const int step = first + lane_;
    return step * kWarp < size ? live.marks[step * kStepMarks + word] : 0;
  }

  const Kernel& call_;
  ListSize& size_;
  int row_, tile_, bit_, lane_;
  std::uint64_t keys_ = 0;  // where they go
  int room_ = 0;
};

__global__ void __launch_bounds__(kCutThreads, 3) cut_lists(const __grid_constant__ Kernel call) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
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
  // One batch mostly: else all for what all rows see, then all again for the others.
  ListSize size;
  bool is_first = true, adds_parts = false;
  for (;;) {
    const bool has_more = keys.fill();
    const bool is_only = is_first && !has_more, is_last = !has_more && (adds_parts || is_only);
    TileList list(call, row, group * kGroupTiles, warp, lane, size);
    if (list.has_rows()) {
      if (!adds_parts) list.add_full(live, keys.size());
      if (adds_parts || is_only) list.add_parts(live, keys.size());
    }
    if (is_last) {
      list.finish();
      break;
    }
    is_first = false;
    if (has_more) continue;
    adds_parts = true;
    keys.restart();
  }
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
  const bool overlaps = ptx::is_worth_overlap(call.num_rows * std::min(num_pieces, num_groups));
  if (num_pieces > 0) {
    const dim3 blocks(static_cast<unsigned>(call.num_rows * num_pieces));
    FDMA_TRY_VOID(
        sm90::check_cuda(ptx::launch_overlapping_if(overlaps, compact_kept, blocks,
                                                    dim3(kCompactThreads), 0, stream, kernel),
                         "launch of the kernel that compacts keys"));
  }
  constexpr std::size_t kStepBytes = (2 * kWarp + kStepMarks) * sizeof(std::int32_t);
  const std::size_t bytes = static_cast<std::size_t>(kernel.batch_entries / kWarp) * kStepBytes;
  FDMA_TRY_VOID(
      sm90::check_cuda(cudaFuncSetAttribute(cut_lists, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(bytes)),
                       "cudaFuncSetAttribute"));
  const dim3 blocks(static_cast<unsigned>(call.num_rows * num_groups));
  return sm90::check_cuda(ptx::launch_overlapping_if(overlaps, cut_lists, blocks, dim3(kCutThreads),
                                                     static_cast<int>(bytes), stream, kernel),
                          "launch of the kernel that cuts lists");
}

}  // namespace fdma::dynamic_mask
