// Blocks of a cluster and each other's shared memory, one instruction per function (PTX ISA:
// barrier.cluster, mapa, st.async).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fdma::ptx {

__device__ __forceinline__ int cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

/// All threads of the cluster: what they wrote before is seen behind cluster_wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Where the block of a rank has what is at a shared address here.
__device__ __forceinline__ std::uint32_t address_of_rank(std::uint32_t address, int rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
/// Stores there and counts the bytes on a barrier of the same block, whose phase thus ends when all
/// have come; nothing else is waited for, as a barrier of the cluster does for stores to global
/// memory.
__device__ __forceinline__ void store_there(std::uint32_t address, std::uint32_t x,
                                            std::uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address),
      "r"(x), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_there(std::uint32_t address, float4 x,
                                            std::uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}

}  // namespace fdma::ptx
