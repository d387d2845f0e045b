// Step 1 of selection (select_topk.cu): a block sorts the ranks of a key segment.
//
// One sort by 21 bits (warpgroup_sort.cuh) is nearly always enough. If the values of the key
// segment have more bits than that between the least and the greatest one, they are sorted by their
// distance from the least one in 2^21 equal steps. Float arithmetic rounds, but never makes the
// larger of two values smaller than the other. Keys of one step, about two pairs of 2,048 normally
// distributed ones, are put in order afterwards, one by one. If many keys share a step (values of
// very different size, or infinite ones), the steps are taken from the float's bits. If that does
// not help either, two sorts by lower and by upper bits are exact.
#pragma once

#include <cfloat>
#include <cstdint>

#include "ptx/addresses.cuh"
#include "selection/topk/device_topk.hpp"
#include "selection/topk/warpgroup_sort.cuh"

namespace fdma::zoh {

__device__ __forceinline__ int2* row_of(const TopkCall& call, const KeySegment& key_segment) {
  return call.kept + std::int64_t{key_segment.row} * call.kv_len + key_segment.first_key;
}
__device__ __forceinline__ const int2* queries_of(const TopkCall& call,
                                                  const KeySegment& key_segment) {
  return call.queries + std::int64_t{key_segment.mask} * call.kv_len + key_segment.first_key;
}
__device__ __forceinline__ const std::uint16_t* ordinals_of(const TopkCall& call,
                                                            const KeySegment& key_segment) {
  return call.ordinals + std::int64_t{key_segment.mask} * call.kv_len + key_segment.first_key;
}

/// What keys are sorted by, in successive sorts.
enum Digits : unsigned { kSteps = 1, kCoarse = 2, kLower = 4, kUpper = 8, kGroup = 16 };
inline constexpr std::uint32_t kDigitEnd = 1u << kDigitBits;

struct SortedValues {
  std::uint32_t least;  ///< among the seen keys
  int shift;            ///< of the upper bits
  float low, scale;
  unsigned digits;

  /// 0 is what shared memory holds for a key that no query sees.
  __device__ std::uint32_t coarse(std::uint32_t stored) const {
    return stored == 0 ? 0 : (stored - 1 - least >> shift) + 1;
  }
  /// Steps count from 1. The score of a key that no query sees is NaN, which becomes 0.
  __device__ std::uint32_t step(std::uint32_t stored) const {
    return static_cast<std::uint32_t>(fmaf(score_of_ascending(stored - 1) - low, scale, 1.0F));
  }
  __device__ std::uint32_t digit(unsigned kind, std::uint32_t stored) const {
    return kind == kSteps ? step(stored) : coarse(stored);
  }
};

struct KeySegmentStorage : SortGroupStorage {
  SortedValues sorted;
};

/// Chooses what the seen values of a key segment are sorted by.
__device__ __forceinline__ SortedValues sorted_by(const Range& values) {
  SortedValues sorted{};
  sorted.least = values.least;
  const std::uint32_t range = values.least <= values.most ? values.most - values.least : 0;
  sorted.shift = max(32 - __clz(static_cast<int>(range)) - kDigitBits, 0);
  if ((range >> sorted.shift) + 1 >= kDigitEnd) ++sorted.shift;
  sorted.digits = kCoarse;
  if (sorted.shift > 0) {
    sorted.low = score_of_ascending(values.least);
    const float distance = score_of_ascending(values.most) - sorted.low;
    if (isfinite(distance)) {
      sorted.scale = fminf(static_cast<float>(kDigitEnd - 2) / distance, FLT_MAX);
      sorted.digits = kSteps;
    }
  }
  return sorted;
}

/// Reads the keys of a key segment into shared memory: their values plus 1, and what they are
/// sorted by. Returns the digits; 0 means that all keys are kept and not sorted.
__device__ __forceinline__ unsigned read_values(const TopkCall& call, const SortGroup& sort_group,
                                                KeySegmentStorage& storage,
                                                const KeySegment& key_segment) {
  const float* scores = call.scores + key_segment.row / call.num_heads * call.batch_stride +
                        key_segment.row % call.num_heads * call.head_stride +
                        key_segment.first_key * call.key_stride;
  const bool has_groups = key_segment.kind == KeySegmentKind::packed && key_segment.num_groups > 1;
  const bool is_dense = call.key_stride == 1 && reinterpret_cast<std::uintptr_t>(scores) % 16 == 0;
  Range seen_values, seen_ordinals;
  if (is_dense && key_segment.is_seen_whole != 0 && key_segment.kind != KeySegmentKind::all_kept &&
      !has_groups && key_segment.num_keys % 4 == 0) {
    constexpr int kLoads = kSortGroupItems / 4;
    const int first = sort_group.warp * kSortGroupWarpKeys + sort_group.lane * 4;
    float4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * 128;
      if (at < key_segment.num_keys)
        loaded[i] = __ldg(reinterpret_cast<const float4*>(scores + at));
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * 128;
      uint4 stored = make_uint4(0, 0, 0, 0);
      if (at < key_segment.num_keys) {
        stored = make_uint4(ascending_score(loaded[i].x), ascending_score(loaded[i].y),
                            ascending_score(loaded[i].z), ascending_score(loaded[i].w));
        seen_values.add(stored.x);
        seen_values.add(stored.y);
        seen_values.add(stored.z);
        seen_values.add(stored.w);
        stored = make_uint4(stored.x + 1, stored.y + 1, stored.z + 1, stored.w + 1);
      }
      *reinterpret_cast<uint4*>(storage.values + at) = stored;
    }
  } else {
    const int2* queries = queries_of(call, key_segment);
    const std::uint16_t* ordinals = ordinals_of(call, key_segment);
    int2* kept = row_of(call, key_segment);
    const bool all_kept = key_segment.kind == KeySegmentKind::all_kept;
#pragma unroll 4
    for (int item = 0; item < kSortGroupItems; ++item) {
      const int i = sort_group.dealt(item);
      storage.values[i] = 0;
      if (i >= key_segment.num_keys) continue;
      const int2 seen = __ldg(queries + i);
      const bool is_seen = seen.x < seen.y;
      if (is_seen) {
        const std::uint32_t value = ascending_score(__ldg(scores + i * call.key_stride));
        seen_values.add(value);
        if (has_groups) seen_ordinals.add(ordinals[i]);
        storage.values[i] = value + 1;
      }
      if (all_kept) kept[i] = is_seen ? seen : make_int2(0, 0);
    }
  }
  // NaN, and only NaN, has the value 0.
  if (__any_sync(0xFFFFFFFFu, seen_values.least == 0) && sort_group.lane == 0 &&
      call.status != nullptr) {
    atomicOr(call.status, kTopkSawNan);
  }
  if (key_segment.kind == KeySegmentKind::all_kept) return 0;
  SortedValues sorted = sorted_by(range_of_sort_group(sort_group, storage, seen_values));
  if (has_groups) {
    const Range groups = range_of_sort_group(sort_group, storage, seen_ordinals);
    if (groups.least < groups.most) {
      sorted.digits = kLower | kGroup | (sorted.shift > 0 ? kUpper : 0u);
    }
  }
  if (sort_group.thread == 0) storage.sorted = sorted;
  __syncthreads();
  return sorted.digits;
}

/// Whether two successive words in descending order have the same digit.
__device__ __forceinline__ bool have_one_digit(std::uint32_t word, std::uint32_t next) {
  return (word ^ next) < kKeySegmentSize &&
         next >= kKeySegmentSize;  // digit 0 comes after all others
}
/// The words of a thread, except the first, that have the same digit as the word before: one bit
/// each.
__device__ __forceinline__ unsigned find_equal_digits(
    const std::uint32_t (&words)[kSortGroupItems]) {
  unsigned equal = 0;
#pragma unroll
  for (int i = 1; i < kSortGroupItems; ++i) {
    equal |= have_one_digit(words[i - 1], words[i]) ? 1u << i : 0;
  }
  return equal;
}

/// Puts keys with the same digit in the order of their values. Equal values are in the order of
/// their keys already. `equal` are the bits of each thread in shared memory. `begins` are the keys
/// of the thread that are first in such a group; no group has all keys of a thread.
__device__ __forceinline__ void order_equal_digits(const SortGroup& sort_group,
                                                   KeySegmentStorage& storage,
                                                   const std::uint32_t* equal, unsigned begins) {
  const auto value_at = [&](int place) { return storage.values[storage.order[place]]; };
  const auto ones_from = [&](int thread, int bit) {
    return thread < kSortGroupThreads ? __ffs(static_cast<int>(~(equal[thread] >> bit))) - 1 : 0;
  };
  for (; begins != 0; begins &= begins - 1) {
    const int first = __ffs(static_cast<int>(begins)) - 1;
    int count = 1 + ones_from(sort_group.thread, first + 1);
    if (first + count == kSortGroupItems) count += ones_from(sort_group.thread + 1, 0);
    const int begin = sort_group.thread * kSortGroupItems + first;
    for (int place = begin + 1; place < begin + count; ++place) {
      const std::uint16_t key = storage.order[place];
      const std::uint32_t value = storage.values[key];
      int to = place;
      for (; to > begin && value_at(to - 1) < value; --to) {
        storage.order[to] = storage.order[to - 1];
      }
      storage.order[to] = key;
    }
  }
}

/// Whether keys with the same digit are in the order of their values already.
__device__ __forceinline__ bool are_ordered(const SortGroup& sort_group,
                                            const KeySegmentStorage& storage, unsigned kind) {
  bool is_wrong = false;
#pragma unroll 4
  for (int item = 0; item < kSortGroupItems; ++item) {
    const int place = sort_group.dealt(item);
    const std::uint32_t value = storage.values[storage.order[place]];
    const std::uint32_t next = storage.values[storage.order[min(place + 1, kKeySegmentSize - 1)]];
    is_wrong |=
        value < next && storage.sorted.digit(kind, value) == storage.sorted.digit(kind, next);
  }
  return !__syncthreads_or(is_wrong);
}

/// Sorts a key segment by one digit, the largest first, stably. Returns false if so many keys with
/// different values share a digit that another digit has to be used.
__device__ __forceinline__ bool sort_by_digit(const TopkCall& call, const SortGroup& sort_group,
                                              KeySegmentStorage& storage,
                                              const KeySegment& key_segment, unsigned kind) {
  std::uint32_t x[kSortGroupItems];
  if (kind == kSteps) {
    const int first = ptx::renewed(sort_group.dealt(0));
#pragma unroll
    for (int i = 0; i < kSortGroupItems; ++i) {
      const int key = first + i * 32;
      x[i] = word_of_digit(storage.sorted.step(storage.values[key]), key);
    }
  } else {
    // The digits pass through shared memory, so that few of them are in flight at a time.
#pragma unroll 4
    for (int i = 0; i < kSortGroupItems; ++i) {
      const int place = sort_group.dealt(i);
      const int key = kind <= kLower ? place : storage.order[place];
      const std::uint32_t stored = storage.values[key];
      const std::uint32_t value = stored - storage.sorted.least;
      std::uint32_t digit = 0;
      if (kind == kCoarse || stored == 0) {
        digit = storage.sorted.coarse(stored);
      } else if (kind == kGroup) {
        digit = ordinals_of(call, key_segment)[key];
      } else {
        digit = kind == kLower ? value & (kDigitEnd - 1) : value >> kDigitBits;
      }
      storage.words[place] = word_of_digit(digit, place);
    }
#pragma unroll
    for (int i = 0; i < kSortGroupItems; ++i) x[i] = storage.words[sort_group.dealt(i)];
  }
  sort_words(sort_group, storage.words, x, key_segment.num_keys);
  const bool may_be_equal = kind == kSteps || (kind == kCoarse && storage.sorted.shift > 0);
  // Bit i: key i of the thread and the one before have the same digit. Pairs across warps are added
  // later.
  unsigned equal = 0;
  bool is_full = false;
  if (may_be_equal) {
    const std::uint32_t before = __shfl_up_sync(0xFFFFFFFFu, x[kSortGroupItems - 1], 1);
    equal = find_equal_digits(x);
    if (sort_group.lane > 0 && have_one_digit(before, x[0])) equal |= 1;
    is_full = have_one_digit(x[0], x[kSortGroupItems - 1]);
    if (sort_group.lane == 0) storage.least[sort_group.warp] = x[0];
    if (sort_group.lane == 31) storage.most[sort_group.warp] = x[kSortGroupItems - 1];
  }
#pragma unroll
  for (int i = 0; i < kSortGroupItems; ++i) {
    x[i] = place_of_word(x[i]);
    if (kind > kLower) x[i] = storage.order[x[i]];
  }
  // No thread reads the old order any more.
  const bool is_any_full = __syncthreads_or(is_full) != 0;
  store_order(sort_group, storage, x);
  if (is_any_full) {
    __syncthreads();
    return are_ordered(sort_group, storage, kind);
  }
  if (may_be_equal) {
    if (sort_group.lane == 0 && sort_group.warp > 0 &&
        have_one_digit(storage.most[sort_group.warp - 1], storage.least[sort_group.warp])) {
      equal |= 1;
    }
    storage.words[sort_group.thread] = equal;
    __syncthreads();
    // A group begins one before the first key that has the same digit as the key before it.
    const bool is_next_equal = sort_group.thread + 1 < kSortGroupThreads &&
                               (storage.words[sort_group.thread + 1] & 1) != 0;
    const unsigned begins =
        (equal >> 1 | (is_next_equal ? 1u << (kSortGroupItems - 1) : 0u)) & ~equal;
    if (begins != 0) order_equal_digits(sort_group, storage, storage.words, begins);
  }
  __syncthreads();
  return true;
}

/// Sorts the ranks of a key segment. All threads of a block call it.
__device__ __forceinline__ void sort_key_segment(const TopkCall& call, const SortGroup& sort_group,
                                                 KeySegmentStorage& storage, int index) {
  unsigned digits = read_values(call, sort_group, storage, call.key_segments[index]);
  if (digits == 0) return;
#pragma unroll 1
  for (unsigned kind = kSteps; kind <= digits; kind *= 2) {
    if ((digits & kind) == 0) continue;
    if (sort_by_digit(call, sort_group, storage, call.key_segments[index], kind)) continue;
    digits = kind == kSteps ? unsigned{kCoarse} : unsigned{kLower} | kUpper;
  }
  const KeySegment key_segment = call.key_segments[index];
  const bool is_packed = key_segment.kind == KeySegmentKind::packed;
  const std::uint16_t* ordinals =
      is_packed && key_segment.num_groups > 1 ? ordinals_of(call, key_segment) : nullptr;
  const auto rank_at = [&](int place) -> std::uint64_t {
    const int key = storage.order[place];
    const std::uint32_t stored = storage.values[key];
    if (stored == 0 || place >= key_segment.num_keys) return 0;
    return is_packed
               ? packed_rank_of_ascending(ordinals == nullptr ? 1 : ordinals[key], stored - 1, key)
               : rank_of_ascending(stored - 1, key_segment.first_key + key);
  };
  std::uint64_t* run = call.runs + std::int64_t{index} * kKeySegmentSize;
  if (!is_packed && key_segment.num_keys == kKeySegmentSize) {
#pragma unroll 4
    for (int item = 0; item < kSortGroupItems; ++item) {
      const int place = sort_group.dealt(item);
      const int key = storage.order[place];
      const std::uint32_t stored = storage.values[key];
      const std::uint64_t rank = rank_of_ascending(stored - 1, key_segment.first_key + key);
      run[place] = stored == 0 ? 0 : rank;
    }
  } else {
#pragma unroll 2
    for (int item = 0; item < kSortGroupItems; ++item) {
      const int place = sort_group.dealt(item);
      if (place < key_segment.num_keys) run[place] = rank_at(place);
    }
  }
  static_assert(kSamples == kSortGroupThreads);
  if (call.samples != nullptr) {
    call.samples[std::int64_t{index} * kSamples + sort_group.thread] =
        rank_at(sample_place(sort_group.thread));
  }
  // The threshold of a group's first key segment is one of the key segment's own ranks.
  if (key_segment.num_before > 0 || sort_group.thread != 0) return;
  call.worst[index] = call.w <= kKeySegmentSize ? rank_at(static_cast<int>(call.w) - 1) : 0;
  if (call.ends != nullptr) {
    call.ends[std::int64_t{index} * call.most_parts] = static_cast<std::uint16_t>(call.w);
  }
}

}  // namespace fdma::zoh
