// Barriers in shared memory that count arrivals and bytes (PTX ISA: mbarrier), one instruction per
// function. A barrier has phases, which alternate in parity. A wait names the parity of the phase
// that must have ended.
#pragma once

#include <cstdint>
#include <cstdio>

namespace fdma::ptx {

/// The 32-bit shared address of a pointer to shared memory.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Called by one thread before use. mbarrier_init_fence and a barrier of the block follow.
__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t num_insertions) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_insertions)
               : "memory");
}

/// Makes initialised barriers visible to TMA.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives `count` times.
__device__ __forceinline__ void mbarrier_arrive_times(std::uint32_t barrier, std::uint32_t count) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count)
               : "memory");
}

/// A warp arrives for what all its lanes did: each lane calls this after __syncwarp, lane 0
/// arrives, and the barrier counts kWarpInsertions. Racecheck does not follow an order that lanes
/// establish by __syncwarp through the arrival of another lane. With FDMA_EVERY_LANE_ARRIVES each
/// lane arrives for itself, which is slower and, apart from the counts, the same.
#ifdef FDMA_EVERY_LANE_ARRIVES
inline constexpr std::uint32_t kWarpInsertions = 32;
__device__ __forceinline__ void mbarrier_arrive_warp(std::uint32_t barrier, int) {
  mbarrier_arrive(barrier);
}
#else
inline constexpr std::uint32_t kWarpInsertions = 1;
__device__ __forceinline__ void mbarrier_arrive_warp(std::uint32_t barrier, int lane) {
  if (lane == 0) mbarrier_arrive(barrier);
}
#endif

/// Arrives and announces `bytes` that asynchronous copies will deliver in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t is_done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(is_done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_done != 0;
}

/// Returns whether the phase of this parity has ended. It returns at once, whereas
/// mbarrier_try_wait may suspend the thread for a while.
__device__ __forceinline__ bool mbarrier_test(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t is_done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(is_done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_done != 0;
}

/// Waits until the phase of this parity has ended. With FDMA_BOUNDED_WAITS a wait of more than a
/// second prints its role and barrier, and traps. Such a build must not be timed, because the
/// printf serialises wgmma.
__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity,
                                              [[maybe_unused]] const char* role) {
#ifdef FDMA_BOUNDED_WAITS
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  while (!mbarrier_try_wait(barrier, parity)) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - begin > 1000000000ull) {
      printf("stuck: %s, block %d thread %d, barrier at shared address %u, parity %u\n", role,
             static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x), barrier, parity);
      asm volatile("trap;");
    }
  }
#else
  while (!mbarrier_try_wait(barrier, parity)) {
  }
#endif
}

/// Stage and phase of a ring of buffers, as producer and consumer count them. A producer waits for
/// "empty" with parity phase ^ 1 (true at once in the first round), a consumer for "full" with
/// phase.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace fdma::ptx
