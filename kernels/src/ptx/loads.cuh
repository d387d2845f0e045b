// Loads from global memory.
#pragma once

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

}  // namespace fdma::ptx
