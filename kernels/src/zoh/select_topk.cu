// Selection in parallel over keys. In a group of rows whose visible keys only grow, a key dies with
// the first query that sees w better keys, that is when the w-th better one of them appears:
//
//   death(k) = the w-th smallest key among those of the group that rank above k
//
// (if it comes before k itself, k is never kept). Groups are cut into pieces of 2,048 keys; then
//   1. sort_pieces    one thread block a piece sorts its ranks: a run
//   2. find_worst     per piece, the rank of the w-th best key of its group up to the piece's end:
//                     bit by bit from the top, windows into the runs narrow to one element
//   3. find_deaths    with T before and after its piece, a block knows what happens in it. The keys
//                     that die there are those from T before up to T after: one window of each run.
//                     The keys of the piece above T before are its entrants. Of the dying keys, the
//                     i-th best (from 0) dies with the (i + 1)-th last of the entrants that rank
//                     above it, since w + i keys rank above it in all. A wavelet tree of the
//                     entrants in the order of their ranks (ranking.hpp) answers that. Dying
//                     keys come sorted from each run: from few runs they are merged, else sorted.
// so that every key is written once: by its own piece where it is never kept or outlives its group,
// else by the piece in which it dies. All ranks differ, hence nothing depends on the order in which
// blocks run.
//
// Fits        random scores: few keys of a late piece enter, step 3 does little
// Fits        rising scores: every key enters and dies, but below all that enter in its piece
// Fits less   scores that drift upwards: each piece asks 2,048 questions of a tree
// Cost        8 B written and read a key by the sort; step 2 looks at each run of a group from each
//             of its pieces: quadratic in kv_len / 2,048, 20 us at 64
#include <cuda_runtime.h>

#include <algorithm>
#include <cub/block/block_scan.cuh>
#include <limits>
#include <new>
#include <string>

#include "gpu_check.hpp"
#include "sm90/cuda_error.hpp"
#include "zoh/arrivals.cuh"
#include "zoh/device_topk.hpp"

namespace fdma::zoh {
namespace {

constexpr int kThreads = 512;
static_assert(kPieceKeys <= 4 * kThreads);
// Shared memory of find_worst for each run: its window and where that splits.
constexpr std::int64_t kWindowBytes = sizeof(ushort2) + sizeof(std::uint16_t);
static_assert(kMostParts * kWindowBytes <= 224 * 1024);

__device__ int2* row_of(const TopkCall& call, const Piece& piece) {
  return call.kept + std::int64_t{piece.row} * call.kv_len + piece.first_key;
}
__device__ const int2* queries_of(const TopkCall& call, const Piece& piece) {
  return call.queries + std::int64_t{piece.mask} * call.kv_len + piece.first_key;
}
__device__ int local_of(const Piece& piece, std::uint64_t rank) {
  return piece.kind == PieceKind::packed ? local_of_packed_rank(rank)
                                         : key_of_rank(rank) - piece.first_key;
}

__global__ void __launch_bounds__(kThreads) sort_pieces(TopkCall call) {
  constexpr int kItems = kPieceKeys / kThreads;
  __shared__ typename BlockSort<kThreads, kItems>::TempStorage sort_storage;
  __shared__ std::uint64_t ranks[kPieceKeys];
  const Piece piece = call.pieces[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  const int2* queries = queries_of(call, piece);
  int2* kept = row_of(call, piece);
  const std::uint16_t* ordinals =
      call.ordinals + std::int64_t{piece.mask} * call.kv_len + piece.first_key;
  const float* scores = call.scores + piece.row / call.num_heads * call.batch_stride +
                        piece.row % call.num_heads * call.head_stride +
                        piece.first_key * call.key_stride;
  bool saw_nan = false;
  for (int i = thread; i < kPieceKeys; i += kThreads) {
    std::uint64_t rank = 0;
    if (i < piece.num_keys) {
      const int2 seen = queries[i];
      if (seen.x < seen.y) {
        const float score = scores[i * call.key_stride];
        saw_nan |= isnan(score);
        rank = piece.kind == PieceKind::packed ? packed_rank(ordinals[i], score, i)
                                               : rank_of_key(score, piece.first_key + i);
        if (piece.kind == PieceKind::all_kept) kept[i] = seen;
      } else {
        kept[i] = make_int2(0, 0);
      }
    }
    ranks[i] = rank;
  }
  if (__syncthreads_or(saw_nan) != 0 && thread == 0 && call.status != nullptr) {
    atomicOr(call.status, kTopkSawNan);
  }
  if (piece.kind == PieceKind::all_kept) return;
  std::uint64_t items[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) items[i] = ranks[thread * kItems + i];
  BlockSort<kThreads, kItems>(sort_storage).Sort(items, GreaterRank());
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) ranks[thread * kItems + i] = items[i];
  __syncthreads();
  std::uint64_t* run = call.runs + std::int64_t{blockIdx.x} * kPieceKeys;
  for (int i = thread; i < piece.num_keys; i += kThreads) run[i] = ranks[i];
}

// The parts of its group up to a piece, and their runs.
struct Runs {
  const std::uint64_t* first;
  int count;
  int last_size;

  __device__ Runs(const TopkCall& call, const Piece& piece)
      : first(call.runs + (std::int64_t{blockIdx.x} - piece.num_before) * kPieceKeys),
        count(piece.num_before + 1),
        last_size(piece.num_keys) {}
  __device__ const std::uint64_t* at(int i) const { return first + std::int64_t{i} * kPieceKeys; }
  __device__ int size(int i) const { return i + 1 == count ? last_size : kPieceKeys; }
};

// worst[piece]: the w-th best rank of its group up to its end, 0 while there are fewer.
__global__ void find_worst(TopkCall call) {
  // Per run the elements whose bits above the current one are those of `worst`; the counts of three
  // bits in turn, so that one barrier a bit is enough.
  extern __shared__ ushort2 windows[];
  auto* const splits = reinterpret_cast<std::uint16_t*>(windows + call.most_parts);
  __shared__ int counts[3];
  const Piece piece = call.pieces[blockIdx.x];
  if (piece.num_seen < call.w) {
    if (threadIdx.x == 0) call.worst[blockIdx.x] = 0;
    return;
  }
  const Runs runs(call, piece);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (thread < 3) counts[thread] = 0;
  for (int i = thread; i < runs.count; i += threads) {
    windows[i] = make_ushort2(0, static_cast<unsigned short>(runs.size(i)));
  }
  __syncthreads();
  std::int64_t total = std::int64_t{piece.num_before} * kPieceKeys + piece.num_keys;
  std::int64_t wanted = call.w;
  std::uint64_t worst = 0;
  for (int bit = 63; bit >= 0 && total > 1; --bit) {
    const std::uint64_t middle = worst | std::uint64_t{1} << bit;
    int count = 0;
    for (int i = thread; i < runs.count; i += threads) {
      const ushort2 window = windows[i];
      const int split = split_window(runs.at(i), window.x, window.y, middle);
      splits[i] = static_cast<std::uint16_t>(split);
      count += split - window.x;
    }
    count = __reduce_add_sync(0xFFFFFFFFu, count);
    int* const sum = &counts[bit % 3];
    if (thread % 32 == 0 && count != 0) atomicAdd(sum, count);
    if (thread == 0) counts[(bit + 2) % 3] = 0;  // of the next bit: the one before is still read
    __syncthreads();
    const int above = *sum;
    const bool is_above = wanted <= above;
    if (is_above) {
      worst = middle;
      total = above;
    } else {
      wanted -= above;
      total -= above;
    }
    for (int i = thread; i < runs.count; i += threads) {
      const ushort2 window = windows[i];
      windows[i] = is_above ? make_ushort2(window.x, splits[i]) : make_ushort2(splits[i], window.y);
    }
  }
  for (int i = thread; i < runs.count; i += threads) {
    if (windows[i].x < windows[i].y) call.worst[blockIdx.x] = runs.at(i)[windows[i].x];
  }
}

// Dying keys come from windows of runs: those of these few windows are merged.
constexpr int kMostWindows = 4;
// As few keys from more windows are counted, one against all; the rest is sorted.
constexpr int kMostCounted = 256;

struct DeathStorage {
  std::uint64_t entrants[kPieceKeys];  ///< the run of the piece
  union {
    std::uint64_t dying[kPieceKeys];
    typename BlockSort<kThreads, 1>::TempStorage sort_1;
    typename BlockSort<kThreads, 2>::TempStorage sort_2;
    typename BlockSort<kThreads, 4>::TempStorage sort_4;
  };
  ArrivalStorage arrivals;
  int starts[kThreads];
  int offsets[kThreads + 1];
  int num_windows;             ///< runs with dying keys
  int2 windows[kMostWindows];  ///< their places in `dying`, in any order
  typename cub::BlockScan<int, kThreads>::TempStorage scan;
};

// The ranks from `before` (from any, where it is 0) up to below `after` in all runs, into
// storage.dying; returns how many.
__device__ int gather_dying(DeathStorage& storage, const Runs& runs, std::uint64_t before,
                            std::uint64_t after) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) storage.num_windows = 0;
  __syncthreads();
  int filled = 0;
  for (int base = 0; base < runs.count; base += kThreads) {
    int begin = 0, end = 0;
    if (base + thread < runs.count) {
      const std::uint64_t* run = runs.at(base + thread);
      begin = end_of_at_least(run, 0, runs.size(base + thread), after);
      end = end_of_at_least(run, begin, runs.size(base + thread), max(before, std::uint64_t{1}));
    }
    int offset, total;
    cub::BlockScan<int, kThreads>(storage.scan).ExclusiveSum(end - begin, offset, total);
    if (begin < end) {
      const int window = atomicAdd(&storage.num_windows, 1);
      if (window < kMostWindows) {
        storage.windows[window] = make_int2(filled + offset, filled + offset + end - begin);
      }
    }
    storage.starts[thread] = begin - offset;
    storage.offsets[thread] = offset;
    __syncthreads();
    for (int i = thread; i < total; i += kThreads) {
      int run = 0;  // the last one with offset <= i
#pragma unroll
      for (int step = kThreads / 2; step > 0; step /= 2) {
        if (storage.offsets[run + step] <= i) run += step;
      }
      storage.dying[filled + i] = runs.at(base + run)[storage.starts[run] + i];
    }
    filled += total;
    __syncthreads();
  }
  return filled;
}

// Puts the dying keys in descending order, item by item where it belongs: its place in its own
// window plus how many of each other one are better.
template <int kItems>
__device__ __forceinline__ void merge_windows(DeathStorage& storage, int num_dying) {
  if (storage.num_windows == 1) return;
  std::uint64_t ranks[kItems];
  int places[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at >= num_dying) break;
    ranks[i] = storage.dying[at];
    places[i] = 0;
    for (int w = 0; w < storage.num_windows; ++w) {
      const int2 window = storage.windows[w];
      const bool is_own = window.x <= at && at < window.y;
      places[i] +=
          (is_own ? at : end_of_at_least(storage.dying, window.x, window.y, ranks[i])) - window.x;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at < num_dying) storage.dying[places[i]] = ranks[i];
  }
  __syncthreads();
}

// The same by counting the better ones of all.
__device__ __forceinline__ void order_few(DeathStorage& storage, int num_dying) {
  const int thread = static_cast<int>(threadIdx.x);
  std::uint64_t rank = 0;
  int place = 0;
  if (thread < num_dying) {
    rank = storage.dying[thread];
#pragma unroll 4
    for (int i = 0; i < num_dying; ++i) place += storage.dying[i] > rank ? 1 : 0;
  }
  __syncthreads();
  if (thread < num_dying) storage.dying[place] = rank;
  __syncthreads();
}

template <int kItems, class Storage>
__device__ void write_deaths(DeathStorage& storage, Storage& sort_storage, const TopkCall& call,
                             const Piece& piece, bool is_below, int num_entrants, int num_dying) {
  const int first = static_cast<int>(threadIdx.x) * kItems;
  const bool is_merged = storage.num_windows <= kMostWindows,
             is_counted = num_dying <= kMostCounted;
  if (is_merged) {
    merge_windows<kItems>(storage, num_dying);
  } else if (is_counted) {
    order_few(storage, num_dying);
  }
  std::uint64_t dying[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) dying[i] = first + i < num_dying ? storage.dying[first + i] : 0;
  if (!is_merged && !is_counted) {
    __syncthreads();
    BlockSort<kThreads, kItems>(sort_storage).Sort(dying, GreaterRank());
  }
  const int2* queries = queries_of(call, piece);
  int2* kept = row_of(call, piece);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i >= num_dying) break;
    int arrival = num_entrants - 1 - (first + i);
    if (!is_below) {
      const Arrivals arrivals = tree_of(storage.arrivals, num_entrants);
      const int better = end_of_at_least(storage.entrants, 0, num_entrants, dying[i] + 1);
      arrival = arrivals.largest(better, first + i + 1);
    }
    const int last = storage.arrivals.local_of_arrival[arrival];
    const int local = local_of(piece, dying[i]);  // negative in an earlier piece
    int2 interval = queries[local];
    interval.y = min(interval.y, queries[last].x);
    kept[local] = interval.x < interval.y ? interval : make_int2(0, 0);
  }
}

__global__ void __launch_bounds__(kThreads) find_deaths(TopkCall call) {
  extern __shared__ __align__(16) unsigned char raw_storage[];
  DeathStorage& storage = *reinterpret_cast<DeathStorage*>(raw_storage);
  const Piece piece = call.pieces[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint64_t before = piece.num_before == 0 ? 0 : call.worst[blockIdx.x - 1];
  const std::uint64_t after = call.worst[blockIdx.x];
  const std::uint64_t in_the_end = call.worst[blockIdx.x + static_cast<unsigned>(piece.num_after)];
  const Runs runs(call, piece);
  const std::uint64_t* run = runs.at(piece.num_before);
  for (int i = thread; i < piece.num_keys; i += kThreads) {
    const std::uint64_t rank = run[i];
    storage.entrants[i] = rank;
    if (rank == 0) continue;
    const int local = local_of(piece, rank);
    if (rank < before) {
      row_of(call, piece)[local] = make_int2(0, 0);
    } else if (rank >= in_the_end) {
      row_of(call, piece)[local] = queries_of(call, piece)[local];
    }
  }
  if (after == 0) return;
  __syncthreads();
  const int num_entrants =
      end_of_at_least(storage.entrants, 0, piece.num_keys, max(before, std::uint64_t{1}));
  const int num_dying = gather_dying(storage, runs, before, after);
  if (num_dying == 0) return;
  number_arrivals<kThreads>(storage.arrivals, num_entrants,
                            [&](int i) { return local_of(piece, storage.entrants[i]); });
  // Where all dying keys rank below all entrants, as with rising scores, the i-th best of them dies
  // with the (i + 1)-th last of all entrants, and no tree is needed.
  const std::uint64_t worst_entrant = storage.entrants[num_entrants - 1];
  bool is_above = false;
  for (int i = thread; i < num_dying; i += kThreads) {
    is_above |= storage.dying[i] >= worst_entrant;
  }
  const bool is_below = __syncthreads_or(is_above) == 0;
  if (!is_below) build_tree<kThreads>(storage.arrivals, num_entrants);
  if (num_dying <= kThreads) {
    write_deaths<1>(storage, storage.sort_1, call, piece, is_below, num_entrants, num_dying);
  } else if (num_dying <= 2 * kThreads) {
    write_deaths<2>(storage, storage.sort_2, call, piece, is_below, num_entrants, num_dying);
  } else {
    write_deaths<4>(storage, storage.sort_4, call, piece, is_below, num_entrants, num_dying);
  }
}

}  // namespace

Result<void> prepare_topk(std::int64_t most_parts) {
  FDMA_TRY_VOID(
      sm90::check_cuda(cudaFuncSetAttribute(find_worst, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(most_parts * kWindowBytes)),
                       "cudaFuncSetAttribute"));
  return sm90::check_cuda(
      cudaFuncSetAttribute(find_deaths, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(sizeof(DeathStorage))),
      "cudaFuncSetAttribute");
}

Result<void> launch_topk(const TopkCall& call, std::int64_t num_pieces, std::int64_t num_sorted,
                         Stream stream) {
  if (num_pieces == 0) return {};
  FDMA_TRY_VOID(prepare_topk(kMostParts));
  sort_pieces<<<static_cast<unsigned>(num_pieces), kThreads, 0, stream>>>(call);
  if (num_sorted > 0) {
    const auto blocks = static_cast<unsigned>(num_sorted);
    const auto parts = static_cast<std::size_t>(call.most_parts);
    const std::size_t threads = std::clamp<std::size_t>((parts + 31) / 32 * 32, 32, kThreads);
    find_worst<<<blocks, static_cast<unsigned>(threads), parts * kWindowBytes, stream>>>(call);
    find_deaths<<<blocks, kThreads, sizeof(DeathStorage), stream>>>(call);
  }
  return sm90::check_cuda(cudaGetLastError(), "selection: launch");
}

}  // namespace fdma::zoh
