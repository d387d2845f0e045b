// Device memory, copies and fills of every build: who owns memory, and which copies wait.
#include "fdma/kernels/device_memory.hpp"

#include <utility>

#include "cuda/gpu_library.hpp"
#include "cuda/gpu_memory.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma {

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
  if (const auto gpu = gpu_library()) (*gpu)->memory.free(data);
}

Result<DeviceMemory> DeviceMemory::allocate(std::int64_t size_bytes) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  DeviceMemory memory;
  FDMA_TRY(memory.data_, gpu->memory.allocate(size_bytes));
  memory.size_bytes_ = size_bytes;
  return Result<DeviceMemory>(std::move(memory));
}

Result<void> copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                            Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  FDMA_TRY_VOID(gpu->memory.copy_to_device(device, host, size_bytes, stream));
  return wait_for(stream);
}

Result<void> copy_to_host(void* host, const void* device, std::int64_t size_bytes, Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  FDMA_TRY_VOID(gpu->memory.copy_to_host(host, device, size_bytes, stream));
  return wait_for(stream);
}

Result<void> copy_on_device(void* to, const void* from, std::int64_t size_bytes, Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->memory.copy_on_device(to, from, size_bytes, stream);
}

Result<void> fill_with_zeros(void* device, std::int64_t size_bytes, Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->memory.fill_with_zeros(device, size_bytes, stream);
}

Result<void> fill_with(float* device, float value, std::int64_t count, Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->memory.fill_with(device, value, count, stream);
}

}  // namespace fdma
