// The GPU backends of a build without CUDA: every call says so.
#include <memory>

#include "fdma/kernels/device_plan.hpp"
#include "gpu_check.hpp"

namespace fdma {

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
BlockShape DevicePlan::tile() const { return {0, 0}; }
int DevicePlan::device() const { return -1; }
std::int64_t DevicePlan::size_bytes() const { return 0; }
std::int64_t DevicePlan::workspace_bytes() const { return 0; }

Result<void> check_sm90_device() {
  return Error{ErrorCode::unsupported, "this build has no CUDA (FDMA_CUDA=OFF, or no nvcc)"};
}

Result<DevicePlan> upload(const AttentionPlan& plan, Stream) {
  FDMA_TRY_VOID(check_backend(plan.backend == Backend::cpu ? Backend::sm90 : plan.backend));
  return Error{ErrorCode::internal, "upload: a build without CUDA has no GPU backend"};
}

Result<void> attention_forward(const DevicePlan&, const AttentionTensors&, void*, Stream,
                               const AttentionOptions&) {
  return check_backend(Backend::sm90);
}

}  // namespace fdma
