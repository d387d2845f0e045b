// Devices and streams: the current device, the identity of a stream, the time that it worked.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

/// Makes a CUDA device the calling thread's current one. The destructor restores the former one.
class CurrentDevice {
 public:
  /// Errors      unsupported: no such device, no GPU, or a build without CUDA
  static Result<CurrentDevice> make(int device);
  CurrentDevice(CurrentDevice&& other) noexcept : former_(other.former_) { other.former_ = -1; }
  CurrentDevice& operator=(CurrentDevice&&) = delete;
  ~CurrentDevice();

 private:
  explicit CurrentDevice(int former) : former_(former) {}
  int former_;  ///< -1: nothing to restore
};

/// The calling thread's current device, and its name, for example "NVIDIA H200".
/// Errors: unsupported.
Result<int> current_device();
Result<std::string> current_device_name();
/// The number of its multiprocessors. Errors: unsupported.
Result<int> current_device_multiprocessors();

/// The identity of a stream. No two streams of a process ever have the same number, not even where
/// one is created after the other was destroyed. `capture` is 0, or the number of the CUDA graph
/// capture that the stream is part of; `stream` is then another number.
struct StreamNumber {
  std::uint64_t stream = 0;
  std::uint64_t capture = 0;
  friend auto operator<=>(const StreamNumber&, const StreamNumber&) = default;
};
/// Errors: unsupported, cuda.
Result<StreamNumber> number_of(Stream stream);

/// Waits until everything on `stream` has run. Errors: cuda, which includes errors of its kernels.
Result<void> wait_for(Stream stream);

/// The time between two points of a stream, as the device measures it (to about a microsecond).
class StreamTimer {
 public:
  static Result<StreamTimer> make();
  StreamTimer(StreamTimer&& other) noexcept;
  StreamTimer& operator=(StreamTimer&&) = delete;
  ~StreamTimer();

  /// Mark the first and the second point, in the order of `stream`. Errors: cuda.
  Result<void> start(Stream stream = nullptr);
  Result<void> stop(Stream stream = nullptr);
  /// Seconds between the points. Waits for the second one. Errors: cuda.
  Result<double> seconds() const;

 private:
  StreamTimer() = default;
  void* begin_ = nullptr;  ///< cudaEvent_t
  void* end_ = nullptr;
};

}  // namespace fdma
