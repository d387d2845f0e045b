// The keys that die in a piece (select_topk.cu): gathered from the runs of its group and ranked, by
// a block.
#pragma once

#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "ptx/addresses.cuh"
#include "zoh/accepted_entrants.cuh"
#include "zoh/arrivals.cuh"
#include "zoh/device_topk.hpp"

namespace fdma::zoh {

inline constexpr int kTopkThreads = 512;

/// The parts of its group up to a piece, and their runs.
struct Runs {
  const std::uint64_t* first;
  int count;
  int last_size;

  /// `index`: of the piece.
  __device__ Runs(const TopkCall& call, const Piece& piece, std::int64_t index)
      : first(call.runs + (index - piece.num_before) * kPieceKeys),
        count(piece.num_before + 1),
        last_size(piece.num_keys) {}
  __device__ const std::uint64_t* at(int i) const { return first + std::int64_t{i} * kPieceKeys; }
  __device__ int size(int i) const { return i + 1 == count ? last_size : kPieceKeys; }
};

/// Dying keys come from windows of runs: those of these few windows are merged.
inline constexpr int kMostWindows = 6;
/// As few keys from more windows are counted, one against all; the rest is sorted.
inline constexpr int kMostCounted = 256;

struct DeathStorage {
  std::uint64_t entrants[kPieceKeys];  ///< the run of the piece
  union {
    std::uint64_t dying[kPieceKeys];
    typename BlockSort<kTopkThreads, 1>::TempStorage sort_1;
    typename BlockSort<kTopkThreads, 2>::TempStorage sort_2;
    typename BlockSort<kTopkThreads, 4>::TempStorage sort_4;
  };
  EntrantStorage arrivals;
  int starts[kTopkThreads];
  int offsets[kTopkThreads + 1];
  int num_windows;             ///< runs with dying keys
  int2 windows[kMostWindows];  ///< their places in `dying`, in any order
  int2 own_window;             ///< that of the piece's own run
  int num_staying;             ///< of the entrants: those that do not die in their piece
  typename cub::BlockScan<int, kTopkThreads>::TempStorage scan;
};

/// ends[i] = end_of_at_least(run, begin, end, ranks[i]), the items side by side, in shared memory.
/// What is left of the window has one size for all items and threads, whichever part it is: so no
/// step asks where it ends.
template <int kItems>
__device__ __forceinline__ void find_ends(const std::uint64_t* run, int begin, int end,
                                          const std::uint64_t (&ranks)[kItems],
                                          int (&ends)[kItems]) {
  constexpr std::uint32_t kBytes = sizeof(std::uint64_t);
  const auto first = static_cast<std::uint32_t>(__cvta_generic_to_shared(run + begin));
  std::uint32_t places[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) places[i] = first;
  for (auto size = static_cast<std::uint32_t>(end - begin); size > 0;) {
    const std::uint32_t half = (size + 1) / 2;
    size -= half;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::uint32_t next = places[i] + half * kBytes;
      if (ptx::load_shared_u64(next - kBytes) >= ranks[i]) places[i] = next;
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    ends[i] = begin + static_cast<int>((places[i] - first) / kBytes);
  }
}

/// The ranks from `before` (from any, where it is 0) up to below `after` in all runs, into
/// storage.dying; returns how many. `ends`: of the piece's group where it is known how many ranks
/// of each run are `after` or better, else null; `ends_before`: the same of `before`.
__device__ inline int gather_dying(DeathStorage& storage, const Runs& runs, std::uint64_t before,
                                   std::uint64_t after, const std::uint16_t* ends,
                                   const std::uint16_t* ends_before, int num_entrants) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) storage.num_windows = 0;
  __syncthreads();
  int filled = 0;
  for (int base = 0; base < runs.count; base += kTopkThreads) {
    int begin = 0, end = 0;
    if (base + thread < runs.count) {
      const bool is_own = base + thread == runs.count - 1;
      if (ends != nullptr && (is_own || ends_before != nullptr)) {
        begin = ends[base + thread];
        end = is_own ? num_entrants : ends_before[base + thread];
      } else {
        const std::uint64_t* run = runs.at(base + thread);
        begin = end_of_at_least(run, 0, runs.size(base + thread), after);
        end = end_of_at_least(run, begin, runs.size(base + thread), max(before, std::uint64_t{1}));
      }
    }
    int offset, total;
    cub::BlockScan<int, kTopkThreads>(storage.scan).ExclusiveSum(end - begin, offset, total);
    if (begin < end) {
      const int window = atomicAdd(&storage.num_windows, 1);
      if (window < kMostWindows) {
        storage.windows[window] = make_int2(filled + offset, filled + offset + end - begin);
      }
    }
    if (base + thread == runs.count - 1) {
      storage.own_window = make_int2(filled + offset, filled + offset + end - begin);
      storage.num_staying = begin;
    }
    storage.starts[thread] = begin - offset;
    storage.offsets[thread] = offset;
    __syncthreads();
    const int count = min(kTopkThreads, runs.count - base);
    for (int i = thread; i < total; i += kTopkThreads) {
      int run = 0;  // the last one with offset <= i
      for (int step = 1 << (31 - __clz(count)); step > 0; step /= 2) {
        if (run + step < count && storage.offsets[run + step] <= i) run += step;
      }
      storage.dying[filled + i] = runs.at(base + run)[storage.starts[run] + i];
    }
    filled += total;
    __syncthreads();
  }
  return filled;
}

/// Two dying keys of a thread, those of a warp side by side: item i is the places[i]-th best (from
/// 0) of all that die in the piece, and better[i] entrants rank above it.
struct Dying {
  static constexpr int kItems = 2;

  int first;  ///< of the warp
  std::uint64_t ranks[kItems];
  int places[kItems];
  int better[kItems];

  /// The two are in the `half`-th half of storage.dying.
  __device__ explicit Dying(int half)
      : first((half * kTopkThreads + static_cast<int>(threadIdx.x) / 32 * 32) * kItems) {}
  /// Where an item lies in storage.dying.
  __device__ int at(int item) const {
    return first + item * 32 + static_cast<int>(threadIdx.x) % 32;
  }
};

/// From few windows: the place of a key is that in its own window plus how many of each other one
/// are better. All entrants that stay rank above it, and those that die are a window.
__device__ __forceinline__ void rank_in_windows(const DeathStorage& storage, int num_dying,
                                                Dying& dying) {
#pragma unroll
  for (int i = 0; i < Dying::kItems; ++i) {
    dying.ranks[i] = dying.at(i) < num_dying ? storage.dying[dying.at(i)] : 0;
    dying.places[i] = 0;
    dying.better[i] = storage.num_staying;
  }
  for (int w = 0; w < storage.num_windows; ++w) {
    const int2 window = storage.windows[w];
    const bool is_own_run = window.x == storage.own_window.x && window.y == storage.own_window.y;
    int ends[Dying::kItems] = {};
    // Most warps lie in one window as a whole.
    const int end = min(dying.first + Dying::kItems * 32, num_dying);
    if (dying.first < window.x || end > window.y) {
      find_ends(storage.dying, window.x, window.y, dying.ranks, ends);
    }
#pragma unroll
    for (int i = 0; i < Dying::kItems; ++i) {
      const int at = dying.at(i);
      const bool is_inside = window.x <= at && at < window.y;
      const int above = (is_inside ? at : ends[i]) - window.x;
      dying.places[i] += above;
      if (is_own_run) dying.better[i] += above;
    }
  }
}

/// The same where storage.dying is in descending order.
__device__ __forceinline__ void rank_in_order(const DeathStorage& storage, int num_entrants,
                                              int num_dying, Dying& dying) {
  std::uint64_t next[Dying::kItems];  // a key is not better than itself
#pragma unroll
  for (int i = 0; i < Dying::kItems; ++i) {
    const int at = dying.at(i);
    dying.ranks[i] = at < num_dying ? storage.dying[at] : 0;
    dying.places[i] = at;
    next[i] = dying.ranks[i] + 1;
  }
  find_ends(storage.entrants, 0, num_entrants, next, dying.better);
}

/// Puts few keys in descending order: the place of each is the number of better ones.
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

/// The same for many.
template <int kItems, class Storage>
__device__ __forceinline__ void sort_dying(DeathStorage& storage, Storage& sort_storage,
                                           int num_dying) {
  const int first = static_cast<int>(threadIdx.x) * kItems;
  std::uint64_t ranks[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) ranks[i] = first + i < num_dying ? storage.dying[first + i] : 0;
  __syncthreads();
  BlockSort<kTopkThreads, kItems>(sort_storage).Sort(ranks, GreaterRank());
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) storage.dying[first + i] = ranks[i];
  __syncthreads();
}

/// Puts dying keys from more than kMostWindows windows in descending order.
__device__ __forceinline__ void order_dying(DeathStorage& storage, int num_dying) {
  if (num_dying <= kMostCounted) {
    order_few(storage, num_dying);
  } else if (num_dying <= kTopkThreads) {
    sort_dying<1>(storage, storage.sort_1, num_dying);
  } else if (num_dying <= 2 * kTopkThreads) {
    sort_dying<2>(storage, storage.sort_2, num_dying);
  } else {
    sort_dying<4>(storage, storage.sort_4, num_dying);
  }
}

}  // namespace fdma::zoh
