// Matrix products of a warp (PTX ISA: mma.sync), one instruction per function: sum[16, 8] (float32)
// += A[16, k] * B[k, 8], where k is 16 for elements of 16 bits and 8 for TF32. Words of A and B are
// the lane's fragments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fdma::ptx {

/// mma<T>(sum, a0, .., a3, b0, b1); T is float for TF32.
template <class T>
__device__ __forceinline__ void mma(float (&sum)[4], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                    std::uint32_t b1);

#define FDMA_MMA(T, SHAPE)                                                                     \
  template <>                                                                                  \
  __device__ __forceinline__ void mma<T>(float(&sum)[4], std::uint32_t a0, std::uint32_t a1,   \
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, \
                                         std::uint32_t b1) {                                   \
    asm("mma.sync.aligned." SHAPE                                                              \
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                     \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                               \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                               \
  }
FDMA_MMA(__nv_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32")
FDMA_MMA(__half, "m16n8k16.row.col.f32.f16.f16.f32")
FDMA_MMA(float, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef FDMA_MMA

}  // namespace fdma::ptx
