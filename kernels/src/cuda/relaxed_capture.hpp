// A guard that permits calls that CUDA otherwise refuses while any stream of the process is
// captured.
#pragma once

#include <cuda_runtime.h>

namespace fdma {

/// While it lives the calling thread may make calls that could wait for a captured stream
/// (allocating and freeing memory, querying a stream's id). None of the guarded calls touches the
/// capture.
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
