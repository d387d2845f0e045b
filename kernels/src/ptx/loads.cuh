// Loads from global memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fdma::ptx {

/// Returns the float at a global address, or `otherwise` if not `is_loaded`. The load bypasses L1.
__device__ __forceinline__ float load_if(bool is_loaded, const float* address, float otherwise) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %2, 0;\n"
      "@p ld.global.cg.f32 %0, [%1];\n"
      "}"
      : "+f"(otherwise)
      : "l"(address), "r"(static_cast<int>(is_loaded))
      : "memory");
  return otherwise;
}

/// Loads 16 bytes that are read once and that no kernel in flight writes. The rest of their 128
/// bytes comes to the L2 cache with them.
__device__ __forceinline__ uint4 load_streamed(const void* from) {
  uint4 raw;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(from));
  return raw;
}

}  // namespace fdma::ptx
