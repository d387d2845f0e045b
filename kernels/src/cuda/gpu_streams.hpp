// What device_stream.cpp asks of devices, streams and events; device_stream.cu implements it.
#pragma once

#include <string>

#include "fdma/base/result.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma {

class GpuStreams {
 public:
  /// Errors of the queries about devices: unsupported.
  virtual Result<int> current_device() const = 0;
  virtual Result<void> set_current_device(int device) const = 0;
  virtual Result<std::string> device_name(int device) const = 0;
  virtual Result<int> num_multiprocessors(int device) const = 0;

  virtual Result<StreamNumber> number_of(Stream stream) const = 0;
  virtual Result<void> wait_for(Stream stream) const = 0;

  /// A cudaEvent_t, which the caller destroys.
  virtual Result<void*> make_event() const = 0;
  virtual void destroy_event(void* event) const noexcept = 0;
  virtual Result<void> record_event(void* event, Stream stream) const = 0;
  /// Waits for `end`.
  virtual Result<double> seconds_between(void* begin, void* end) const = 0;

 protected:
  ~GpuStreams() = default;
};

}  // namespace fdma
