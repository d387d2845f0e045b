// Arrays on the device for tests, and the skip of machines without one.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace fdma::gpu_test {

/// Throws if `error` is an error, which fails the test.
inline void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

/// The major compute capability of device 0 times ten plus the minor one; 0 without a device.
inline int compute_capability() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return properties.major * 10 + properties.minor;
}

#define FDMA_SKIP_WITHOUT_HOPPER()                                      \
  if (fdma::gpu_test::compute_capability() != 90) {                     \
    GTEST_SKIP() << "no GPU of compute capability 9.0 on this machine"; \
  }

/// Elements in device memory, copied from a vector and back. An empty array has an address too.
template <class T>
class DeviceArray {
 public:
  /// `size` elements that are not initialised.
  explicit DeviceArray(std::size_t size) : size_(size) {
    require(cudaMalloc(&data_, (size_ + 1) * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    require(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
            "cudaMemcpy");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Waits for the device.
  std::vector<T> to_host() const {
    require(cudaDeviceSynchronize(), "kernel");
    std::vector<T> values(size_);
    require(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
            "cudaMemcpy");
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

#ifdef __CUDACC__
/// Launches with dynamic shared memory beyond 48 KiB.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int blocks, int threads, int shared_bytes,
            Arguments... arguments) {
  require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
          "cudaFuncSetAttribute");
  kernel<<<blocks, threads, shared_bytes>>>(arguments...);
  require(cudaGetLastError(), "launch");
}
#endif

}  // namespace fdma::gpu_test
