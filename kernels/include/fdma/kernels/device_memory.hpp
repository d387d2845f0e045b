// Memory of a GPU, and copies to and from it, for callers without CUDA code of their own.
#pragma once

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

/// An allocation on a CUDA device.
///
/// Owner       owns its bytes; the destructor waits for the kernels that use them
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  /// `size_bytes` (0 or more) on the calling thread's current device, not initialised, at a
  /// multiple of 256 bytes. Allowed while a stream is captured.
  ///
  /// Errors      out_of_memory; unsupported (no GPU, or a build without CUDA); cuda
  static Result<DeviceMemory> allocate(std::int64_t size_bytes);

  void* data() const { return data_; }
  std::int64_t size_bytes() const { return size_bytes_; }
  /// Gives up the ownership of data(); free_device_memory frees it.
  void* release();

 private:
  void* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
};

/// Frees memory from DeviceMemory::release. Waits for the kernels that use it; null is allowed.
void free_device_memory(void* data) noexcept;

/// Copies in the order of `stream` and waits for the copy, so `host` may be any memory. Must not be
/// called while the stream is captured. Errors: cuda.
Result<void> copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                            Stream stream = nullptr);
Result<void> copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                          Stream stream = nullptr);

/// Copies from one place on the device to another that does not overlap it, in the order of
/// `stream`, without waiting. Errors: cuda.
Result<void> copy_on_device(void* to, const void* from, std::int64_t size_bytes,
                            Stream stream = nullptr);

/// Sets bytes to zero, or 4-aligned elements to `value`, in the order of `stream`, without waiting.
/// Errors: cuda.
Result<void> fill_with_zeros(void* device, std::int64_t size_bytes, Stream stream = nullptr);
Result<void> fill_with(float* device, float value, std::int64_t count, Stream stream = nullptr);

}  // namespace fdma
