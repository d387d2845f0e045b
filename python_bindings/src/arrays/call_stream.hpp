// Where a call runs: the current device and the stream.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "arrays/array_view.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma::python {

/// The stream of a call on arrays at `place`. While it lives, the GPU of `place` is the current
/// device of this thread. On the host there is no device, and stream() is null.
///
/// `stream` is what the caller named: an integer (cudaStream_t), an object with `__cuda_stream__`
/// (its second entry), or a stream of PyTorch (cuda_stream) or CuPy (ptr). None means the current
/// stream of the framework of `array` if that has one (PyTorch, CuPy), otherwise the default
/// stream. The caller holds the GIL.
///
/// Errors      TypeError: another object; invalid_argument: a stream on the host other than None
///             and 0; those of check_backend, which name the available backends, where there is no
///             such GPU
class CallStream {
 public:
  CallStream(const Place& place, nanobind::handle stream,
             nanobind::handle array = nanobind::none());

  Stream stream() const { return stream_; }

 private:
  std::optional<CurrentDevice> device_;
  Stream stream_ = nullptr;
};

}  // namespace fdma::python
