// How dQ of a step comes to memory, where it is added to what other blocks have added.
//
// Up to 128 columns (kAddsInBulk) the warps that compute put it into shared memory and the copy
// engine adds it: of an ordinary call as soon as a warp has written its part, in no fixed order.
//
// Deterministic calls add in the order of the plan (visit_order.hpp): a counter for each 64 rows
// says how many units have added. The serving warp waits for the unit's turn, adds the step as a
// whole and passes the turn on, while the next step is computed: nobody who computes waits until
// an addition is visible, and for turns only where they come a step late.
#pragma once

#include <cstdint>

#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward_params.hpp"
#include "sm90/backward_ring.cuh"
#include "sm90/mask_words.cuh"

namespace fdma::sm90 {

/// How many have added. What they added is visible then.
__device__ __forceinline__ std::int32_t read_turn(const std::int32_t* turns) {
  std::int32_t turn;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(turn) : "l"(turns) : "memory");
  return turn;
}

/// Says that one more has added; its additions are visible to whoever reads it.
__device__ __forceinline__ void pass_turn(std::int32_t* turns) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turns) : "memory");
}

/// A warp's part of dQ of a step, registers of an accumulator, to its place in shared memory.
template <int kCount>
__device__ __forceinline__ void put_sums(std::uint32_t to, const float (&dq)[kCount], int lane) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    asm volatile(
        "st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * (kSumLanes * 4) + lane * 16),
        "f"(dq[4 * i]), "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
        : "memory");
  }
  ptx::fence_async_shared();
  __syncwarp();
}

/// Adds dQ of a block's steps to memory in turn. One lane of the serving warp works. From one
/// object to the next what it knows is in shared memory (kTaken).
template <class Layout>
class TurnTaker {
 public:
  __device__ __forceinline__ TurnTaker(const BackwardParams& params, std::uint32_t base)
      : p_(params), base_(base) {
    const int2 state = load_words2(base_ + Layout::kTaken);
    num_taken_ = state.x;
    is_turn_ = state.y != 0;
  }
  /// To be called before the next object is made.
  __device__ __forceinline__ void put_aside(int lane) const {
    __syncwarp();  // all have read what it was
    if (lane == 0) store_words2(base_ + Layout::kTaken, num_taken_, is_turn_ ? 1 : 0);
    __syncwarp();
  }

  /// Does what can be done without a long wait; false after the last step. All lanes.
  __device__ __forceinline__ bool advance(int lane) {
    bool goes_on = true;
    if (lane == 0) goes_on = take();
    return __shfl_sync(~0u, goes_on, 0);
  }

 private:
  __device__ __forceinline__ bool take() {
    if (!is_known(num_taken_)) return true;
    const int2 step = step_at(num_taken_);
    const int sum_tile = step.x;
    if (sum_tile == kNoTurn) return false;
    is_turn_ = is_turn_ || is_turn(step);
    if (!is_turn_ || !ptx::mbarrier_try_wait(base_ + Layout::kSumsFull, num_taken_ & 1)) {
      return true;
    }
    ptx::bulk_reduce_add(p_.places.dq_sums + std::int64_t{sum_tile} * (kSumRows * Layout::kDimQk),
                         base_ + Layout::kSums, Layout::kSumBytes);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(base_ + Layout::kSumsEmpty);
    ++num_taken_;
    // Whose turn it is at the next step is read while this one is added.
    is_turn_ = false;
    if (is_known(num_taken_)) {
      const int2 next = step_at(num_taken_);
      is_turn_ = next.x != kNoTurn && is_turn(next);
    }
    ptx::bulk_wait<0>();
    pass_turn(turns(sum_tile));
    return true;
  }

  /// Whether the loading thread has told of a step, and what; not written again before the step is
  /// taken.
  __device__ __forceinline__ bool is_known(int number) const {
    return ptx::mbarrier_test(base_ + Layout::kTurnsFull + 8 * (number % Layout::kTurnSlots),
                              number / Layout::kTurnSlots & 1);
  }
  __device__ __forceinline__ int2 step_at(int number) const {
    return load_words2(base_ + Layout::kTurns +
                       number % Layout::kTurnSlots * static_cast<int>(sizeof(StepTurn)));
  }
  __device__ __forceinline__ bool is_turn(const int2& step) const {
    return read_turn(turns(step.x)) == step.y;
  }
  __device__ __forceinline__ std::int32_t* turns(int sum_tile) const {
    return p_.turns + 2 * std::int64_t{sum_tile};
  }

  const BackwardParams& p_;
  const std::uint32_t base_;
  int num_taken_;
  bool is_turn_;  // of the next step
};

}  // namespace fdma::sm90
