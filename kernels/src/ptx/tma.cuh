// Tensor copies by the tensor memory accelerator (TMA) and bulk asynchronous copies, one
// instruction per function (PTX ISA: cp.async.bulk). Shared addresses are 32-bit and 128-aligned
// (1024-aligned for swizzled tiles). Sizes and addresses of bulk copies are multiples of 16 bytes.
#pragma once

#include <cstdint>

namespace fdma::ptx {

/// L2 policies of loads.
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr std::uint64_t kEvictLast = 0x14F0000000000000ull;

/// Copies the box of a 5-dimensional tensor map at these coordinates to shared memory. Its bytes
/// complete on `barrier`. Elements outside the tensor are filled with 0.
__device__ __forceinline__ void tma_load_5d(std::uint32_t to, const void* map,
                                            std::uint32_t barrier, int c0, int c1, int c2, int c3,
                                            int c4, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_"
      "hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}

/// Copies shared memory to a box of the tensor, as part of the current bulk group. Elements outside
/// the tensor are not written.
__device__ __forceinline__ void tma_store_5d(const void* map, std::uint32_t from, int c0, int c1,
                                             int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], "
      "[%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void bulk_store(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

/// Adds float32 elements in shared memory to those in global memory.
__device__ __forceinline__ void bulk_reduce_add(float* to, std::uint32_t from,
                                                std::uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}

/// Closes the group of this thread's stores and reductions so far.
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until at most kPending groups have not yet read their shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until at most kPending groups are not complete, writes included.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fdma::ptx
