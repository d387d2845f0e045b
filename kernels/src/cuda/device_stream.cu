// CUDA devices and streams: the current device, identities of streams, timing and
// synchronisation.
#include <cuda_runtime.h>

#include <limits>
#include <utility>

#include "cuda/cuda_error.hpp"
#include "cuda/relaxed_capture.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma {
namespace {

using sm90::check_cuda;

// Without a device no other query is possible.
Error no_device(cudaError_t error) {
  cudaGetLastError();  // the error is reported here, so the next call must not see it
  return Error{ErrorCode::unsupported,
               std::string("there is no CUDA device: ") + cudaGetErrorString(error)};
}

}  // namespace

Result<int> current_device() {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return no_device(error);
  return device;
}

Result<std::string> current_device_name() {
  FDMA_TRY(const int device, current_device());
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return no_device(error);
  return std::string(properties.name);
}

Result<int> current_device_multiprocessors() {
  FDMA_TRY(const int device, current_device());
  int count = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return no_device(error);
  return count;
}

Result<CurrentDevice> CurrentDevice::make(int device) {
  FDMA_TRY(const int former, current_device());
  if (former == device) return Result<CurrentDevice>(CurrentDevice(-1));
  const cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return Error{ErrorCode::unsupported,
                 "CUDA device " + std::to_string(device) + ": " + cudaGetErrorString(error)};
  }
  return Result<CurrentDevice>(CurrentDevice(former));
}

CurrentDevice::~CurrentDevice() {
  if (former_ >= 0) cudaSetDevice(former_);
}

Result<StreamNumber> number_of(Stream stream) {
  // The legacy stream has two handles and cannot be captured. A query about that would be an error
  // while another stream is captured.
  if (stream == nullptr || stream == cudaStreamLegacy) {
    return StreamNumber{std::numeric_limits<std::uint64_t>::max(), 0};
  }
  unsigned long long id = 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  FDMA_TRY_VOID(
      check_cuda(cudaStreamGetCaptureInfo(stream, &status, &id), "cudaStreamGetCaptureInfo"));
  if (status == cudaStreamCaptureStatusActive) {
    // Querying its id would invalidate the capture, during which the handle names no other stream.
    return StreamNumber{reinterpret_cast<std::uintptr_t>(stream), id};
  }
  const RelaxedCapture relaxed;  // another stream may be captured
  FDMA_TRY_VOID(check_cuda(cudaStreamGetId(stream, &id), "cudaStreamGetId"));
  return StreamNumber{id, 0};
}

Result<void> wait_for(Stream stream) {
  return check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Result<StreamTimer> StreamTimer::make() {
  StreamTimer timer;
  for (void** event : {&timer.begin_, &timer.end_}) {
    cudaEvent_t made = nullptr;
    FDMA_TRY_VOID(check_cuda(cudaEventCreate(&made), "cudaEventCreate"));
    *event = made;
  }
  return Result<StreamTimer>(std::move(timer));
}

StreamTimer::StreamTimer(StreamTimer&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), end_(std::exchange(other.end_, nullptr)) {}

StreamTimer::~StreamTimer() {
  for (void* event : {begin_, end_}) {
    if (event != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
}

Result<void> StreamTimer::start(Stream stream) {
  return check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(begin_), stream), "cudaEventRecord");
}

Result<void> StreamTimer::stop(Stream stream) {
  return check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(end_), stream), "cudaEventRecord");
}

Result<double> StreamTimer::seconds() const {
  const auto end = static_cast<cudaEvent_t>(end_);
  FDMA_TRY_VOID(check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize"));
  float milliseconds = 0;
  FDMA_TRY_VOID(
      check_cuda(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin_), end),
                 "cudaEventElapsedTime"));
  return static_cast<double>(milliseconds) / 1e3;
}

}  // namespace fdma
