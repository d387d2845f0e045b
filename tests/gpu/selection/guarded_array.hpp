// Device memory with a known pattern before and behind it.
#pragma once

#include <cstdint>
#include <vector>

#include "device_array.hpp"

namespace fdma::gpu_test {

/// `bytes` of device memory between guards, at an address that is a multiple of 256. All bytes
/// start as 0xA5.
class GuardedBytes {
 public:
  static constexpr std::size_t kGuard = 4096;

  explicit GuardedBytes(std::size_t bytes)
      : bytes_(bytes), all_(std::vector<std::uint8_t>(bytes + 2 * kGuard, 0xA5)) {}

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(all_.data() + kGuard);
  }

  /// Waits for the device. Fails the test if a guard was written.
  std::vector<std::uint8_t> to_host() const {
    const std::vector<std::uint8_t> all = all_.to_host();
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (all[i] != 0xA5 || all[kGuard + bytes_ + i] != 0xA5) {
        ADD_FAILURE() << "written outside of " << bytes_ << " bytes";
        break;
      }
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  std::size_t bytes_;
  DeviceArray<std::uint8_t> all_;
};

}  // namespace fdma::gpu_test
