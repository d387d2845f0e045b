// The keys that are live in a group of consecutive tiles of a row (device_kv_index_lists.cu). A block finds
// them once, from the key segments of kept keys that reach into the group, and stores them in
// shared memory in order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "dynamic_mask/device_kv_index_lists.hpp"
#include "ptx/addresses.cuh"
#include "ptx/warp_sums.cuh"

namespace fdma::dynamic_mask {

inline constexpr int kWarp = 32;
inline constexpr std::int64_t kKeySegmentSize = 2048;

inline constexpr int kGroupTiles = 16;
inline constexpr int kCutThreads = 512;
inline constexpr int kCutWarps = kCutThreads / kWarp;
inline constexpr int kItems = 4;  // adjacent candidates that a thread reads in one round
inline constexpr int kRound = kItems * kCutThreads;
inline constexpr int kWindowKeySegments =
    2 * kWarp;  // key segments whose counts are in shared memory
inline constexpr int kWindowChunks =
    kWindowKeySegments * kKeySegmentSize / kWarp;  // of 32 candidates
inline constexpr int kFew = 4;  // tiles that may share keys, if not all of the group do
inline constexpr int kCounts = kGroupTiles + kGroupTiles / kFew + 1;
inline constexpr int kStagedKeys = 512;
inline constexpr int kChunkKeys = 128;  // of the attention kernel
inline constexpr std::int32_t kSingleBatch = 14 * 1024, kManyBatches = 6 * 1024;
static_assert(kKeySegmentSize % kItems == 0 && kRound <= kManyBatches);

// A key segment after compaction.
struct __align__(16) KeySegment {
  std::int32_t num_kept;
  std::int32_t first_begin;  // first query that keeps a key of it
  std::int32_t last_end;     // past the last query that keeps one
  std::int32_t unused;
};

// The keys that are live in a group, in order, and their queries relative to the group and cut
// there: the begin in the lower half, the end in the upper half.
struct LiveList {
  std::int32_t* keys;
  std::uint32_t* queries;
  std::uint32_t* marks;  // [steps of 32 keys, kStepMarks]: LiveKeys::mark_steps
};
// Words of a step: for each tile the keys that all its rows see, then for each tile the keys that
// some rows see. There is one more word, so that lanes that read the same word of each step access
// different banks.
inline constexpr int kStepMarks = 2 * kGroupTiles + 1;
static_assert(2 * kGroupTiles == kWarp);
__device__ __forceinline__ int begin_of(std::uint32_t queries) {
  return static_cast<int>(queries & 0xFFFF);
}
__device__ __forceinline__ int end_of(std::uint32_t queries) {
  return static_cast<int>(queries >> 16);
}
// Bits [begin, end) of 16 bits.
__device__ __forceinline__ std::uint32_t bits(int begin, int end) {
  return begin < end ? (1u << end) - (1u << begin) : 0;
}
// Transposes: bit i of lane l moves to bit l of lane i. Halves, quarters and so on of rows and
// columns are exchanged. From the other lane's word come the bits that this lane does not keep,
// rotated to their place.
__device__ __forceinline__ std::uint32_t transposed(std::uint32_t word, int lane) {
  std::uint32_t low = 0xFFFF;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2, low ^= low << step) {
    const std::uint32_t other = __shfl_xor_sync(~0u, word, step);
    const bool is_upper = (lane & step) != 0;
    const std::uint32_t rotated = __funnelshift_l(other, other, is_upper ? kWarp - step : step);
    const std::uint32_t keeps = is_upper ? ~low : low;
    word = (word & keeps) | (rotated & ~keeps);
  }
  return word;
}

struct Kernel {
  const int2* kept;
  std::int64_t kv_len;
  std::uint32_t num_key_segments;  // per row
  std::uint32_t num_rows;
  const std::int32_t* q_lens;
  std::int32_t num_tiles, block_q, batch_entries;
  const std::int64_t* first_entries;
  KeySegment* key_segments;  // [rows, num_key_segments]
  // [rows, row_keys]: for each key segment its kept keys and, up to the next multiple of kItems,
  // empty entries.
  int2* kept_queries;
  std::uint16_t* kept_offsets;  // relative to the first key of the key segment
  std::int64_t row_keys;        // kv_len, or the next multiple of kItems
  gpu::KvIndexListOnDevice* lists;
  std::int32_t* keys;
  uchar2* rows;
  std::uint32_t* status;
  std::int32_t* counter;
};

__device__ __forceinline__ std::uint32_t lanes_below(int lane) { return (1u << lane) - 1; }

// The keys that neighbouring tiles of a group share: of the keys that all of their rows see the
// first ones, in whole index tiles. They are written once, into the space of the first tile.
struct Common {
  int first_tile, last_tile;  // within the group
  int num_keys;
};

// Shared memory of cut_lists in front of the live keys.
struct Shared {
  std::int64_t first_entries[kGroupTiles + 1];  // of the group's lists; after its last list the end
  std::int32_t first_list, num_lists;           // of the group
  std::int32_t num_tiles;                       // number of tiles that have rows
  // For the batch: the number of keys that all rows of each tile see, of each four tiles, and of
  // all tiles.
  std::int32_t counts[kCounts];
  Common common[kGroupTiles];                   // per tile, read and written by its warp
  std::int32_t before[kWindowKeySegments + 1];  // candidates in earlier key segments of the window
  std::uint8_t
      key_segment_of_chunk[kWindowChunks];  // the key segment that has the first of 32 candidates
  std::int32_t round_counts[2][kCutWarps];
  // Of each tile's list, from the first of 32 steps on
  std::uint16_t staged[kCutWarps][kStagedKeys];
};

// Iterates over the keys of a row that are live in a group of tiles, batch by batch. All threads of
// the block take part in every call.
class LiveKeys {
 public:
  __device__ LiveKeys(const Kernel& call, Shared& shared, const LiveList& live, int row,
                      int q_begin, int q_end)
      : call_(call), shared_(shared), live_(live), row_(row), q_begin_(q_begin), q_end_(q_end) {}

  __device__ void restart() {
    window_ = -kWindowKeySegments;
    candidate_ = num_candidates_ = 0;
  }
  // Loads the next batch into live[0, size()). Returns false if that was the last.
  __device__ bool fill() {
    size_ = 0;
    __syncthreads();  // the previous batch has been read
    bool has_more = true;
    for (int round = 0;; ++round) {
      if (candidate_ >= num_candidates_) {
        window_ += kWindowKeySegments;
        if (window_ >= num_key_segments()) {
          has_more = false;
          break;
        }
        open_window();
        continue;
      }
      if (!take_round(shared_.round_counts[round % 2])) break;
      candidate_ += kRound;
    }
    if (threadIdx.x < kCounts) shared_.counts[threadIdx.x] = 0;
    __syncthreads();
    mark_steps();
    __syncthreads();
    return has_more;
  }
  __device__ int size() const { return size_; }

 private:
  // Counts the candidates of up to kWindowKeySegments key segments, two for each lane of every
  // warp. Then finds the key segment of every 32nd candidate.
  __device__ void open_window() {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
    const KeySegment* const key_segments =
        call_.key_segments + std::int64_t{row_} * call_.num_key_segments;
    int counts[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = window_ + 2 * lane + i;
      counts[i] = 0;
      if (at < num_key_segments()) {
        const int4 key_segment = *reinterpret_cast<const int4*>(key_segments + at);
        if (key_segment.y < q_end_ && key_segment.z > q_begin_) {
          counts[i] = (key_segment.x + kItems - 1) / kItems * kItems;
        }
      }
    }
    const int sum = ptx::sum_up_to(counts[0] + counts[1], lane);
    num_candidates_ = __shfl_sync(~0u, sum, kWarp - 1);
    candidate_ = 0;
    __syncthreads();  // the previous window is not used any more
    if (thread < kWarp) {
      shared_.before[2 * lane + 1] = sum - counts[1];
      shared_.before[2 * lane + 2] = sum;
      if (lane == 0) shared_.before[0] = 0;
    }
    __syncthreads();
    for (int chunk = thread; chunk * kWarp < num_candidates_; chunk += kCutThreads) {
      shared_.key_segment_of_chunk[chunk] =
          static_cast<std::uint8_t>(key_segment_of(chunk * kWarp));
    }
    __syncthreads();
  }

  // The key segment of the window that has a candidate: the last one with no more candidates before
  // it.
  __device__ int key_segment_of(int candidate) const {
    int begin = 0, end = kWindowKeySegments;
    while (end - begin > 1) {
      const int middle = (begin + end) / 2;
      if (shared_.before[middle] <= candidate) {
        begin = middle;
      } else {
        end = middle;
      }
    }
    return begin;
  }

  // Appends the live ones among the next kRound candidates, in their order. Returns false if there
  // is no room.
  __device__ __forceinline__ bool take_round(std::int32_t* counts) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int candidate = candidate_ + kItems * thread;
    int4 queries[2] = {};
    uint2 offsets = {};
    int first_key = 0;
    if (candidate < num_candidates_) {
      const std::uint32_t from =
          ptx::load_shared_u8(ptx::kept_shared_address(shared_.key_segment_of_chunk) +
                              static_cast<unsigned>(candidate) / kWarp);
      const std::uint32_t before_at = ptx::kept_shared_address(shared_.before);
      std::uint32_t at = before_at + from * 4;
      while (ptx::load_word(at + 4) <= candidate) at += 4;
      const int key_segment = window_ + static_cast<int>(at - before_at) / 4;
      first_key = key_segment * static_cast<int>(kKeySegmentSize);
      const std::int64_t place =
          row_ * call_.row_keys + (first_key + candidate - ptx::load_word(at));
      const auto* const from_queries = reinterpret_cast<const int4*>(call_.kept_queries + place);
      queries[0] = from_queries[0];
      queries[1] = from_queries[1];
      offsets = *reinterpret_cast<const uint2*>(call_.kept_offsets + place);
    }
    const int begins[kItems] = {queries[0].x, queries[0].z, queries[1].x, queries[1].z};
    const int ends[kItems] = {queries[0].y, queries[0].w, queries[1].y, queries[1].w};
    int before = 0, count = 0;  // live candidates of lower lanes, of the warp
    bool lives[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      lives[i] = begins[i] < q_end_ && ends[i] > q_begin_;
      const std::uint32_t of_lanes = __ballot_sync(~0u, lives[i]);
      before += __popc(of_lanes & lanes_below(lane));
      count += __popc(of_lanes);
    }
    const std::uint32_t counts_at = ptx::kept_shared_address(counts);
    if (lane == 0) ptx::store_word(counts_at + warp * 4, count);
    __syncthreads();
    // Every warp adds up the counts of all warps, one for each lane.
    count = lane < kCutWarps ? ptx::load_word(counts_at + lane * 4) : 0;
    before += __reduce_add_sync(~0u, lane < warp ? count : 0);
    count = __reduce_add_sync(~0u, count);
    if (size_ + count > call_.batch_entries) return false;
    std::uint32_t to = ptx::kept_shared_address(live_.keys + size_) + before * 4;
    const std::uint32_t queries_from_keys = static_cast<std::uint32_t>(call_.batch_entries) * 4;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!lives[i]) continue;
      const std::uint32_t two = i < 2 ? offsets.x : offsets.y;
      const int begin = max(begins[i] - q_begin_, 0), end = min(ends[i], q_end_) - q_begin_;
      ptx::store_word(to, first_key + static_cast<int>(i % 2 == 0 ? two & 0xFFFF : two >> 16));
      ptx::store_word(to + queries_from_keys, begin | end << 16);
      to += 4;
    }
    size_ += count;
    return true;
  }

  // Marks, for every step of 32 live keys, the keys that all rows of each tile of the group see and
  // the keys that some rows see. Also counts the keys that all rows see, over all steps.
  __device__ void mark_steps() const {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int shift = 31 - __clz(call_.block_q), end_of_group = q_end_ - q_begin_;
    // A lane counts for a tile, for four tiles or for all: the keys that the first and the last of
    // these tiles see.
    const int last_tile = max((end_of_group - 1) >> shift, 0);
    int first = lane, last = lane;
    if (lane >= kGroupTiles) {
      const bool is_of_all = lane == kCounts - 1;
      first = is_of_all ? 0 : (lane - kGroupTiles) * kFew;
      last = is_of_all ? last_tile : first + kFew - 1;
    }
    last = min(last, last_tile);
    int count = 0;
    for (int step = warp; step * kWarp < size_; step += kCutWarps) {
      std::uint32_t full = 0, part = 0;
      if (step * kWarp + lane < size_) {
        const std::uint32_t queries = live_.queries[step * kWarp + lane];
        const int begin = begin_of(queries), end = end_of(queries);
        const int end_tile = (end + call_.block_q - 1) >> shift;
        // The rows of the last tile may end before the tile does.
        const int end_full = end == end_of_group ? end_tile : end >> shift;
        full = bits((begin + call_.block_q - 1) >> shift, end_full);
        part = bits(begin >> shift, end_tile) & ~full;
      }
      const std::uint32_t marks = transposed(full | part << kGroupTiles, lane);
      live_.marks[step * kStepMarks + lane] = marks;
      count += __popc(__shfl_sync(~0u, marks, first) & __shfl_sync(~0u, marks, last));
    }
    if (lane < kCounts && first <= last) atomicAdd(&shared_.counts[lane], count);
  }

  __device__ int num_key_segments() const { return static_cast<int>(call_.num_key_segments); }

  const Kernel& call_;
  Shared& shared_;
  LiveList live_;
  int row_;
  int q_begin_, q_end_;
  int window_ = 0;          // first key segment of the window
  int candidate_ = 0;       // next candidate of the window
  int num_candidates_ = 0;  // in the window
  int size_ = 0;
};

}  // namespace fdma::dynamic_mask
