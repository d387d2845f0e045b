// Two kernels, each of which walks the elements of a strided tensor. A block has rows of the last
// axis, whose elements are neighbours.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/cuda_error.hpp"
#include "cuda/pair_gradients.hpp"

namespace fdma::gpu {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 132 * 16;

/// A tensor as rows of its last axis.
struct GradientRows {
  void* data;
  std::int64_t extents[3], strides[3];  ///< of the axes before the last one
  std::int64_t num_columns;

  __host__ __device__ std::int64_t num_rows() const { return extents[0] * extents[1] * extents[2]; }
  __device__ std::int64_t offset(std::int64_t row) const {
    const std::int64_t last = row % extents[2], before = row / extents[2];
    return before / extents[1] * strides[0] + before % extents[1] * strides[1] + last * strides[2];
  }
};

GradientRows rows_of(const MutableTensorView& tensor) {
  GradientRows rows{tensor.data, {1, 1, 1}, {0, 0, 0}, 1};
  rows.num_columns = tensor.extents[static_cast<std::size_t>(tensor.rank - 1)];
  for (int axis = tensor.rank - 2, to = 2; axis >= 0; --axis, --to) {
    rows.extents[to] = tensor.extents[static_cast<std::size_t>(axis)];
    rows.strides[to] = tensor.strides[static_cast<std::size_t>(axis)];
  }
  return rows;
}

/// `from`: float32, contiguous; or null: zeros.
template <class T>
__global__ void __launch_bounds__(kThreads)
    store_rows_kernel(const GradientRows rows, const float* from) {
  for (std::int64_t row = blockIdx.x; row < rows.num_rows(); row += gridDim.x) {
    T* const to = static_cast<T*>(rows.data) + rows.offset(row);
    for (std::int64_t i = threadIdx.x; i < rows.num_columns; i += kThreads) {
      to[i] = static_cast<T>(from == nullptr ? 0.0f : from[row * rows.num_columns + i]);
    }
  }
}

cudaError_t store_rows(const MutableTensorView& gradient, const float* from, cudaStream_t stream) {
  const GradientRows rows = rows_of(gradient);
  const auto num_blocks = static_cast<unsigned>(std::min(rows.num_rows(), kMostBlocks));
  if (num_blocks == 0 || rows.num_columns == 0) return cudaSuccess;
  if (gradient.dtype == DType::float32) {
    store_rows_kernel<float><<<num_blocks, kThreads, 0, stream>>>(rows, from);
  } else if (gradient.dtype == DType::bfloat16) {
    store_rows_kernel<__nv_bfloat16><<<num_blocks, kThreads, 0, stream>>>(rows, from);
  } else {
    store_rows_kernel<__half><<<num_blocks, kThreads, 0, stream>>>(rows, from);
  }
  return cudaGetLastError();
}

std::size_t bytes_of(const MutableTensorView& tensor) {
  std::int64_t size = size_bytes(tensor.dtype);
  for (int axis = 0; axis < tensor.rank; ++axis) {
    size *= tensor.extents[static_cast<std::size_t>(axis)];
  }
  return static_cast<std::size_t>(size);
}

}  // namespace

cudaError_t zero_gradient(const MutableTensorView& gradient, cudaStream_t stream) {
  if (gradient.view().is_contiguous()) {
    return cudaMemsetAsync(gradient.data, 0, bytes_of(gradient), stream);
  }
  return store_rows(gradient, nullptr, stream);
}

GradientSums::~GradientSums() {
  if (is_allocated()) cudaFreeAsync(sums_.data, stream_);
}

Result<void> GradientSums::allocate(const MutableTensorView& gradient, cudaStream_t stream) {
  MutableTensorView sums =
      make_contiguous_mutable_view(nullptr, DType::float32, gradient.rank, gradient.extents.data());
  sums.device = gradient.device;
  const std::size_t bytes = bytes_of(sums);
  if (bytes == 0) return {};
  FDMA_TRY_VOID(check_cuda(cudaMallocAsync(&sums.data, bytes, stream),
                           "memory for the sums of a gradient of 16 bits"));
  gradient_ = gradient;
  sums_ = sums;
  stream_ = stream;
  return check_cuda(cudaMemsetAsync(sums.data, 0, bytes, stream), "cudaMemsetAsync");
}

cudaError_t GradientSums::store() const {
  return store_rows(gradient_, static_cast<const float*>(sums_.data), stream_);
}

}  // namespace fdma::gpu
