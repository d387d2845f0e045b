// The current device, streams and timers of every build: who restores a device and who owns events.
#include "fdma/kernels/device_stream.hpp"

#include <utility>

#include "cuda/gpu_library.hpp"
#include "cuda/gpu_streams.hpp"

namespace fdma {

Result<int> current_device() {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->streams.current_device();
}

Result<std::string> current_device_name() {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  FDMA_TRY(const int device, gpu->streams.current_device());
  return gpu->streams.device_name(device);
}

Result<int> current_device_multiprocessors() {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  FDMA_TRY(const int device, gpu->streams.current_device());
  return gpu->streams.num_multiprocessors(device);
}

Result<CurrentDevice> CurrentDevice::make(int device) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  FDMA_TRY(const int former, gpu->streams.current_device());
  if (former == device) return Result<CurrentDevice>(CurrentDevice(-1));
  FDMA_TRY_VOID(gpu->streams.set_current_device(device));
  return Result<CurrentDevice>(CurrentDevice(former));
}

CurrentDevice::~CurrentDevice() {
  if (former_ < 0) return;
  if (const auto gpu = gpu_library()) {
    static_cast<void>((*gpu)->streams.set_current_device(former_));
  }
}

Result<StreamNumber> number_of(Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->streams.number_of(stream);
}

Result<void> wait_for(Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->streams.wait_for(stream);
}

Result<StreamTimer> StreamTimer::make() {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  StreamTimer timer;
  FDMA_TRY(timer.begin_, gpu->streams.make_event());
  FDMA_TRY(timer.end_, gpu->streams.make_event());
  return Result<StreamTimer>(std::move(timer));
}

StreamTimer::StreamTimer(StreamTimer&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), end_(std::exchange(other.end_, nullptr)) {}

StreamTimer::~StreamTimer() {
  for (void* event : {begin_, end_}) {
    if (event == nullptr) continue;
    if (const auto gpu = gpu_library()) (*gpu)->streams.destroy_event(event);
  }
}

Result<void> StreamTimer::start(Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->streams.record_event(begin_, stream);
}

Result<void> StreamTimer::stop(Stream stream) {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->streams.record_event(end_, stream);
}

Result<double> StreamTimer::seconds() const {
  FDMA_TRY(const GpuLibrary* const gpu, gpu_library());
  return gpu->streams.seconds_between(begin_, end_);
}

}  // namespace fdma
