// Rows of values read 16 bytes at a time: whether that is possible, and the conversion of 16 bytes
// to float32.
#pragma once

#include "selection/scores/call.cuh"

namespace fdma::zoh {

/// The elements of 16 bytes as float32, and back, rounded to nearest even.
template <class T>
struct Chunk;
template <>
struct Chunk<float> {
  static constexpr int kSize = 4;
  static __device__ void widen(const uint4& raw, float (&x)[kSize]) {
    x[0] = __uint_as_float(raw.x);
    x[1] = __uint_as_float(raw.y);
    x[2] = __uint_as_float(raw.z);
    x[3] = __uint_as_float(raw.w);
  }
  static __device__ uint4 narrow(const float (&x)[kSize]) {
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                      __float_as_uint(x[3]));
  }
};
template <>
struct Chunk<__nv_bfloat16> {
  static constexpr int kSize = 8;
  static __device__ void widen(const uint4& raw, float (&x)[kSize]) {
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    }
  }
  static __device__ uint4 narrow(const float (&x)[kSize]) {
    const auto pair = [&](int i) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(x[i], x[i + 1]);
      return *reinterpret_cast<const std::uint32_t*>(&both);
    };
    return make_uint4(pair(0), pair(2), pair(4), pair(6));
  }
};
template <>
struct Chunk<__half> {
  static constexpr int kSize = 8;
  static __device__ void widen(const uint4& raw, float (&x)[kSize]) {
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      x[2 * i] = both.x;
      x[2 * i + 1] = both.y;
    }
  }
  static __device__ uint4 narrow(const float (&x)[kSize]) {
    const auto pair = [&](int i) {
      const __half2 both = __floats2half2_rn(x[i], x[i + 1]);
      return *reinterpret_cast<const std::uint32_t*>(&both);
    };
    return make_uint4(pair(0), pair(2), pair(4), pair(6));
  }
};

inline bool is_multiple_of_16(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

/// True if rows of `values` can be read 16 bytes at a time.
inline bool has_wide_rows(const DeviceScoresCall& call) {
  const std::int64_t size = size_bytes(call.values.dtype);
  return is_multiple_of_16(call.values.data) && call.head_dim * size % 16 == 0 &&
         call.batch_stride * size % 16 == 0 && call.key_stride * size % 16 == 0 &&
         call.head_stride * size % 16 == 0;
}

}  // namespace fdma::zoh
