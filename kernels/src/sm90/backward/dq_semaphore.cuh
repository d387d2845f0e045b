// The dQ semaphore: how dQ of a step is added in memory to what other blocks have added. The
// computing warps and the helper warp of the backward kernel use it.
//
// Up to 128 columns (kAddsInBulk) the computing warps put dQ into shared memory, and a bulk
// reduction adds it. In ordinary calls a warp adds its part as soon as it has written it, in no
// fixed order.
//
// Deterministic calls add in the accumulation order of the plan (accumulation_order.hpp). A counter for
// each 64 rows says how many tile groups have added. The helper warp waits until the counter
// reaches the tile group's position, adds the step as a whole and increments the counter, while the
// next step is computed. The computing warps never wait until an addition is visible, and they wait
// for the order only if it lags a step behind. Other blocks wait for what the helper warp does
// between an addition and the increment. That is one fence, and nothing that can be read meanwhile.
// Half a query tile that no key of the tile group sees has a place in the order but no step, if the
// other half is seen.
#pragma once

#include <cstdint>

#include "cuda/mask_fragments.cuh"
#include "ptx/addresses.cuh"
#include "ptx/counters.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/relaxed.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward/params.hpp"
#include "sm90/backward/ring.cuh"

namespace fdma::sm90 {

/// Reads how many tile groups have added (acquire). Their additions are visible after it.
__device__ __forceinline__ std::int32_t read_dq_semaphore(const std::int32_t* dq_semaphores) {
  return ptx::load_acquire(dq_semaphores);
}
/// The same, but their additions are visible only after a fence_dq_semaphore.
__device__ __forceinline__ std::int32_t read_dq_semaphore_early(const std::int32_t* dq_semaphores) {
  return ptx::load_relaxed(dq_semaphores);
}

/// Increments the counter (release). The additions before it are visible to whoever reads it.
__device__ __forceinline__ void advance_dq_semaphore(std::int32_t* dq_semaphores) {
  ptx::increment_release(dq_semaphores);
}
/// The same, relaxed. It may be used if the additions came before a fence_dq_semaphore. It may also
/// be used by a tile group that adds nothing and has read that its position is reached: this
/// reduction reads and writes, so it carries on the releases before it.
__device__ __forceinline__ void advance_dq_semaphore_late(std::int32_t* dq_semaphores) {
  ptx::increment_relaxed(dq_semaphores);
}

/// One fence that completes the acquire of a counter read before it and begins the release of one
/// incremented after it. Whoever waits for the counter waits for this fence.
__device__ __forceinline__ void fence_dq_semaphore() { ptx::fence_acquire_release(); }

/// The slot of step `number`, counted from 0, in which the loading thread tells the helper warp of
/// it; and the step's kDqSemaphoreLap.
template <class Layout>
__device__ __forceinline__ std::uint32_t dq_position_slot(std::uint32_t base,
                                                          std::uint32_t number) {
  return base + Layout::kDqPositions + 8 * (number % Layout::kDqPositionSlots);
}
template <class Layout>
__device__ __forceinline__ std::uint32_t dq_semaphore_lap(std::uint32_t number) {
  return (number / Layout::kDqPositionSlots & 1) == 0 ? kDqSemaphoreLap : 0;
}

/// Stores a warp's part of dQ of a step from accumulator registers to shared memory.
template <int kCount>
__device__ __forceinline__ void put_accum(std::uint32_t to, const float (&dq)[kCount], int lane) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    ptx::store_floats(to + i * (kSumLanes * 4) + lane * 16, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2],
                      dq[4 * i + 3]);
  }
  ptx::fence_async_shared();
  __syncwarp();
}

/// Adds dQ of a block's steps to memory in accumulation order. One lane of the helper warp works.
/// Between two objects the state is kept in shared memory (kTaken).
template <class Layout>
class DqSemaphoreWaiter {
 public:
  __device__ __forceinline__ DqSemaphoreWaiter(const BackwardParams& params, std::uint32_t base)
      : p_(params), base_(base) {
    const int2 state = load_words2(base_ + Layout::kTaken);
    num_taken_ = static_cast<std::uint32_t>(state.x);
    is_dq_position_ = (state.y & 1) != 0;
    accum_phase_ = static_cast<std::uint32_t>(state.y) >> 1;
    step_ = load_step();
  }
  /// Called before the next object is made.
  __device__ __forceinline__ void put_aside(int lane) const {
    __syncwarp();  // all have read the old state
    if (lane == 0) {
      store_words2(base_ + Layout::kTaken, static_cast<int>(num_taken_),
                   static_cast<int>(accum_phase_ << 1) | (is_dq_position_ ? 1 : 0));
    }
    __syncwarp();
  }

  /// Does what can be done without a long wait; returns false after the last step. All lanes call
  /// it.
  __device__ __forceinline__ bool advance(int lane) {
    bool goes_on = true;
    if (lane == 0) goes_on = take();
    return __shfl_sync(~0u, goes_on, 0);
  }

 private:
  __device__ __forceinline__ bool take() {
    if (!is_known()) {
      step_ = load_step();
      if (!is_known()) return true;
    }
    const int sum_tile = sum_tile_of_step();
    if (sum_tile == kNoDqPosition) return false;
    is_dq_position_ =
        is_dq_position_ || read_dq_semaphore(dq_semaphores(sum_tile)) == rank_of_step();
    if (!is_dq_position_) return true;
    if ((step_.y & kDqStepIsEmpty) != 0) {
      advance_dq_semaphore_late(dq_semaphores(sum_tile));
      go_on();
      return true;
    }
    if (!ptx::mbarrier_try_wait(base_ + Layout::kDqAccumFull, accum_phase_)) return true;
    ptx::bulk_reduce_add(p_.places.dq_accum + std::int64_t{sum_tile} * (kSumRows * Layout::kDimQk),
                         base_ + Layout::kDqAccum, Layout::kDqAccumBytes);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(base_ + Layout::kDqAccumEmpty);
    accum_phase_ ^= 1;
    go_on();
    // The counter of the next step is read while this step is added.
    std::int32_t dq_position = 0;
    const bool is_next_known = is_known() && sum_tile_of_step() != kNoDqPosition;
    if (is_next_known) dq_position = read_dq_semaphore_early(dq_semaphores(sum_tile_of_step()));
    ptx::bulk_wait<0>();
    fence_dq_semaphore();
    advance_dq_semaphore_late(dq_semaphores(sum_tile));
    is_dq_position_ = is_next_known && dq_position == rank_of_step();
    return true;
  }

  /// The next step, as far as the loading thread has stored it.
  __device__ __forceinline__ uint2 load_step() const {
    return ptx::load_shared_relaxed(dq_position_slot<Layout>(base_, num_taken_));
  }
  __device__ __forceinline__ void go_on() {
    ++num_taken_;
    is_dq_position_ = false;
    step_ = load_step();
  }
  __device__ __forceinline__ bool is_known() const {
    return (step_.y & kDqSemaphoreLap) == dq_semaphore_lap<Layout>(num_taken_);
  }
  __device__ __forceinline__ int sum_tile_of_step() const { return static_cast<int>(step_.x); }
  __device__ __forceinline__ int rank_of_step() const {
    return static_cast<int>(step_.y & ~(kDqSemaphoreLap | kDqStepIsEmpty));
  }
  __device__ __forceinline__ std::int32_t* dq_semaphores(int sum_tile) const {
    return p_.dq_semaphores + 2 * std::int64_t{sum_tile};
  }

  const BackwardParams& p_;
  const std::uint32_t base_;
  std::uint32_t num_taken_;
  uint2 step_;                 // the next one
  std::uint32_t accum_phase_;  // of the step's dQ
  bool is_dq_position_;        // the position of the step is reached
};

}  // namespace fdma::sm90
