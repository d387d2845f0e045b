// Writes rows of gradients from accumulator registers to memory.
#pragma once

#include <cstdint>

#include "cuda/quad_transpose.cuh"
#include "cuda/rows_view.hpp"
#include "fdma/kernels/host_device.hpp"
#include "ptx/warpgroup.cuh"

namespace fdma::gpu {

/// Writes a thread's part of row i of its two rows (plan/thread_cells.hpp: accumulator_cell), times
/// `factor`. Columns [0, kDim) of `x` go to columns of `to` from first_column on, as far as they
/// are below `head_dim`. All lanes of a warp call it; `exists` is set for lanes whose row exists.
/// `at` is the element of first_column in the row.
template <class T, int kDim>
__device__ __forceinline__ void store_gradient_row(const RowsView& to, std::int64_t at, bool exists,
                                                   const float (&x)[kDim / 2], int i, float factor,
                                                   int first_column, int head_dim, int lane) {
  if (to.is_float32) {
    float* out = static_cast<float*>(to.data) + at + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      if (exists && first_column + 8 * j < head_dim) {
        *reinterpret_cast<float2*>(out + 8 * j) =
            make_float2(x[4 * j + 2 * i] * factor, x[4 * j + 2 * i + 1] * factor);
      }
    }
    return;
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
      *reinterpret_cast<uint4*>(out + 32 * m) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

/// Writes both rows of a thread, `row` and `row + 8`, as far as they are below `num_rows`.
/// `element` is row 0 of the tensor.
template <class T, int kDim>
__device__ __forceinline__ void store_gradient_rows(const RowsView& to, std::int64_t element,
                                                    const float (&x)[kDim / 2], float factor,
                                                    int row, int num_rows, int first_column,
                                                    int head_dim, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    store_gradient_row<T, kDim>(to, element + (row + 8 * i) * to.strides.row + first_column,
                                row + 8 * i < num_rows, x, i, factor, first_column, head_dim, lane);
  }
}

/// Offset of column `column` in an accumulator row of worklist keys. The four columns of two
/// products that a thread has of a row are consecutive (plan/thread_cells.hpp: accumulator_cell).
FDMA_HOST_DEVICE constexpr int worklist_accum_place(int column) {
  return column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2;
}

/// Delivers both rows of a thread over worklist keys. If a key has an accumulator row, they are
/// added to it without the factor; otherwise they are written. `keys` holds key and accum_row of
/// the two rows; `first_accum_row` is that of the work tile.
template <class T, int kDim>
__device__ __forceinline__ void set_worklist_rows(const RowsView& to, std::int64_t element,
                                                  float* sums, const float (&x)[kDim / 2],
                                                  float factor, const int2 (&keys)[2],
                                                  int first_accum_row, int head_dim, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool has_accum = first_accum_row >= 0 && keys[i].y >= 0, exists = keys[i].x >= 0;
    if (has_accum && exists) {
      float* out = sums + std::int64_t{first_accum_row + keys[i].y} * kDim +
                   worklist_accum_place(lane % 4 * 2);
#pragma unroll
      for (int j = 0; j < kDim / 16; ++j) {
        ptx::reduce_add_x4(out + 16 * j, x[8 * j + 2 * i], x[8 * j + 2 * i + 1],
                           x[8 * j + 4 + 2 * i], x[8 * j + 5 + 2 * i]);
      }
    }
    const bool is_written = exists && !has_accum;
    if (__any_sync(~0u, is_written)) {
      store_gradient_row<T, kDim>(to, element + max(keys[i].x, 0) * to.strides.row, is_written, x,
                                  i, factor, 0, head_dim, lane);
    }
  }
}

}  // namespace fdma::gpu
