// GpuStreams by the CUDA runtime: devices, the identity of a stream, waiting and events.
#include <cuda_runtime.h>

#include <limits>
#include <string>

#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "cuda/gpu_streams.hpp"
#include "cuda/relaxed_capture.hpp"

namespace fdma {
namespace {

using gpu::check_cuda;

// Without a device no other query is possible.
Error no_device(cudaError_t error) {
  cudaGetLastError();  // the error is reported here, so the next call must not see it
  return Error{ErrorCode::unsupported,
               std::string("there is no CUDA device: ") + cudaGetErrorString(error)};
}

class CudaStreams final : public GpuStreams {
 public:
  Result<int> current_device() const override {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return no_device(error);
    return device;
  }

  Result<void> set_current_device(int device) const override {
    const cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) return {};
    cudaGetLastError();
    return Error{ErrorCode::unsupported,
                 "CUDA device " + std::to_string(device) + ": " + cudaGetErrorString(error)};
  }

  Result<std::string> device_name(int device) const override {
    cudaDeviceProp properties;
    const cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess) return no_device(error);
    return std::string(properties.name);
  }

  Result<int> num_multiprocessors(int device) const override {
    int count = 0;
    const cudaError_t error =
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return no_device(error);
    return count;
  }

  Result<StreamNumber> number_of(Stream stream) const override {
    // The legacy stream has two handles and cannot be captured. A query about that would be an
    // error while another stream is captured.
    if (stream == nullptr || stream == cudaStreamLegacy) {
      return StreamNumber{std::numeric_limits<std::uint64_t>::max(), 0};
    }
    unsigned long long id = 0;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    FDMA_TRY_VOID(
        check_cuda(cudaStreamGetCaptureInfo(stream, &status, &id), "cudaStreamGetCaptureInfo"));
    if (status == cudaStreamCaptureStatusActive) {
      // Querying its id would invalidate the capture, during which the handle names no other
      // stream.
      return StreamNumber{reinterpret_cast<std::uintptr_t>(stream), id};
    }
    const RelaxedCapture relaxed;  // another stream may be captured
    FDMA_TRY_VOID(check_cuda(cudaStreamGetId(stream, &id), "cudaStreamGetId"));
    return StreamNumber{id, 0};
  }

  Result<void> wait_for(Stream stream) const override {
    return check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  Result<void*> make_event() const override {
    cudaEvent_t event = nullptr;
    FDMA_TRY_VOID(check_cuda(cudaEventCreate(&event), "cudaEventCreate"));
    return static_cast<void*>(event);
  }

  void destroy_event(void* event) const noexcept override {
    cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }

  Result<void> record_event(void* event, Stream stream) const override {
    return check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(event), stream), "cudaEventRecord");
  }

  Result<double> seconds_between(void* begin, void* end) const override {
    FDMA_TRY_VOID(
        check_cuda(cudaEventSynchronize(static_cast<cudaEvent_t>(end)), "cudaEventSynchronize"));
    float milliseconds = 0;
    FDMA_TRY_VOID(check_cuda(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin),
                                                  static_cast<cudaEvent_t>(end)),
                             "cudaEventElapsedTime"));
    return static_cast<double>(milliseconds) / 1e3;
  }
};

}  // namespace

const GpuStreams& with_cuda::streams() {
  static const CudaStreams streams;
  return streams;
}

}  // namespace fdma
