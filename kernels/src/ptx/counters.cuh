// Counters in global memory by which blocks wait for one another, at device scope (PTX ISA: ld,
// red, fence).
#pragma once

#include <cstdint>

namespace fdma::ptx {

/// What was written before the release that wrote the value is visible after it.
__device__ __forceinline__ std::int32_t load_acquire(const std::int32_t* counter) {
  std::int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
__device__ __forceinline__ std::int32_t load_relaxed(const std::int32_t* counter) {
  std::int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

__device__ __forceinline__ void increment_release(std::int32_t* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void increment_relaxed(std::int32_t* counter) {
  asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

__device__ __forceinline__ void fence_acquire_release() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

}  // namespace fdma::ptx
