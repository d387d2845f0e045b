// Determines which insertions of a key segment are accepted, and by that when the evicted keys are
// evicted (select_topk.cu). One block runs it.
//
// While every arriving key is kept, each insertion evicts the worst key that is kept at that time,
// and the evicted keys become better and better: the i-th worst evicted key is evicted by the i-th
// insertion. Sorting by rank is then enough, and no search is needed. Some insertions come too
// late, when w better keys are there. They evict nothing, and both sequences of the rule must leave
// them out.
//
// The rule itself finds them. Under the rule, with the keys known so far left out, such a key would
// be evicted before it arrives, or by its own insertion. A rule that counts too many insertions,
// and equally many evictions, names an insertion that is not earlier than the true one. A key that
// must not be evicted yet is therefore never rejected, and when nothing is left to reject the rule
// holds for every insertion.
//
// Example     1 and 5 are kept, and 7, 6, 2, 8 arrive. The evicted keys are 1, 2, 5, 6; by the rule
//             with insertions 0, 1, 2, 3, key 2 (insertion 2) is evicted too early, so it is
//             rejected. Now 1, 5, 6 are evicted by insertions 0, 1 and 3
// Cost        each round but the last rejects at least one, and in practice about half of what is
//             left: normally distributed scores take 2 to 4 rounds, and no order that was tried
//             took more than 12. Among all orders of few insertions the first to take 2, 3, 4 and 5
//             rounds have 2, 3, 5 and 8 of them; if that continues, 2,048 insertions take 16 at
//             worst
#pragma once

#include <cstdint>

#include "ptx/warp_sums.cuh"
#include "selection/topk/ranking.hpp"

namespace fdma::zoh {

struct InsertionStorage {
  static constexpr int kWords = kKeySegmentSize / 32;

  std::uint32_t is_accepted[kWords];  ///< by index in the key segment
  /// By place among all keys evicted in the key segment, the best first
  std::uint32_t is_rejected[kWords];
  std::uint32_t accepted_before[kWords];
  /// is_rejected at the time of numbering, and the number of ones before
  uint2 rejected[kWords];
  std::uint16_t locals[kKeySegmentSize];  ///< indices in the key segment of the accepted insertions
  int num_accepted;
};

/// Sums of ones before each of 64 words, two per lane; returns the total. One warp.
__device__ __forceinline__ int sum_ones(const std::uint32_t (&words)[2], std::uint32_t (&before)[2],
                                        int lane) {
  const int first = __popc(words[0]), both = first + __popc(words[1]);
  const int sum = ptx::sum_up_to(both, lane);
  before[0] = static_cast<std::uint32_t>(sum - both);
  before[1] = static_cast<std::uint32_t>(sum - both + first);
  return __shfl_sync(0xFFFFFFFFu, sum, 31);
}

/// Numbers accepted insertions in the order of their insertions. All kThreads threads of the block
/// call it, after a barrier that follows the change of the bits.
template <int kThreads>
__device__ __forceinline__ void number_accepted(InsertionStorage& storage) {
  static_assert(InsertionStorage::kWords == 64);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  std::uint32_t words[2], before[2];
  if (thread < 32) {
    words[0] = storage.is_accepted[2 * lane];
    words[1] = storage.is_accepted[2 * lane + 1];
    const int sum = sum_ones(words, before, lane);
    storage.accepted_before[2 * lane] = before[0];
    storage.accepted_before[2 * lane + 1] = before[1];
    if (lane == 0) storage.num_accepted = sum;
  } else if (thread < 64) {
    words[0] = storage.is_rejected[2 * lane];
    words[1] = storage.is_rejected[2 * lane + 1];
    sum_ones(words, before, lane);
    storage.rejected[2 * lane] = make_uint2(words[0], before[0]);
    storage.rejected[2 * lane + 1] = make_uint2(words[1], before[1]);
  }
  __syncthreads();
#pragma unroll
  for (int local = thread; local < kKeySegmentSize; local += kThreads) {
    const std::uint32_t word = storage.is_accepted[local / 32];
    if ((word >> lane & 1) != 0) {
      storage.locals[storage.accepted_before[local / 32] + __popc(word & ((1u << lane) - 1))] =
          static_cast<std::uint16_t>(local);
    }
  }
  __syncthreads();
}

/// The index in the key segment of the insertion that evicts a key, where the key is the place-th
/// best (from 0) of those evicted in the key segment.
__device__ __forceinline__ int eviction_of(const InsertionStorage& storage, int place) {
  const uint2 rejected = storage.rejected[place / 32];
  const int above = static_cast<int>(rejected.y) + __popc(rejected.x & ((1u << place % 32) - 1));
  return storage.locals[storage.num_accepted - 1 - (place - above)];
}

}  // namespace fdma::zoh
