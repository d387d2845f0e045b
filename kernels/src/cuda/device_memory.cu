// Device memory of the CUDA runtime: allocation, copies and fills. Allocation and release also work
// while another stream of the process is captured (RelaxedCapture).
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/cuda_error.hpp"
#include "cuda/relaxed_capture.hpp"
#include "fdma/kernels/device_memory.hpp"

namespace fdma {
namespace {

using sm90::check_cuda;

__global__ void fill_kernel(float* data, float value, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    data[i] = value;
  }
}

}  // namespace

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

DeviceMemory::~DeviceMemory() { free_device_memory(data_); }

void* DeviceMemory::release() {
  size_bytes_ = 0;
  return std::exchange(data_, nullptr);
}

void free_device_memory(void* data) noexcept {
  if (data == nullptr) return;
  const RelaxedCapture relaxed;
  cudaFree(data);
}

Result<DeviceMemory> DeviceMemory::allocate(std::int64_t size_bytes) {
  DeviceMemory memory;
  const RelaxedCapture relaxed;
  // At least one byte, so that an empty allocation has an address of its own.
  const cudaError_t error =
      cudaMalloc(&memory.data_, static_cast<std::size_t>(std::max<std::int64_t>(size_bytes, 1)));
  if (error != cudaSuccess) {
    cudaGetLastError();  // the error is reported here, so the next call must not see it
    return Error{
        error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory
        : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver
            ? ErrorCode::unsupported
            : ErrorCode::cuda,
        "device memory: " + std::to_string(size_bytes) + " bytes: " + cudaGetErrorString(error)};
  }
  memory.size_bytes_ = size_bytes;
  return Result<DeviceMemory>(std::move(memory));
}

Result<void> copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                            Stream stream) {
  FDMA_TRY_VOID(check_cuda(cudaMemcpyAsync(device, host, static_cast<std::size_t>(size_bytes),
                                           cudaMemcpyHostToDevice, stream),
                           "cudaMemcpyAsync"));
  return check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Result<void> copy_to_host(void* host, const void* device, std::int64_t size_bytes, Stream stream) {
  FDMA_TRY_VOID(check_cuda(cudaMemcpyAsync(host, device, static_cast<std::size_t>(size_bytes),
                                           cudaMemcpyDeviceToHost, stream),
                           "cudaMemcpyAsync"));
  return check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Result<void> copy_on_device(void* to, const void* from, std::int64_t size_bytes, Stream stream) {
  return check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(size_bytes),
                                    cudaMemcpyDeviceToDevice, stream),
                    "cudaMemcpyAsync");
}

Result<void> fill_with_zeros(void* device, std::int64_t size_bytes, Stream stream) {
  return check_cuda(cudaMemsetAsync(device, 0, static_cast<std::size_t>(size_bytes), stream),
                    "cudaMemsetAsync");
}

Result<void> fill_with(float* device, float value, std::int64_t count, Stream stream) {
  constexpr std::int64_t kThreads = 256, kMaxBlocks = 1024;
  if (count <= 0) return {};
  const std::int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMaxBlocks);
  fill_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(device, value, count);
  return check_cuda(cudaGetLastError(), "fill_with");
}

}  // namespace fdma
