// Makes kv index lists on the device in two launches.
//   1. compact_kept   compacts key segments of 2,048 keys: the keys that some query keeps move
//   together, in
//                     place. For each key segment it stores their number, the first query that
//                     keeps one and the last.
//   2. cut_lists      A block takes 16 consecutive tiles of a row. It finds the keys that are live in
//                     any of them once, from the key segments that reach into the group, and puts
//                     them into shared memory in order. For each 32 keys it marks, per tile, which
//                     of them all rows see and which some rows see. Each warp then reads the marks
//                     of a tile of its own. Keys that all rows see come first, then those that some
//                     rows see.
// Neighbouring tiles keep nearly the same keys. Keys that all rows of a group see, or all rows of
// four of its tiles, are written once, in whole index tiles of 128. The lists of the tiles refer to
// them (KvIndexListOnDevice) and hold their remaining keys themselves. Sharing among sixteen or
// among four is chosen such that fewer keys are written. A group with more live keys than shared
// memory holds takes them in batches, twice, and its tiles share nothing.
//
// Example     128K tokens, w = 2,048, random scores: 10,600 of 131,072 keys are kept by some query,
//             2,048 to 4,096 are live in a group of 16 tiles, and 2,048 to 2,175 in a tile; 0.16 of
//             these are written, and 0.47 for a sliding window, which changes by 128 keys a tile
// Fits less   a few keys of every key segment are live very long, and all keys are kept for a
// while: then
//             each group looks at every key
// Cost        8 B read per key; 10 B per kept key and group whose key segments it is in, from
// cache; 4 B
//             written per entry that is not shared, and 2 B where not all rows see it
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <string>

#include "cuda/cuda_error.hpp"
#include "dynamic_mask/device_kv_index_lists.hpp"
#include "dynamic_mask/live_keys.cuh"
#include "ptx/addresses.cuh"
#include "ptx/grid.cuh"
#include "ptx/warp_sums.cuh"
#include "ptx/warpgroup.cuh"

namespace fdma::dynamic_mask {
namespace {

constexpr int kCompactThreads = 256;
constexpr int kCompactWarps = kCompactThreads / kWarp;
constexpr int kRoundsOfWarp = kKeySegmentSize / kCompactThreads;  // 32 keys each

__global__ void __launch_bounds__(kCompactThreads)
    compact_kept(const __grid_constant__ Kernel call) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  __shared__ int counts[kCompactWarps], begins[kCompactWarps], ends[kCompactWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row = blockIdx.x / call.num_key_segments, row_at = row * call.kv_len;
  const std::int64_t first_key = blockIdx.x % call.num_key_segments * kKeySegmentSize;
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
  std::int64_t at = row * call.row_keys + first_key;
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
  // Candidates are read in groups of four.
  if (warp == kCompactWarps - 1 && lane < (-at & (kItems - 1))) {
    call.kept_queries[at + lane] = make_int2(0, 0);
  }
  if (threadIdx.x == 0) {
    KeySegment key_segment{0, begins[0], ends[0], 0};
#pragma unroll
    for (int i = 0; i < kCompactWarps; ++i) {
      key_segment.num_kept += counts[i];
      key_segment.first_begin = min(key_segment.first_begin, begins[i]);
      key_segment.last_end = max(key_segment.last_end, ends[i]);
    }
    call.key_segments[blockIdx.x] = key_segment;
  }
}

// Positions of the next entries of a list: of keys that all rows see, and of the others.
struct Next {
  int full = 0, part = 0;
};

// The list of one tile, as its warp writes it.
class TileList {
 public:
  __device__ TileList(const Kernel& call, Shared& shared, const LiveList& live, int tile_in_group,
                      int lane, Next& next)
      : call_(call),
        shared_(shared),
        live_(live),
        next_(next),
        common_(shared.common[tile_in_group]),
        bit_(tile_in_group),
        lane_(lane),
        keys_(address_of(shared.first_entries[bit_])) {
    if (lane == 0) common_ = {bit_, bit_, 0};
    __syncwarp();
  }

  // Chooses with which tiles of the group the tile shares keys: with all `num_tiles` that have
  // rows, or with those of its four, whichever writes fewer keys.
  __device__ void share(int size, int num_tiles) {
    constexpr int kWholeChunks = ~(kChunkKeys - 1);
    const int* const counts = shared_.counts;
    next_.part = counts[bit_];
    int in_fours = 0;
#pragma unroll
    for (int i = 0; i < kGroupTiles / kFew; ++i) in_fours += counts[kGroupTiles + i] & kWholeChunks;
    const int of_all = counts[kCounts - 1] & kWholeChunks;
    // Fours are preferred if both are equal, because runs of consecutive keys are then cut less
    // often.
    const bool is_of_all = (num_tiles - 1) * of_all > (kFew - 1) * in_fours;
    const int first = is_of_all ? 0 : bit_ & ~(kFew - 1);
    const int last = (is_of_all ? num_tiles : min(first + kFew, num_tiles)) - 1;
    const std::int64_t* const rooms = shared_.first_entries + first;
    if (first == last ||
        rooms[last - first + 1] - rooms[0] >= gpu::KvIndexListOnDevice::kEndDistance) {
      return;
    }
    int room = gpu::KvIndexListOnDevice::kMaxShared;
    if (lane_ <= last - first) room = min(room, static_cast<int>(rooms[lane_ + 1] - rooms[lane_]));
    room = __reduce_min_sync(~0u, room);
    const int of_four = counts[kGroupTiles + bit_ / kFew];
    const int num_keys = min(is_of_all ? of_all : of_four, room) & kWholeChunks;
    if (num_keys == 0) return;
    if (lane_ == 0) common_ = {first, last, num_keys};
    __syncwarp();
    next_.full = num_keys;
    write_common(size, num_keys, last - first + 1, address_of(*rooms));
    if (bit_ > common_.first_tile) keys_ -= common_.num_keys * sizeof(std::int32_t);
  }

  // Appends the live keys that all rows see, except the shared ones, and the other live keys.
  __device__ void add(int size, bool adds_full, bool adds_parts) {
#pragma unroll 1
    for (int first = 0; first * kWarp < size; first += kWarp) {
      std::uint32_t full = 0, part = 0;
      const int step = first + lane_;
      if (step * kWarp < size) {
        const int left = end_ - step * kWarp;
        const std::uint32_t before = left >= kWarp ? ~0u : left > 0 ? lanes_below(left) : 0;
        if (adds_full) full = marks(step, bit_) & ~(common_marks(step) & before);
        if (adds_parts) part = marks(step, kGroupTiles + bit_);
      }
      if (!__any_sync(~0u, (full | part) != 0)) continue;
      const int counts = __popc(full) | __popc(part) << 16, up_to = ptx::sum_up_to(counts, lane_);
      const int before = up_to - counts, all = __shfl_sync(~0u, up_to, kWarp - 1);
      const int num_full = all & 0xFFFF, num_parts = all >> 16, room = this->room();
      if (num_full + num_parts > kStagedKeys) {
        write_fours<false>(first, full, next_.full + (before & 0xFFFF), room);
        write_fours<true>(first, part, next_.part + (before >> 16), room);
      } else {
        stage(full, before & 0xFFFF);
        stage(part, num_full + (before >> 16));
        __syncwarp();
        const int parts_from = next_.part - num_full;
#pragma unroll 1
        for (int i = lane_; i < num_full + num_parts; i += kWarp) {
          const int key = first * kWarp + shared_.staged[bit_][i];
          if (i < num_full) {
            write<false>(key, next_.full + i, room, keys_);
          } else {
            write<true>(key, parts_from + i, room, keys_);
          }
        }
        __syncwarp();
      }
      next_.full += num_full;
      next_.part += num_parts;
    }
  }

  __device__ void finish(std::int64_t index) const {
    if (lane_ != 0) return;
    const bool is_sharing = common_.num_keys > 0 && bit_ > common_.first_tile;
    const auto first_entry =
        static_cast<std::int64_t>((keys_ - address_of(0)) / sizeof(std::int32_t));
    const std::int64_t distance = first_entry - shared_.first_entries[common_.first_tile];
    call_.lists[index] = {
        gpu::KvIndexListOnDevice::place_of(first_entry, is_sharing ? common_.num_keys : 0,
                                           is_sharing ? distance : 0),
        min(next_.part, room()), min(next_.full, room())};
    if (next_.part > room() && call_.status != nullptr) atomicOr(call_.status, kListTooLong);
  }

 private:
  static constexpr int kFewOfStep = 6;

  __device__ int room() const {
    return static_cast<int>(shared_.first_entries[bit_ + 1] - shared_.first_entries[bit_]);
  }
  __device__ int begin() const { return bit_ * call_.block_q; }  // relative to the group

  // Writes some steps of the shared keys, while other tiles write the other steps; finds the end of
  // all.
  __device__ void write_common(int size, int num_keys, int num_sharing, std::uint64_t to) {
    end_ = size;
    int before = 0, four = 4 * (bit_ - common_.first_tile);
#pragma unroll 1
    for (int first = 0; first * kWarp < size; first += kWarp) {
      const int step = first + lane_;
      const std::uint32_t keys_of_lane = step * kWarp < size ? common_marks(step) : 0;
      const int num = __popc(keys_of_lane), up_to = ptx::sum_up_to(num, lane_);
      const int entry = before + up_to - num;
      for (; four < first + kWarp; four += 4 * num_sharing) {
        write_four<false>(first, four - first, keys_of_lane, entry, num_keys, to);
      }
      before += __shfl_sync(~0u, up_to, kWarp - 1);
      if (before <= num_keys) continue;
      const bool is_last = entry <= num_keys && num_keys < entry + num;
      const int last = __ffs(static_cast<int>(__ballot_sync(~0u, is_last))) - 1;
      const std::uint32_t keys = __shfl_sync(~0u, keys_of_lane, last);
      const int left = num_keys - __shfl_sync(~0u, entry, last);
      const bool is_behind = (keys >> lane_ & 1) != 0 && __popc(keys & lanes_below(lane_)) == left;
      const std::uint32_t behind = __ballot_sync(~0u, is_behind);
      end_ = (first + last) * kWarp + __ffs(static_cast<int>(behind)) - 1;
      break;
    }
  }

  // Puts the keys of 32 steps into adjacent places; the lane has those of one step, whose first key
  // goes to `to`. Most steps have few keys, which a lane handles alone; the rest is handled step by
  // step.
  __device__ __forceinline__ void stage(std::uint32_t keys_of_lane, int to) {
    std::uint16_t* const staged = shared_.staged[bit_];
    const bool is_dense = __popc(keys_of_lane) > kFewOfStep;
    for (std::uint32_t steps = __ballot_sync(~0u, is_dense); steps != 0; steps &= steps - 1) {
      const int step = __ffs(static_cast<int>(steps)) - 1;
      const std::uint32_t keys = __shfl_sync(~0u, keys_of_lane, step);
      const int at = __shfl_sync(~0u, to, step) + __popc(keys & lanes_below(lane_));
      if ((keys >> lane_ & 1) != 0) staged[at] = static_cast<std::uint16_t>(step * kWarp + lane_);
    }
    if (is_dense) keys_of_lane = 0;
    for (; keys_of_lane != 0; keys_of_lane &= keys_of_lane - 1, ++to) {
      const int key = __ffs(static_cast<int>(keys_of_lane)) - 1;
      staged[to] = static_cast<std::uint16_t>(lane_ * kWarp + key);
    }
  }
  // Writes the keys of the 32 steps from `first` on, of which the lane has those of one step.
  // `entry` is the index of the lane's first key.
  template <bool kIsPart>
  __device__ __forceinline__ void write_fours(int first, std::uint32_t keys_of_lane, int entry,
                                              int room) {
    const std::uint32_t steps = __ballot_sync(~0u, keys_of_lane != 0);
#pragma unroll 1
    for (int four = 0; four < kWarp; four += 4) {
      if ((steps >> four & 15) == 0) continue;
      write_four<kIsPart>(first, four, keys_of_lane, entry, room, keys_);
    }
  }
  // Writes steps [four, four + 4) of the 32 steps from `first` on. `entry` is the index of the
  // first key of the lane's step.
  template <bool kIsPart>
  __device__ __forceinline__ void write_four(int first, int four, std::uint32_t keys_of_lane,
                                             int entry, int room, std::uint64_t to) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t keys = __shfl_sync(~0u, keys_of_lane, four + i);
      const int at = __shfl_sync(~0u, entry, four + i) + __popc(keys & lanes_below(lane_));
      if ((keys >> lane_ & 1) != 0) {
        write<kIsPart>((first + four + i) * kWarp + lane_, at, room, to);
      }
    }
  }
  // Writes live key `key` as entry `at` of those from `to` on.
  template <bool kIsPart>
  __device__ __forceinline__ void write(int key, int at, int room, std::uint64_t to) const {
    if (at >= room) return;
    ptx::store_global(to + at * std::int64_t{sizeof(std::int32_t)}, live_.keys[key]);
    if constexpr (kIsPart) {
      const std::uint32_t queries = live_.queries[key];
      const int first_row = max(begin_of(queries) - begin(), 0);
      const int end_row = min(end_of(queries) - begin(), call_.block_q);
      // Row ranges are half as large as keys and begin at the same entry.
      const std::uint64_t rows_at = ptx::global_address(call_.rows) + (to - address_of(0)) / 2 +
                                    at * std::int64_t{sizeof(uchar2)};
      ptx::store_global_u16(rows_at, first_row | end_row << 8);
    }
  }
  __device__ std::uint64_t address_of(std::int64_t entry) const {
    return ptx::global_address(call_.keys) + entry * sizeof(std::int32_t);
  }
  __device__ std::uint32_t marks(int step, int word) const {
    return live_.marks[step * kStepMarks + word];
  }
  // The keys that all rows of all sharing tiles see.
  __device__ std::uint32_t common_marks(int step) const {
    return marks(step, common_.first_tile) & marks(step, common_.last_tile);
  }

  const Kernel& call_;
  Shared& shared_;
  const LiveList& live_;
  Next& next_;
  Common& common_;
  int end_ = 0;  // index after the last shared live key
  int bit_, lane_;
  std::uint64_t keys_;  // address of entry 0, or where it would be if it were not shared
};

__global__ void __launch_bounds__(kCutThreads, 3) cut_lists(const __grid_constant__ Kernel call) {
  ptx::let_next_grid_start();
  __shared__ Shared shared;
  extern __shared__ std::int32_t live_memory[];
  // Late groups come first, because under a causal mask they have most to do.
  const int row = static_cast<int>(blockIdx.x % call.num_rows);
  const int group = static_cast<int>((gridDim.x - 1 - blockIdx.x) / call.num_rows);
  const int q_begin = group * kGroupTiles * call.block_q;
  const int q_end = min(q_begin + kGroupTiles * call.block_q, call.q_lens[row]);
  const int group_tiles = min(call.num_tiles - group * kGroupTiles, kGroupTiles);
  const int first_list = row * call.num_tiles + group * kGroupTiles;
  if (threadIdx.x <= kGroupTiles) {
    shared.first_entries[threadIdx.x] =
        call.first_entries[first_list + min(static_cast<int>(threadIdx.x), group_tiles)];
  }
  if (threadIdx.x == 0) {
    // Kept in shared memory, because registers are few.
    shared.first_list = first_list;
    shared.num_lists = group_tiles;
    shared.num_tiles = max(q_end - q_begin + call.block_q - 1, 0) / call.block_q;
  }
  ptx::wait_for_grid_before();
  if (blockIdx.x == 0 && threadIdx.x == 0 && call.counter != nullptr) *call.counter = 0;
  auto* const queries = reinterpret_cast<std::uint32_t*>(live_memory + call.batch_entries);
  const LiveList live{live_memory, queries, queries + call.batch_entries};
  LiveKeys keys(call, shared, live, row, q_begin, q_end);
  keys.restart();
  // There is mostly one batch. Otherwise all batches are read for the keys that all rows see, then
  // again for the others.
  Next next;
  bool is_first = true, adds_parts = false;
  for (;;) {
    const bool has_more = keys.fill();
    const bool is_only = is_first && !has_more, is_last = !has_more && (adds_parts || is_only);
    const int thread = ptx::thread_index(), lane = thread % kWarp, warp = thread / kWarp;
    TileList list(call, shared, live, warp, lane, next);
    if (warp < shared.num_tiles) {
      if (is_only) list.share(keys.size(), shared.num_tiles);
      list.add(keys.size(), !adds_parts, adds_parts || is_only);
    }
    if (is_last) {
      if (warp < shared.num_lists) list.finish(shared.first_list + warp);
      break;
    }
    is_first = false;
    if (has_more) continue;
    adds_parts = true;
    next.part = next.full;
    keys.restart();
  }
}
static_assert(kGroupTiles == kCutWarps);
static_assert(kSingleBatch <= gpu::KvIndexListOnDevice::kMaxShared);

std::int64_t row_keys_of(std::int64_t kv_len) {
  return ceil_div(kv_len, std::int64_t{kItems}) * kItems;
}
std::int64_t num_key_segments_of(std::int64_t kv_len) { return ceil_div(kv_len, kKeySegmentSize); }

}  // namespace

std::int32_t batch_entries(std::int64_t most_entries, std::int32_t block_q) {
  // Live keys of a group: those of its first tile and one more for each further query, under masks
  // in which keys appear one by one. Other masks may need several batches.
  const std::int64_t live = most_entries + (kGroupTiles - 1) * std::int64_t{block_q};
  const std::int64_t steps = ceil_div(live, std::int64_t{kWarp}) * kWarp;
  if (steps > kSingleBatch) return kManyBatches;
  return static_cast<std::int32_t>(std::max<std::int64_t>(steps, kRound));
}

std::int64_t lists_workspace_bytes(std::int64_t num_rows, std::int64_t kv_len) {
  constexpr std::int64_t kKeyBytes = sizeof(int2) + sizeof(std::uint16_t);
  return num_rows * num_key_segments_of(kv_len) * static_cast<std::int64_t>(sizeof(KeySegment)) +
         num_rows * row_keys_of(kv_len) * kKeyBytes;
}

Result<void> make_lists(const ListsCall& call, Stream stream) {
  if (call.num_rows == 0 || call.num_tiles == 0) return {};
  const std::int64_t num_key_segments = num_key_segments_of(call.kv_len);
  const std::int64_t num_groups = ceil_div(std::int64_t{call.num_tiles}, std::int64_t{kGroupTiles});
  constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();
  if (call.num_rows * std::max<std::int64_t>(num_key_segments, call.num_tiles) > kMostBlocks) {
    return Error{ErrorCode::unsupported, "lists: " + std::to_string(call.num_rows) + " rows of " +
                                             std::to_string(call.kv_len) +
                                             " keys need more than 2^31 - 1 blocks"};
  }
  Kernel kernel{};
  kernel.kept = reinterpret_cast<const int2*>(call.kept);
  kernel.kv_len = call.kv_len;
  kernel.num_key_segments = static_cast<std::uint32_t>(num_key_segments);
  kernel.num_rows = static_cast<std::uint32_t>(call.num_rows);
  kernel.q_lens = call.q_lens;
  kernel.num_tiles = call.num_tiles;
  kernel.block_q = call.block_q;
  kernel.batch_entries = ceil_div(std::max(call.batch_entries, kRound), kWarp) * kWarp;
  kernel.first_entries = call.first_entries;
  kernel.row_keys = row_keys_of(call.kv_len);
  kernel.key_segments = static_cast<KeySegment*>(call.workspace);
  kernel.kept_queries =
      reinterpret_cast<int2*>(kernel.key_segments + call.num_rows * num_key_segments);
  kernel.kept_offsets =
      reinterpret_cast<std::uint16_t*>(kernel.kept_queries + call.num_rows * kernel.row_keys);
  kernel.lists = call.lists;
  kernel.keys = call.keys;
  kernel.rows = reinterpret_cast<uchar2*>(call.rows);
  kernel.status = call.status;
  kernel.counter = call.counter;
  const bool overlaps =
      ptx::is_worth_overlap(call.num_rows * std::min(num_key_segments, num_groups));
  if (num_key_segments > 0) {
    const dim3 blocks(static_cast<unsigned>(call.num_rows * num_key_segments));
    FDMA_TRY_VOID(
        gpu::check_cuda(ptx::launch_overlapping_if(overlaps, compact_kept, blocks,
                                                   dim3(kCompactThreads), 0, stream, kernel),
                        "launch of the kernel that compacts keys"));
  }
  constexpr std::size_t kStepBytes = (2 * kWarp + kStepMarks) * sizeof(std::int32_t);
  const std::size_t bytes = static_cast<std::size_t>(kernel.batch_entries / kWarp) * kStepBytes;
  FDMA_TRY_VOID(
      gpu::check_cuda(cudaFuncSetAttribute(cut_lists, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes)),
                      "cudaFuncSetAttribute"));
  const dim3 blocks(static_cast<unsigned>(call.num_rows * num_groups));
  return gpu::check_cuda(ptx::launch_overlapping_if(overlaps, cut_lists, blocks, dim3(kCutThreads),
                                                    static_cast<int>(bytes), stream, kernel),
                         "launch of the kernel that cuts lists");
}

}  // namespace fdma::dynamic_mask
