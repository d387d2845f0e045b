// Calls that CUDA refuses while any stream of the process is captured, made anyway.
#pragma once

#include <cuda_runtime.h>

namespace fdma {

/// While it lives the calling thread may make calls that could wait for a captured stream (taking
/// and returning memory, asking for a stream's number). None that are made here touch the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace fdma
