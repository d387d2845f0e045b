// Selection in parallel over keys. In a group of rows whose visible keys only grow, a key dies with
// the first query that sees w better keys, that is when the w-th better one of them appears:
//
//   death(k) = the w-th smallest key among those of the group that rank above k
//
// (if it comes before k itself, k is never kept). Groups are cut into pieces of 2,048 keys; then
//   1. sort_pieces    128 threads a piece sort its ranks (squad_sort.cuh): a run
//   2. find_worst     per piece, the rank of the w-th best key of its group up to the piece's end:
//                     bit by bit from the top, windows into the runs narrow to one element
//   3. find_deaths    with T before and after its piece, a block knows what happens in it. The keys
//                     that die there are those from T before up to T after: one window of each run.
//                     The keys of the piece above T before are its entrants. Each of them takes the
//                     place of the worst key that is kept when it arrives, or comes too late; so
//                     dying keys go in the order of their ranks (accepted_entrants.cuh)
// so that every key is written once: by its own piece where it is never kept or outlives its group,
// else by the piece in which it dies. All ranks differ, hence nothing depends on the order in which
// blocks run.
// Step 2 waits for memory most of the time. Many pieces are two halves, of whole groups, and the
// thresholds of one are found by the first blocks of the launch that sorts the other half, or that
// finds its deaths: sort A; thresholds A, sort B; thresholds B, deaths A; deaths B. So the file is
// longer than most: a launch does two of the steps, and all read the same pieces and runs.
//
// Fits        random scores: few keys of a late piece enter, step 3 does little
// Fits        rising scores: every key enters and dies, in the order of arrival
// Fits less   scores that drift upwards: some enter and come too late, which takes some rounds
// Cost        8 B written and read a key by the sort; step 2 looks at each run of a group from each
//             of its pieces: quadratic in kv_len / 2,048, 30 to 50 us at 64 (32 rows) by itself
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <new>
#include <string>

#include "gpu_check.hpp"
#include "ptx/grid.cuh"
#include "sm90/cuda_error.hpp"
#include "zoh/device_topk.hpp"
#include "zoh/dying_keys.cuh"
#include "zoh/squad_sort.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = kTopkThreads;
constexpr int kDyingOfThread = kPieceKeys / kThreads;
static_assert(kFewParts <= kThreads, "a team of find_worst_of_few is of one block");
// Shared memory of find_worst for each run: its window and where that splits.
constexpr std::int64_t kWindowBytes = sizeof(ushort2) + sizeof(std::uint16_t);
static_assert(kMostParts * kWindowBytes <= 224 * 1024);

__device__ int2* row_of(const TopkCall& call, const Piece& piece) {
  return call.kept + std::int64_t{piece.row} * call.kv_len + piece.first_key;
}
__device__ const int2* queries_of(const TopkCall& call, const Piece& piece) {
  return call.queries + std::int64_t{piece.mask} * call.kv_len + piece.first_key;
}
__device__ const std::uint16_t* ordinals_of(const TopkCall& call, const Piece& piece) {
  return call.ordinals + std::int64_t{piece.mask} * call.kv_len + piece.first_key;
}
__device__ int local_of(const Piece& piece, std::uint64_t rank) {
  return piece.kind == PieceKind::packed ? local_of_packed_rank(rank)
                                         : key_of_rank(rank) - piece.first_key;
}

// Threads of a block that find the threshold of one piece together.
struct WorstTeam {
  int counts[3];  // of three bits in turn, so that one barrier a bit is enough
  std::uint32_t differing[2];
};
struct WorstStorage {
  WorstTeam teams[kThreads / 32];  // one of a warp at least
};
// A team that has its block for itself needs no barrier of its own: a kernel that numbers barriers
// by a register holds all sixteen, and then four blocks share a multiprocessor.
template <bool kIsAlone>
__device__ __forceinline__ void sync_team(int team, int num_threads) {
  if constexpr (kIsAlone) {
    __syncthreads();
  } else if (num_threads == 32) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(num_threads) : "memory");
  }
}

// worst[piece]: the w-th best rank of its group up to its end, 0 while there are fewer. For groups
// of at most as many parts as a block has threads, past their first piece: a thread has a run, its
// window of ranks whose bits above the current one are those of `worst`, and the best and the worst
// rank in there.
template <bool kIsAlone>
__device__ __forceinline__ void find_worst_of_few(const TopkCall& call, WorstTeam& shared,
                                                  int index, int team, int thread,
                                                  int num_threads) {
  const Piece piece = call.pieces[index];
  if (piece.num_before == 0) return;
  if (piece.num_seen < call.w) {
    if (thread == 0) call.worst[index] = 0;
    return;
  }
  const Runs runs(call, piece, index);
  if (thread < 3) shared.counts[thread] = 0;
  if (thread < 2) shared.differing[thread] = 0;
  const std::uint64_t* const run = runs.at(min(thread, runs.count - 1));
  int begin = 0, end = thread < runs.count ? runs.size(thread) : 0;
  std::uint64_t best = 0, least = 0, worst = runs.at(0)[0];
  std::uint64_t differs = 0;
  if (end > 0) {
    best = run[0];
    least = run[end - 1];
    differs = (best ^ worst) | (least ^ worst);
  }
  sync_team<kIsAlone>(team, num_threads);
  const auto high = __reduce_or_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(differs >> 32));
  const auto low = __reduce_or_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(differs));
  if (thread % 32 == 0) {
    atomicOr(&shared.differing[0], low);
    atomicOr(&shared.differing[1], high);
  }
  sync_team<kIsAlone>(team, num_threads);
  const int top = shared.differing[1] != 0 ? 63 - __clz(static_cast<int>(shared.differing[1]))
                                           : 31 - __clz(static_cast<int>(shared.differing[0]));
  worst = top < 63 ? worst >> (top + 1) << (top + 1) : 0;
  int total = piece.num_before * kPieceKeys + piece.num_keys;
  int wanted = static_cast<int>(call.w);  // at most num_seen
  for (int bit = top; bit >= 0 && total > 1; --bit) {
    const std::uint64_t middle = worst | std::uint64_t{1} << bit;
    int split = end;
    std::uint64_t above_split = least, below_split = best;
    if (begin < end && least < middle) {
      split = begin;
      if (best >= middle) {
        // run[split - 1] is above, run[past] below: both are known.
        int past = end - 1;
        ++split;
        above_split = best;
        below_split = least;
        while (split < past) {
          const int probe = (split + past) / 2;
          const std::uint64_t rank = run[probe];
          if (rank >= middle) {
            split = probe + 1;
            above_split = rank;
          } else {
            past = probe;
            below_split = rank;
          }
        }
      }
    }
    const int count = __reduce_add_sync(0xFFFFFFFFu, split - begin);
    int* const sum = &shared.counts[bit % 3];
    if (thread % 32 == 0 && count != 0) atomicAdd(sum, count);
    if (thread == 0) shared.counts[(bit + 2) % 3] = 0;  // the next bit's: the one before is read
    sync_team<kIsAlone>(team, num_threads);
    const int above = *sum;
    if (wanted <= above) {
      worst = middle;
      total = above;
      end = split;
      least = above_split;
    } else {
      wanted -= above;
      total -= above;
      begin = split;
      best = below_split;
    }
  }
  if (begin < end) call.worst[index] = best;
  if (thread < runs.count) {
    call.ends[std::int64_t{index} * call.most_parts + thread] = static_cast<std::uint16_t>(end);
  }
}

// What the blocks of a launch do: the first ones find thresholds, which waits for memory most of
// the time, the others something else for pieces [begin, end).
struct Stage {
  int worst_begin = 0, worst_end = 0;
  int team_threads = 0;
  int num_worst_blocks = 0;
  int begin = 0, end = 0;
};

// True: that was what this block is for.
__device__ __forceinline__ bool find_thresholds(const TopkCall& call, const Stage& stage,
                                                WorstStorage& storage) {
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  if (block >= stage.num_worst_blocks) return false;
  const int team = thread / stage.team_threads;
  const int index = stage.worst_begin + block * (kThreads / stage.team_threads) + team;
  if (index < stage.worst_end) {
    find_worst_of_few<false>(call, storage.teams[team], index, team, thread % stage.team_threads,
                             stage.team_threads);
  }
  return true;
}

// Thresholds alone, of a piece by each block.
__global__ void __launch_bounds__(kThreads)
    find_worst_alone(const __grid_constant__ TopkCall call) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  __shared__ WorstTeam team;
  find_worst_of_few<true>(call, team, static_cast<int>(blockIdx.x), 0,
                          static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

// By what the keys of a piece are sorted: by the upper bits of their values, where that leaves few
// equal ones; else by lower bits, upper ones and groups in turn.
enum Digits : unsigned { kCoarse = 1, kLower = 2, kUpper = 4, kGroup = 8 };
constexpr std::uint32_t kDigitEnd = 1u << kDigitBits;
// More keys than that with equal upper bits are too many to be put in order one by one.
constexpr int kMostEqual = 32;

struct SortedValues {
  std::uint32_t least = 0;  // of those that somebody sees
  int shift = 0;            // of the upper bits
  unsigned digits = 0;      // 0: all keys are kept, and not sorted

  // The upper bits of what shared memory has of a key, counted from the least value; 0: nobody sees
  // it.
  __device__ std::uint32_t coarse(std::uint32_t stored) const {
    return stored == 0 ? 0 : (stored - 1 - least >> shift) + 1;
  }
};

// Reads the keys of a piece: their values, and 1 more, into shared memory.
template <bool kIsBlock>
__device__ __forceinline__ SortedValues read_values(const TopkCall& call,
                                                    const Squad<kIsBlock>& squad,
                                                    SquadStorage& storage, const Piece& piece) {
  const int2* queries = queries_of(call, piece);
  int2* kept = row_of(call, piece);
  const std::uint16_t* ordinals = ordinals_of(call, piece);
  const float* scores = call.scores + piece.row / call.num_heads * call.batch_stride +
                        piece.row % call.num_heads * call.head_stride +
                        piece.first_key * call.key_stride;
  const bool is_packed = piece.kind == PieceKind::packed;
  bool saw_nan = false;
  Range seen_values, seen_ordinals;
#pragma unroll 4
  for (int item = 0; item < kSquadItems; ++item) {
    const int i = squad.dealt(item);
    storage.values[i] = 0;
    if (i >= piece.num_keys) continue;
    const int2 seen = __ldg(queries + i);
    if (seen.x < seen.y) {
      const float score = __ldg(scores + i * call.key_stride);
      saw_nan |= isnan(score);
      const std::uint32_t value = ascending_score(score);
      seen_values.add(value);
      if (is_packed) seen_ordinals.add(ordinals[i]);
      storage.values[i] = value + 1;
      if (piece.kind == PieceKind::all_kept) kept[i] = seen;
    } else {
      kept[i] = make_int2(0, 0);
    }
  }
  if (__any_sync(0xFFFFFFFFu, saw_nan) && squad.lane == 0 && call.status != nullptr) {
    atomicOr(call.status, kTopkSawNan);
  }
  SortedValues sorted;
  if (piece.kind == PieceKind::all_kept) return sorted;
  const Range values = range_of_squad(squad, storage, seen_values);
  sorted.least = values.least;
  const std::uint32_t range = values.least <= values.most ? values.most - values.least : 0;
  sorted.shift = max(32 - __clz(static_cast<int>(range)) - kDigitBits, 0);
  if ((range >> sorted.shift) + 1 >= kDigitEnd) ++sorted.shift;
  sorted.digits = kCoarse;
  if (is_packed) {
    const Range groups = range_of_squad(squad, storage, seen_ordinals);
    if (groups.least < groups.most) {
      sorted.digits = kLower | kGroup | (sorted.shift > 0 ? kUpper : 0u);
    }
  }
  return sorted;
}

// After a sort by upper bits: the values in their order into storage.words; whether more than
// kMostEqual are equal in them.
template <bool kIsBlock>
__device__ __forceinline__ bool are_many_equal(const Squad<kIsBlock>& squad, SquadStorage& storage,
                                               const SortedValues& sorted, int num_keys) {
#pragma unroll 4
  for (int item = 0; item < kSquadItems; ++item) {
    const int place = squad.dealt(item);
    storage.words[place] = storage.values[storage.order[place]];
  }
  squad.sync();
  Range equal;
#pragma unroll 4
  for (int item = 0; item < kSquadItems; ++item) {
    const int place = squad.dealt(item);
    if (place + kMostEqual >= num_keys) continue;
    const std::uint32_t coarse = sorted.coarse(storage.words[place + kMostEqual]);
    if (coarse != 0 && coarse == sorted.coarse(storage.words[place])) equal.add(1);
  }
  return range_of_squad(squad, storage, equal).most != 0;
}

// Where the key at a place goes among those whose upper bits are equal to its own.
__device__ __forceinline__ int place_among_equal(const std::uint32_t* words,
                                                 const SortedValues& sorted, int place,
                                                 int num_keys) {
  const std::uint32_t value = words[place];
  const std::uint32_t coarse = sorted.coarse(value);
  int to = place;
  for (int at = place + 1; at < num_keys && sorted.coarse(words[at]) == coarse; ++at) {
    to += words[at] > value ? 1 : 0;
  }
  for (int at = place - 1; at >= 0 && sorted.coarse(words[at]) == coarse; --at) {
    to -= words[at] < value ? 1 : 0;
  }
  return to;
}

// Sorts the ranks of a piece by all threads of a squad.
template <bool kIsBlock>
__device__ __forceinline__ void sort_piece(const TopkCall& call, const Squad<kIsBlock>& squad,
                                           SquadStorage& storage, int index) {
  SortedValues sorted = read_values(call, squad, storage, call.pieces[index]);
  if (sorted.digits == 0) return;
  bool has_equal = false;
#pragma unroll 1
  for (unsigned digit = kCoarse; digit <= sorted.digits; digit *= 2) {
    if ((sorted.digits & digit) == 0) continue;
    const Piece& piece = call.pieces[index];
    sort_by_digit(squad, storage, piece.num_keys, digit <= kLower, [&](int key) {
      const std::uint32_t stored = storage.values[key];
      if (digit == kCoarse || stored == 0) return sorted.coarse(stored);
      if (digit == kGroup) return std::uint32_t{ordinals_of(call, piece)[key]};
      const std::uint32_t value = stored - sorted.least;
      return digit == kLower ? value & (kDigitEnd - 1) : value >> kDigitBits;
    });
    if (digit != kCoarse || sorted.shift == 0) continue;
    has_equal = !are_many_equal(squad, storage, sorted, piece.num_keys);
    if (!has_equal) sorted.digits = kLower | kUpper;
  }
  const Piece piece = call.pieces[index];
  const std::uint16_t* ordinals = ordinals_of(call, piece);
  std::uint64_t* run = call.runs + std::int64_t{index} * kPieceKeys;
  // The threshold of a group's first piece is one of its ranks.
  const bool has_threshold = piece.num_before == 0;
  const auto last = static_cast<int>(min(call.w, std::int64_t{kPieceKeys} + 1)) - 1;
#pragma unroll 2
  for (int item = 0; item < kSquadItems; ++item) {
    int place = squad.dealt(item);
    if (place >= piece.num_keys) continue;
    const int key = storage.order[place];
    const std::uint32_t stored = storage.values[key];
    std::uint64_t rank = 0;
    if (stored != 0) {
      rank = piece.kind == PieceKind::packed
                 ? packed_rank_of_ascending(ordinals[key], stored - 1, key)
                 : rank_of_ascending(stored - 1, piece.first_key + key);
      if (has_equal) place = place_among_equal(storage.words, sorted, place, piece.num_keys);
    }
    run[place] = rank;
    if (has_threshold && place == last) call.worst[index] = rank;
  }
  if (!has_threshold || squad.thread != 0) return;
  if (last >= piece.num_keys) call.worst[index] = 0;
  if (call.ends != nullptr) {
    call.ends[std::int64_t{index} * call.most_parts] = static_cast<std::uint16_t>(call.w);
  }
}

// By blocks of one squad.
__global__ void __launch_bounds__(kSquadThreads, 8)
    sort_pieces_alone(const __grid_constant__ TopkCall call, const __grid_constant__ Stage stage) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  __shared__ SquadStorage storage;
  sort_piece(call, Squad<true>(), storage, stage.begin + static_cast<int>(blockIdx.x));
}

// By blocks of several, of which the first ones find thresholds.
constexpr int kSquads = kThreads / kSquadThreads;
constexpr int kSquadsBytes = kSquads * static_cast<int>(sizeof(SquadStorage));
__global__ void __launch_bounds__(kThreads, 2)
    sort_pieces(const __grid_constant__ TopkCall call, const __grid_constant__ Stage stage) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  extern __shared__ __align__(16) unsigned char raw_storage[];
  if (find_thresholds(call, stage, *reinterpret_cast<WorstStorage*>(raw_storage))) return;
  const Squad<false> squad;
  const int block = static_cast<int>(blockIdx.x) - stage.num_worst_blocks;
  const int index = stage.begin + block * kSquads + squad.index;
  if (index >= stage.end) return;
  sort_piece(call, squad, reinterpret_cast<SquadStorage*>(raw_storage)[squad.index], index);
}

// Thresholds, as the first blocks of the other launches find them, for any number of parts.
__global__ void find_worst(const __grid_constant__ TopkCall call) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
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
  const Runs runs(call, piece, blockIdx.x);
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

__global__ void __launch_bounds__(kThreads, 3)
    find_deaths(const __grid_constant__ TopkCall call, const __grid_constant__ Stage stage) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  extern __shared__ __align__(16) unsigned char raw_storage[];
  DeathStorage& storage = *reinterpret_cast<DeathStorage*>(raw_storage);
  if (find_thresholds(call, stage, *reinterpret_cast<WorstStorage*>(raw_storage))) return;
  const int index = stage.begin + static_cast<int>(blockIdx.x) - stage.num_worst_blocks;
  const Piece piece = call.pieces[index];
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint64_t before = piece.num_before == 0 ? 0 : call.worst[index - 1];
  const std::uint64_t after = call.worst[index];
  const std::uint64_t in_the_end = call.worst[index + piece.num_after];
  const Runs runs(call, piece, index);
  const std::uint64_t* run = runs.at(piece.num_before);
  clear_entrants(storage.arrivals);
  __syncthreads();
  for (int i = thread; i < piece.num_keys; i += kThreads) {
    const std::uint64_t rank = run[i];
    storage.entrants[i] = rank;
    if (rank == 0) continue;
    const int local = local_of(piece, rank);
    if (rank < before) {
      row_of(call, piece)[local] = make_int2(0, 0);
      continue;
    }
    if (rank >= in_the_end) row_of(call, piece)[local] = queries_of(call, piece)[local];
    atomicOr(&storage.arrivals.is_accepted[local / 32], 1u << local % 32);
  }
  if (after == 0) return;
  __syncthreads();
  number_accepted<kThreads>(storage.arrivals);
  const int num_entrants = storage.arrivals.num_accepted;
  const std::uint16_t* ends = nullptr;
  const std::uint16_t* ends_before = nullptr;
  if (call.ends != nullptr) {
    ends = call.ends + std::int64_t{index} * call.most_parts;
    if (before != 0) ends_before = ends - call.most_parts;
  }
  const int num_dying = gather_dying(storage, runs, before, after, ends, ends_before, num_entrants);
  if (num_dying == 0) return;
  const bool is_merged = storage.num_windows <= kMostWindows;
  if (!is_merged) order_dying(storage, num_dying);
  Place places[kDyingOfThread];
#pragma unroll
  for (int half = 0; half < kDyingOfThread / Dying::kItems; ++half) {
    Dying dying(half);
    if (dying.first >= num_dying) {
#pragma unroll
      for (int i = 0; i < Dying::kItems; ++i) places[half * Dying::kItems + i] = Place();
      continue;
    }
    if (is_merged) {
      rank_in_windows(storage, num_dying, dying);
    } else {
      rank_in_order(storage, num_entrants, num_dying, dying);
    }
#pragma unroll
    for (int i = 0; i < Dying::kItems; ++i) {
      const int better = dying.better[i];
      const bool is_entrant = dying.at(i) < num_dying && better < num_entrants &&
                              storage.entrants[better] == dying.ranks[i];
      places[half * Dying::kItems + i] = Place(dying.places[i], better, is_entrant);
    }
  }
  // Of an item; negative in an earlier piece.
  const auto local_at = [&](int item) {
    const int at = Dying(item / Dying::kItems).at(item % Dying::kItems);
    return local_of(piece, storage.dying[at]);
  };
  for (;;) {
    bool rejects = false;
#pragma unroll
    for (int i = 0; i < kDyingOfThread; ++i) {
      if (!places[i].is_entrant()) continue;
      const int local = local_at(i);
      if (death_of(storage.arrivals, places[i]) > local) continue;
      reject(storage.arrivals, places[i], local);
      places[i].set_rejected();
      rejects = true;
    }
    if (__syncthreads_or(rejects) == 0) break;
    number_accepted<kThreads>(storage.arrivals);
  }
  const int2* queries = queries_of(call, piece);
  int2* kept = row_of(call, piece);
#pragma unroll
  for (int i = 0; i < kDyingOfThread; ++i) {
    if (Dying(i / Dying::kItems).at(i % Dying::kItems) >= num_dying) continue;
    const int local = local_at(i);
    int2 interval = make_int2(0, 0);
    if (!places[i].is_rejected()) {
      // By way of __ldg, which may come before the stores of other items.
      interval = __ldg(queries + local);
      interval.y = min(interval.y, __ldg(queries + death_of(storage.arrivals, places[i])).x);
    }
    kept[local] = interval.x < interval.y ? interval : make_int2(0, 0);
  }
}

}  // namespace

Result<void> prepare_topk(std::int64_t most_parts) {
  FDMA_TRY_VOID(
      sm90::check_cuda(cudaFuncSetAttribute(find_worst, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(most_parts * kWindowBytes)),
                       "cudaFuncSetAttribute"));
  FDMA_TRY_VOID(sm90::check_cuda(
      cudaFuncSetAttribute(sort_pieces, cudaFuncAttributeMaxDynamicSharedMemorySize, kSquadsBytes),
      "cudaFuncSetAttribute"));
  return sm90::check_cuda(
      cudaFuncSetAttribute(find_deaths, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(sizeof(DeathStorage))),
      "cudaFuncSetAttribute");
}

namespace {

// Thresholds of pieces [worst_begin, worst_end) beside what a launch does for pieces [begin, end).
Stage stage_of(const TopkCall& call, std::int64_t worst_begin, std::int64_t worst_end,
               std::int64_t begin, std::int64_t end) {
  Stage stage;
  stage.team_threads =
      std::max(32, static_cast<int>(std::bit_ceil(static_cast<std::uint32_t>(call.most_parts))));
  stage.worst_begin = static_cast<int>(worst_begin);
  stage.worst_end = static_cast<int>(worst_end);
  const int teams = kThreads / stage.team_threads;
  stage.num_worst_blocks = (stage.worst_end - stage.worst_begin + teams - 1) / teams;
  stage.begin = static_cast<int>(begin);
  stage.end = static_cast<int>(end);
  return stage;
}
Stage stage_alone(std::int64_t begin, std::int64_t end) {
  Stage stage;
  stage.begin = static_cast<int>(begin);
  stage.end = static_cast<int>(end);
  return stage;
}

Result<void> launch_sort(const TopkCall& call, const Stage& stage, Stream stream) {
  const int num_pieces = stage.end - stage.begin;
  const bool overlaps = ptx::is_worth_overlap(num_pieces);
  const auto num_blocks = stage.num_worst_blocks + (num_pieces + kSquads - 1) / kSquads;
  return sm90::check_cuda(
      stage.num_worst_blocks == 0
          ? ptx::launch_overlapping_if(overlaps, sort_pieces_alone,
                                       dim3(static_cast<unsigned>(num_pieces)), dim3(kSquadThreads),
                                       0, stream, call, stage)
          : ptx::launch_overlapping_if(overlaps, sort_pieces,
                                       dim3(static_cast<unsigned>(num_blocks)), dim3(kThreads),
                                       kSquadsBytes, stream, call, stage),
      "launch of the kernel that sorts pieces");
}

Result<void> launch_deaths(const TopkCall& call, const Stage& stage, Stream stream) {
  const int num_pieces = stage.end - stage.begin;
  const dim3 blocks(static_cast<unsigned>(stage.num_worst_blocks + num_pieces));
  return sm90::check_cuda(
      ptx::launch_overlapping_if(ptx::is_worth_overlap(num_pieces), find_deaths, blocks,
                                 dim3(kThreads), static_cast<int>(sizeof(DeathStorage)), stream,
                                 call, stage),
      "launch of the kernel that finds deaths");
}

Result<void> launch_many_parts(const TopkCall& call, std::int64_t num_pieces,
                               std::int64_t num_sorted, Stream stream) {
  FDMA_TRY_VOID(launch_sort(call, stage_alone(0, num_pieces), stream));
  FDMA_TRY_VOID(sm90::check_cuda(
      ptx::launch_overlapping_if(ptx::is_worth_overlap(num_sorted), find_worst,
                                 dim3(static_cast<unsigned>(num_sorted)), dim3(kThreads),
                                 static_cast<int>(call.most_parts * kWindowBytes), stream, call),
      "launch of the kernel that finds thresholds"));
  return launch_deaths(call, stage_alone(0, num_sorted), stream);
}

}  // namespace

Result<void> launch_topk(const TopkCall& call, std::int64_t num_pieces, std::int64_t num_sorted,
                         std::int64_t num_first, Stream stream) {
  if (num_pieces == 0) return {};
  FDMA_TRY_VOID(prepare_topk(kMostParts));
  if (num_sorted == 0) return launch_sort(call, stage_alone(0, num_pieces), stream);
  if (call.most_parts > kFewParts) return launch_many_parts(call, num_pieces, num_sorted, stream);
  if (call.most_parts == 1) {
    FDMA_TRY_VOID(launch_sort(call, stage_alone(0, num_pieces), stream));
    return launch_deaths(call, stage_alone(0, num_sorted), stream);
  }
  const bool is_halved = 0 < num_first && num_first < num_sorted;
  if (!is_halved) {
    FDMA_TRY_VOID(launch_sort(call, stage_alone(0, num_pieces), stream));
    FDMA_TRY_VOID(sm90::check_cuda(
        ptx::launch_overlapping_if(ptx::is_worth_overlap(num_sorted), find_worst_alone,
                                   dim3(static_cast<unsigned>(num_sorted)),
                                   dim3((static_cast<unsigned>(call.most_parts) + 31) / 32 * 32), 0,
                                   stream, call),
        "launch of the kernel that finds thresholds"));
    return launch_deaths(call, stage_alone(0, num_sorted), stream);
  }
  FDMA_TRY_VOID(launch_sort(call, stage_alone(0, num_first), stream));
  FDMA_TRY_VOID(launch_sort(call, stage_of(call, 0, num_first, num_first, num_pieces), stream));
  FDMA_TRY_VOID(launch_deaths(call, stage_of(call, num_first, num_sorted, 0, num_first), stream));
  return launch_deaths(call, stage_alone(num_first, num_sorted), stream);
}

}  // namespace fdma::zoh
