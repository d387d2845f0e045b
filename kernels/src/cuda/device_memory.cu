// GpuMemory by the CUDA runtime. Allocation and release also work while another stream of the
// process is captured (RelaxedCapture).
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "cuda/gpu_memory.hpp"
#include "cuda/relaxed_capture.hpp"

namespace fdma {
namespace {

using gpu::check_cuda;

__global__ void fill_kernel(float* data, float value, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    data[i] = value;
  }
}

Result<void> copy(void* to, const void* from, std::int64_t size_bytes, cudaMemcpyKind kind,
                  Stream stream) {
  return check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(size_bytes), kind, stream),
                    "cudaMemcpyAsync");
}

class CudaMemory final : public GpuMemory {
 public:
  Result<void*> allocate(std::int64_t size_bytes) const override {
    void* data = nullptr;
    const RelaxedCapture relaxed;
    // At least one byte, so that an empty allocation has an address of its own.
    const cudaError_t error =
        cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(size_bytes, 1)));
    if (error == cudaSuccess) return data;
    cudaGetLastError();  // the error is reported here, so the next call must not see it
    return Error{
        error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory
        : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver
            ? ErrorCode::unsupported
            : ErrorCode::cuda,
        "device memory: " + std::to_string(size_bytes) + " bytes: " + cudaGetErrorString(error)};
  }

  void free(void* data) const noexcept override {
    const RelaxedCapture relaxed;
    cudaFree(data);
  }

  Result<void> copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                              Stream stream) const override {
    return copy(device, host, size_bytes, cudaMemcpyHostToDevice, stream);
  }

  Result<void> copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                            Stream stream) const override {
    return copy(host, device, size_bytes, cudaMemcpyDeviceToHost, stream);
  }

  Result<void> copy_rows_to_host(void* host, const void* device, std::int64_t stride_bytes,
                                 std::int64_t row_bytes, std::int64_t num_rows,
                                 Stream stream) const override {
    return check_cuda(
        cudaMemcpy2DAsync(host, static_cast<std::size_t>(row_bytes), device,
                          static_cast<std::size_t>(stride_bytes),
                          static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(num_rows),
                          cudaMemcpyDeviceToHost, stream),
        "cudaMemcpy2DAsync");
  }

  Result<void> copy_on_device(void* to, const void* from, std::int64_t size_bytes,
                              Stream stream) const override {
    return copy(to, from, size_bytes, cudaMemcpyDeviceToDevice, stream);
  }

  Result<void> fill_with_zeros(void* device, std::int64_t size_bytes,
                               Stream stream) const override {
    return check_cuda(cudaMemsetAsync(device, 0, static_cast<std::size_t>(size_bytes), stream),
                      "cudaMemsetAsync");
  }

  Result<void> fill_with(float* device, float value, std::int64_t count,
                         Stream stream) const override {
    constexpr std::int64_t kThreads = 256, kMaxBlocks = 1024;
    if (count <= 0) return {};
    const std::int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMaxBlocks);
    fill_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(device, value, count);
    return check_cuda(cudaGetLastError(), "fill_with");
  }
};

}  // namespace

const GpuMemory& with_cuda::memory() {
  static const CudaMemory memory;
  return memory;
}

}  // namespace fdma
