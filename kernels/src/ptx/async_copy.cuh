// Copies of 16 bytes from global to shared memory by threads (PTX ISA: cp.async), one instruction
// per function. They are writes of the generic proxy: before others read them by wgmma, a thread
// waits for its own and fences (warpgroup.cuh: fence_async_shared).
#pragma once

#include <cstdint>

namespace fdma::ptx {

/// `num_bytes` (16 or 0) bytes from global memory, zeros up to 16; both addresses 16-aligned.
__device__ __forceinline__ void copy_16_async(std::uint32_t to, const void* from,
                                              std::uint32_t num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(num_bytes)
               : "memory");
}

/// Ends the group of this thread's copies so far.
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Until at most kPending groups of this thread have not landed.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fdma::ptx
