// Rows of gradients from accumulator registers to memory.
#pragma once

#include <cstdint>

#include "ptx/warpgroup.cuh"
#include "sm90/backward_params.hpp"

namespace fdma::sm90 {

/// Word i of lane t becomes word t of lane i, among the four lanes of a quad.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4], int lane) {
  const auto exchange = [&](std::uint32_t& low, std::uint32_t& high, int distance) {
    const bool is_high = (lane & distance) != 0;
    const std::uint32_t got = __shfl_xor_sync(~0u, is_high ? low : high, distance);
    (is_high ? low : high) = got;
  };
  exchange(words[0], words[1], 1);
  exchange(words[2], words[3], 1);
  exchange(words[0], words[2], 2);
  exchange(words[1], words[3], 2);
}

/// Writes a thread's part of its rows `row` and `row + 8` (fragment.hpp: accumulator_cell), times
/// `factor`: columns [0, kDim) of `x` to those of `to` from first_column on, as far as they are
/// below `head_dim` and rows below `num_rows`. All lanes of a warp. `to`: row 0 of the tensor.
template <class T, int kDim>
__device__ __forceinline__ void store_gradient_rows(const RowsView& to, std::int64_t element,
                                                    const float (&x)[kDim / 2], float factor,
                                                    int row, int num_rows, int first_column,
                                                    int head_dim, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool exists = row + 8 * i < num_rows;
    const std::int64_t at = element + (row + 8 * i) * to.row_stride + first_column;
    if (to.is_float32) {
      float* out = static_cast<float*>(to.data) + at + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        if (exists && first_column + 8 * j < head_dim) {
          *reinterpret_cast<float2*>(out + 8 * j) =
              make_float2(x[4 * j + 2 * i] * factor, x[4 * j + 2 * i + 1] * factor);
        }
      }
      continue;
    }
    T* out = static_cast<T*>(to.data) + at + lane % 4 * 8;
#pragma unroll
    for (int m = 0; m < kDim / 32; ++m) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int reg = 4 * (4 * m + j) + 2 * i;
        words[j] = ptx::pack<T>(x[reg] * factor, x[reg + 1] * factor);
      }
      transpose_in_quad(words, lane);
      if (exists && first_column + 32 * m + lane % 4 * 8 < head_dim) {
        *reinterpret_cast<uint4*>(out + 32 * m) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

}  // namespace fdma::sm90
