// What rounding to 16 bits takes from a float, as 16 bits: with the rounded value it tells some 16
// bits of the float's mantissa.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ptx/warpgroup.cuh"

namespace fdma::sm90 {

/// The elements that ptx::pack has packed: .x from the low half.
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

/// What ptx::pack<T>(low, high) takes from the two, packed as they are.
template <class T>
__device__ __forceinline__ std::uint32_t pack_residual(float low, float high) {
  const float2 rounded = unpack<T>(ptx::pack<T>(low, high));
  return ptx::pack<T>(low - rounded.x, high - rounded.y);
}

}  // namespace fdma::sm90
