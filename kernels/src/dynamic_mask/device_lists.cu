// Lists in two launches.
//   1. compact_kept   pieces of 2,048 keys: those that anybody keeps move together, in place, and
//                     of each piece it is known how many they are, the first query that keeps one
//                     and the last
//   2. cut_lists      a block takes 16 consecutive tiles of a row. It finds the keys that live in
//                     any of them once, from the pieces that reach into the group, and puts them
//                     into shared memory in order; of each 32 it notes in which tiles all, some or
//                     none are seen by all rows, and in which some by some rows only. Then each
//                     warp goes over them for a tile of its own: 32 keys that all rows see are
//                     copied, others picked; keys that some rows see follow behind.
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
#include "sm90/cuda_error.hpp"

namespace fdma::dynamic_mask {
namespace {

constexpr int kWarp = 32;
constexpr std::int64_t kPieceKeys = 2048;
constexpr int kCompactThreads = 256;
constexpr int kCompactWarps = kCompactThreads / kWarp;
constexpr int kRoundsOfWarp = kPieceKeys / kCompactThreads;  // 32 keys each

constexpr int kGroupTiles = 16;
constexpr int kCutThreads = 512;
constexpr int kCutWarps = kCutThreads / kWarp;
constexpr int kItems = 2;  // candidates that a thread looks at in one round
constexpr int kRound = kItems * kCutThreads;
constexpr int kWindowPieces = 2 * kWarp;  // pieces whose counts are in shared memory
constexpr int kWindowChunks = kWindowPieces * kPieceKeys / kWarp;  // of 32 candidates
constexpr std::int32_t kSingleBatch = 14 * 1024, kManyBatches = 6 * 1024;
static_assert(kItems * kCutWarps == kWarp);

// A piece after compaction.
struct __align__(16) Piece {
  std::int32_t num_kept;
  std::int32_t first_begin;  // first query that keeps a key of it
  std::int32_t last_end;     // past the last one
  std::int32_t unused;
};

// The keys that live in a group, in order, and their queries relative to the group and cut off
// there: begin, and end in the upper half.
struct LiveList {
  std::int32_t* keys;
  std::uint32_t* queries;
  uint2* steps;  // of 32 keys each: LiveKeys::mark_steps
};
__device__ __forceinline__ int begin_of(std::uint32_t queries) {
  return static_cast<int>(queries & 0xFFFF);
}
__device__ __forceinline__ int end_of(std::uint32_t queries) {
  return static_cast<int>(queries >> 16);
}
// Bits [begin, end) of 16.
__device__ __forceinline__ std::uint32_t bits(int begin, int end) {
  return begin < end ? (1u << end) - (1u << begin) : 0;
}

struct Kernel {
  const int2* kept;
  std::int64_t kv_len;
  std::uint32_t num_pieces;  // of a row
  std::uint32_t num_rows;
  const std::int32_t* q_lens;
  std::int32_t num_tiles, block_q, batch_entries;
  const std::int64_t* first_entries;
  Piece* pieces;                // [rows, num_pieces]
  int2* kept_queries;           // [rows, kv_len], of a piece its kept keys
  std::uint16_t* kept_offsets;  // [rows, kv_len], from the first key of the piece
  GatherList* lists;
  std::int32_t* keys;
  uchar2* rows;
  std::uint32_t* status;
};

__device__ __forceinline__ std::uint32_t lanes_below(int lane) { return (1u << lane) - 1; }

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

// Shared memory of cut_lists beside the live keys, which follow.
struct Shared {
  std::int32_t before[kWindowPieces + 1];  // candidates in the pieces of the window before this one
  std::uint8_t piece_of_chunk[kWindowChunks];  // that has the first of 32 candidates
  std::int32_t round_counts[2][kItems * kCutWarps];
};

// Inclusive sums over the lanes of a warp.
__device__ __forceinline__ int sum_up_to(int value, int lane) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// Goes over the keys of a row that live in a group of tiles, batch by batch. All threads of the
// block take part in every call.
class LiveKeys {
 public:
  __device__ LiveKeys(const Kernel& call, Shared& shared, const LiveList& live, int row,
                      int q_begin, int q_end)
      : call_(call),
        shared_(shared),
        live_(live),
        pieces_(call.pieces + std::int64_t{row} * call.num_pieces),
        row_at_(row * call.kv_len),
        q_begin_(q_begin),
        q_end_(q_end) {}

  __device__ void restart() {
    window_ = -kWindowPieces;
    candidate_ = num_candidates_ = 0;
  }
  // The next batch; then the keys are in live[0, size()). False: that was the last.
  __device__ bool fill() {
    size_ = 0;
    __syncthreads();  // the batch before it has been read
    bool has_more = true;
    for (int round = 0;; ++round) {
      if (candidate_ >= num_candidates_) {
        window_ += kWindowPieces;
        if (window_ >= num_pieces()) {
          has_more = false;
          break;
        }
        open_window();
        continue;
      }
      if (size_ + kRound > call_.batch_entries) break;
      take_round(shared_.round_counts[round % 2]);
      candidate_ += kRound;
    }
    __syncthreads();
    mark_steps();
    __syncthreads();
    return has_more;
  }
  __device__ int size() const { return size_; }

 private:
  // Counts the candidates of up to kWindowPieces pieces, two for each lane of every warp; then
  // finds the piece of every 32nd candidate.
  __device__ void open_window() {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
    int counts[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = window_ + 2 * lane + i;
      counts[i] = 0;
      if (at < num_pieces()) {
        const int4 piece = __ldg(reinterpret_cast<const int4*>(pieces_ + at));
        if (piece.y < q_end_ && piece.z > q_begin_) counts[i] = piece.x;
      }
    }
    const int sum = sum_up_to(counts[0] + counts[1], lane);
    num_candidates_ = __shfl_sync(~0u, sum, kWarp - 1);
    candidate_ = 0;
    __syncthreads();  // the window before it is done with
    if (thread < kWarp) {
      shared_.before[2 * lane + 1] = sum - counts[1];
      shared_.before[2 * lane + 2] = sum;
      if (lane == 0) shared_.before[0] = 0;
    }
    __syncthreads();
    for (int chunk = thread; chunk * kWarp < num_candidates_; chunk += kCutThreads) {
      shared_.piece_of_chunk[chunk] = static_cast<std::uint8_t>(piece_of(chunk * kWarp));
    }
    __syncthreads();
  }

  // The piece of the window that has a candidate: the last one with no more before it.
  __device__ int piece_of(int candidate) const {
    int begin = 0, end = kWindowPieces;
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

  // Appends those of the next kRound candidates that live, in their order.
  __device__ void take_round(std::int32_t* counts) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    std::int32_t keys[kItems];
    std::uint32_t queries[kItems], lives[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int candidate = candidate_ + i * kCutThreads + thread;
      int2 seen = make_int2(0, 0);
      keys[i] = 0;
      if (candidate < num_candidates_) {
        int piece = shared_.piece_of_chunk[candidate / kWarp];
        while (shared_.before[piece + 1] <= candidate) ++piece;
        const int first_key = (window_ + piece) * static_cast<int>(kPieceKeys);
        const std::int64_t at = row_at_ + first_key + candidate - shared_.before[piece];
        seen = call_.kept_queries[at];
        keys[i] = first_key + call_.kept_offsets[at];
      }
      const bool is_live = seen.x < q_end_ && seen.y > q_begin_;
      queries[i] = static_cast<std::uint32_t>(max(seen.x - q_begin_, 0)) |
                   static_cast<std::uint32_t>(min(seen.y, q_end_) - q_begin_) << 16;
      lives[i] = __ballot_sync(~0u, is_live);
      if (lane == 0) counts[i * kCutWarps + warp] = __popc(lives[i]);
    }
    __syncthreads();
    // Every warp adds up the counts of all, one for each lane.
    const int count = counts[lane], sum = sum_up_to(count, lane), before = sum - count;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int to = size_ + __shfl_sync(~0u, before, i * kCutWarps + warp) +
                     __popc(lives[i] & lanes_below(lane));
      if ((lives[i] >> lane & 1) == 0) continue;
      live_.keys[to] = keys[i];
      live_.queries[to] = queries[i];
    }
    size_ += __shfl_sync(~0u, sum, kWarp - 1);
  }

  // Of every step of 32 live keys the tiles of the group in which all are seen by all rows, in
  // which some are (the upper half of x), and in which some are seen by some rows only (y).
  __device__ void mark_steps() const {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int shift = 31 - __clz(call_.block_q), end_of_group = q_end_ - q_begin_;
    for (int step = warp; step * kWarp < size_; step += kCutWarps) {
      std::uint32_t full = 0, part = 0;
      if (step * kWarp + lane < size_) {
        const std::uint32_t queries = live_.queries[step * kWarp + lane];
        const int begin = begin_of(queries), end = end_of(queries);
        const int end_tile = (end + call_.block_q - 1) >> shift;
        // The rows of the last tile may end before it does.
        const int end_full = end == end_of_group ? end_tile : end >> shift;
        full = bits((begin + call_.block_q - 1) >> shift, end_full);
        part = bits(begin >> shift, end_tile) & ~full;
      }
      const std::uint32_t all = __reduce_and_sync(~0u, full), some = __reduce_or_sync(~0u, full);
      part = __reduce_or_sync(~0u, part);
      if (lane == 0) live_.steps[step] = make_uint2(all | some << 16, part);
    }
  }

  __device__ int num_pieces() const { return static_cast<int>(call_.num_pieces); }

  const Kernel& call_;
  Shared& shared_;
  LiveList live_;
  const Piece* pieces_;
  std::int64_t row_at_;
  int q_begin_, q_end_;
  int window_ = 0;          // its first piece
  int candidate_ = 0;       // next one, in the window
  int num_candidates_ = 0;  // of the window
  int size_ = 0;
};

// The list of one tile as its warp writes it.
class TileList {
 public:
  __device__ TileList(const Kernel& call, int row, int first_tile, int tile_in_group, int lane)
      : lane_(lane), bit_(tile_in_group) {
    const int tile = first_tile + tile_in_group;
    exists_ = tile < call.num_tiles;
    if (!exists_) return;
    index_ = std::int64_t{row} * call.num_tiles + tile;
    begin_ = tile_in_group * call.block_q;
    end_ = begin_ + max(min(call.block_q, call.q_lens[row] - tile * call.block_q), 0);
    const std::int64_t first = call.first_entries[index_];
    room_ = static_cast<int>(call.first_entries[index_ + 1] - first);
    keys_ = call.keys + first;
    rows_ = call.rows + first;
  }

  __device__ bool has_rows() const { return begin_ < end_; }

  // Keys that all rows see, 32 steps at a time: those of which all are seen are copied.
  __device__ void add_full(const LiveList& live, int size) {
    for (int first = 0; first * kWarp < size; first += kWarp) {
      const std::uint32_t tiles = marks(live, first, size).x;
      const std::uint32_t all = __ballot_sync(~0u, (tiles >> bit_ & 1) != 0);
      std::uint32_t some = __ballot_sync(~0u, (tiles >> (16 + bit_) & 1) != 0);
      while (some != 0) {
        const int step = __ffs(static_cast<int>(some)) - 1;
        const int whole = __ffs(static_cast<int>(~(all >> step))) - 1;  // steps from here on
        const int num_steps = whole < 0 ? kWarp : whole;
        const int key = (first + step) * kWarp + lane_;
        if (num_steps == 0) {
          add_some(live, key, size);
          some &= some - 1;
          continue;
        }
#pragma unroll 4
        for (int i = 0; i < num_steps * kWarp; i += kWarp) {
          const int at = num_full_ + i + lane_;
          if (at < room_) keys_[at] = live.keys[key + i];
        }
        num_full_ += num_steps * kWarp;
        some &= step + num_steps < kWarp ? ~0u << (step + num_steps) : 0;
      }
    }
  }

  // After all of those: the others.
  __device__ void add_parts(const LiveList& live, int size) {
    for (int first = 0; first * kWarp < size; first += kWarp) {
      std::uint32_t parts = __ballot_sync(~0u, (marks(live, first, size).y >> bit_ & 1) != 0);
      for (; parts != 0; parts &= parts - 1) {
        add_step_of_parts(live, (first + __ffs(static_cast<int>(parts)) - 1) * kWarp + lane_, size);
      }
    }
  }

  __device__ void finish(const Kernel& call) {
    if (lane_ != 0 || !exists_) return;
    const int size = num_full_ + num_parts_;
    call.lists[index_] = {keys_ - call.keys, min(size, room_), min(num_full_, room_)};
    if (size > room_ && call.status != nullptr) atomicOr(call.status, kListTooLong);
  }

 private:
  // Of the lane's one of 32 steps.
  __device__ uint2 marks(const LiveList& live, int first, int size) const {
    return (first + lane_) * kWarp < size ? live.steps[first + lane_] : make_uint2(0, 0);
  }
  __device__ bool is_full(std::uint32_t queries) const {
    return begin_of(queries) <= begin_ && end_of(queries) >= end_;
  }
  __device__ void add_some(const LiveList& live, int key, int size) {
    const bool is_here = key < size && is_full(live.queries[key]);
    const std::uint32_t full = __ballot_sync(~0u, is_here);
    const int at = num_full_ + __popc(full & lanes_below(lane_));
    if (is_here && at < room_) keys_[at] = live.keys[key];
    num_full_ += __popc(full);
  }
  __device__ void add_step_of_parts(const LiveList& live, int key, int size) {
    const std::uint32_t queries = key < size ? live.queries[key] : 0;
    const bool is_part = begin_of(queries) < end_ && end_of(queries) > begin_ && !is_full(queries);
    const std::uint32_t parts = __ballot_sync(~0u, is_part);
    const int at = num_full_ + num_parts_ + __popc(parts & lanes_below(lane_));
    if (is_part && at < room_) {
      keys_[at] = live.keys[key];
      rows_[at] = make_uchar2(static_cast<unsigned char>(max(begin_of(queries) - begin_, 0)),
                              static_cast<unsigned char>(min(end_of(queries), end_) - begin_));
    }
    num_parts_ += __popc(parts);
  }

  int lane_, bit_;
  bool exists_;
  std::int64_t index_ = 0;
  int begin_ = 0, end_ = 0;  // queries, relative to the group
  int room_ = 0;
  std::int32_t* keys_ = nullptr;
  uchar2* rows_ = nullptr;
  int num_full_ = 0, num_parts_ = 0;
};

__global__ void __launch_bounds__(kCutThreads, 3) cut_lists(const __grid_constant__ Kernel call) {
  __shared__ Shared shared;
  extern __shared__ uint2 live_memory[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  // Late groups first: under causal they have most to do.
  const int row = static_cast<int>(blockIdx.x % call.num_rows);
  const int group = static_cast<int>((gridDim.x - 1 - blockIdx.x) / call.num_rows);
  const int q_begin = group * kGroupTiles * call.block_q;
  const int q_end = min(q_begin + kGroupTiles * call.block_q, call.q_lens[row]);
  auto* const keys_memory =
      reinterpret_cast<std::int32_t*>(live_memory + call.batch_entries / kWarp);
  const LiveList live{
      keys_memory, reinterpret_cast<std::uint32_t*>(keys_memory + call.batch_entries), live_memory};
  LiveKeys keys(call, shared, live, row, q_begin, q_end);
  keys.restart();
  const bool is_one_batch = !keys.fill();
  TileList list(call, row, group * kGroupTiles, warp, lane);
  if (is_one_batch) {
    if (list.has_rows()) {
      list.add_full(live, keys.size());
      list.add_parts(live, keys.size());
    }
    list.finish(call);
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
  list.finish(call);
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
  if (call.num_rows * std::max(num_pieces, num_groups) > kMostBlocks) {
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
  constexpr std::size_t kStepBytes = kWarp * 2 * sizeof(std::int32_t) + sizeof(uint2);
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
