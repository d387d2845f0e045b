// Device memory and streams in a build without CUDA: every call returns an error that says so.
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma {
namespace {

Error no_cuda() {
  return {ErrorCode::unsupported, "this build has no CUDA (FDMA_CUDA=OFF, or no nvcc)"};
}

}  // namespace

DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;
DeviceMemory::~DeviceMemory() { free_device_memory(data_); }
void* DeviceMemory::release() { return data_; }
Result<DeviceMemory> DeviceMemory::allocate(std::int64_t) { return no_cuda(); }
void free_device_memory(void*) noexcept {}
Result<void> copy_to_device(void*, const void*, std::int64_t, Stream) { return no_cuda(); }
Result<void> copy_to_host(void*, const void*, std::int64_t, Stream) { return no_cuda(); }
Result<void> copy_on_device(void*, const void*, std::int64_t, Stream) { return no_cuda(); }
Result<void> fill_with_zeros(void*, std::int64_t, Stream) { return no_cuda(); }
Result<void> fill_with(float*, float, std::int64_t, Stream) { return no_cuda(); }

Result<CurrentDevice> CurrentDevice::make(int) { return no_cuda(); }
CurrentDevice::~CurrentDevice() { former_ = -1; }
Result<int> current_device() { return no_cuda(); }
Result<std::string> current_device_name() { return no_cuda(); }
Result<int> current_device_multiprocessors() { return no_cuda(); }
Result<StreamNumber> number_of(Stream) { return no_cuda(); }
Result<void> wait_for(Stream) { return no_cuda(); }
Result<StreamTimer> StreamTimer::make() { return no_cuda(); }
StreamTimer::StreamTimer(StreamTimer&&) noexcept = default;
StreamTimer::~StreamTimer() { begin_ = end_ = nullptr; }
Result<void> StreamTimer::start(Stream) { return no_cuda(); }
Result<void> StreamTimer::stop(Stream) { return no_cuda(); }
Result<double> StreamTimer::seconds() const { return no_cuda(); }

}  // namespace fdma
