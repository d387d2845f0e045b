// The low half of a float: the rounding error of its 16-bit value, as 16 bits. Both halves together
// represent about 16 bits of the float's mantissa.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ptx/warpgroup.cuh"

namespace fdma::gpu {

/// Unpacks two elements that ptx::pack has packed: .x is the low half.
template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t packed);
template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(std::uint32_t packed) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&packed));
}
template <>
__device__ __forceinline__ float2 unpack<__half>(std::uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

/// The rounding errors of ptx::pack<T>(low, high), packed in the same order.
template <class T>
__device__ __forceinline__ std::uint32_t pack_out_low(float low, float high) {
  const float2 rounded = unpack<T>(ptx::pack<T>(low, high));
  return ptx::pack<T>(low - rounded.x, high - rounded.y);
}

}  // namespace fdma::gpu
