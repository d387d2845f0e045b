// What device_memory.cpp and the rooms above ask of a GPU's memory; device_memory.cu implements it.
#pragma once

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

/// Memory of the calling thread's current device. Copies and fills run in the order of `stream`,
/// and none of these functions waits for it.
class GpuMemory {
 public:
  /// Errors and alignment are those of DeviceMemory::allocate.
  virtual Result<void*> allocate(std::int64_t size_bytes) const = 0;
  virtual void free(void* data) const noexcept = 0;

  /// Pageable memory of the host may change as soon as the call returns.
  virtual Result<void> copy_to_device(void* device, const void* host, std::int64_t size_bytes,
                                      Stream stream) const = 0;
  virtual Result<void> copy_to_host(void* host, const void* device, std::int64_t size_bytes,
                                    Stream stream) const = 0;
  /// Rows that lie `stride_bytes` apart on the device, to rows without gaps.
  virtual Result<void> copy_rows_to_host(void* host, const void* device, std::int64_t stride_bytes,
                                         std::int64_t row_bytes, std::int64_t num_rows,
                                         Stream stream) const = 0;
  virtual Result<void> copy_on_device(void* to, const void* from, std::int64_t size_bytes,
                                      Stream stream) const = 0;

  virtual Result<void> fill_with_zeros(void* device, std::int64_t size_bytes,
                                       Stream stream) const = 0;
  virtual Result<void> fill_with(float* device, float value, std::int64_t count,
                                 Stream stream) const = 0;

 protected:
  ~GpuMemory() = default;
};

}  // namespace fdma
