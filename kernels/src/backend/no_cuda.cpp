// The GPU backends of a build without CUDA: every call returns an error that says so.
#include <memory>

#include "backend/gpu_check.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_plan.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "fdma/kernels/kept_workspace.hpp"

namespace fdma {
namespace {

Error no_cuda() {
  return {ErrorCode::unsupported, "this build has no CUDA (FDMA_CUDA=OFF, or no nvcc)"};
}

}  // namespace

struct DevicePlan::Impl {
  AttentionShape shape;
  ScoreSpec score;
};

DevicePlan::DevicePlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DevicePlan::DevicePlan(DevicePlan&&) noexcept = default;
DevicePlan& DevicePlan::operator=(DevicePlan&&) noexcept = default;
DevicePlan::~DevicePlan() = default;
const AttentionShape& DevicePlan::shape() const { return impl_->shape; }
const ScoreSpec& DevicePlan::score() const { return impl_->score; }
Direction DevicePlan::direction() const { return Direction::forward; }
BlockShape DevicePlan::tile() const { return {0, 0}; }
int DevicePlan::device() const { return -1; }
std::int64_t DevicePlan::size_bytes() const { return 0; }
std::int64_t DevicePlan::workspace_bytes() const { return 0; }

Result<void> check_sm90_device() { return no_cuda(); }

Result<DevicePlan> upload(const AttentionPlan& plan, Stream, const UploadOptions&) {
  FDMA_TRY_VOID(check_backend(plan.backend == Backend::cpu ? Backend::sm90 : plan.backend));
  return Error{ErrorCode::internal, "upload: a build without CUDA has no GPU backend"};
}

Result<void> attention_forward(const DevicePlan&, const AttentionTensors&, void*, Stream,
                               const AttentionOptions&) {
  return check_backend(Backend::sm90);
}

Result<void> prepare_workspace(void*, Stream) { return no_cuda(); }

Result<void> attention_forward_in_kept_workspace(const DevicePlan&, const AttentionTensors&, void*,
                                                 Stream, const AttentionOptions&) {
  return check_backend(Backend::sm90);
}

Result<void> attention_backward(const DevicePlan&, const BackwardTensors&, void*, Stream,
                                const BackwardOptions&) {
  return check_backend(Backend::sm90);
}

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
