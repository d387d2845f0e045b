// Asynchronous copies of 16 bytes from global to shared memory by threads (PTX ISA: cp.async), one
// instruction per function. They are writes of the generic proxy. Before wgmma of another thread
// reads the data, the copying thread waits for its own copies and fences (warpgroup.cuh:
// fence_async_shared).
#pragma once

#include <cstdint>

namespace fdma::ptx {

/// Copies `num_bytes` (16 or 0) bytes from global memory and fills the rest of the 16 bytes with
/// zeros. Both addresses are 16-aligned.
__device__ __forceinline__ void copy_16_async(std::uint32_t to, const void* from,
                                              std::uint32_t num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(num_bytes)
               : "memory");
}

/// Closes the group of this thread's copies so far.
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending groups of this thread have not landed.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fdma::ptx
