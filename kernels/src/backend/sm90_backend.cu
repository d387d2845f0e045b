// The backend sm90: plans are uploaded, and launches are those of sm90/.
#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "backend/sm90_traits.hpp"
#include "calibrate/sm90.hpp"
#include "cuda/device_plan.hpp"
#include "cuda/gpu_library.hpp"
#include "fdma/kernels/attention_backend.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "sm90/backward/attention_backward.hpp"
#include "sm90/forward/attention_forward.hpp"

namespace fdma::sm90 {
namespace {

class Sm90Plan final : public PreparedPlan {
 public:
  Sm90Plan(const AttentionPlan& plan, std::unique_ptr<DevicePlan> on_device)
      : PreparedPlan(plan), on_device_(std::move(on_device)) {}

  int device() const override { return on_device_->device; }
  std::int64_t size_bytes() const override { return on_device_->size_bytes; }
  std::int64_t workspace_bytes() const override {
    return direction() == Direction::backward ? backward_workspace_bytes(*on_device_)
                                              : forward_workspace_bytes(*on_device_);
  }
  Result<void> prepare_workspace(void* workspace, Stream stream) const override {
    return fill_with_zeros(workspace, sizeof(*work_tile_counter(workspace)), stream);
  }
  Result<void> forward(const AttentionTensors& tensors, const Launch& launch,
                       const AttentionOptions& options) const override {
    return attention_forward(*on_device_, tensors, launch, options);
  }
  Result<void> backward(const BackwardTensors& tensors, const Launch& launch,
                        const BackwardOptions& options) const override {
    return attention_backward(*on_device_, tensors, launch, options);
  }

 private:
  std::unique_ptr<DevicePlan> on_device_;
};

class Sm90Backend final : public AttentionBackend {
 public:
  const BackendTraits& traits() const override { return sm90::traits(); }

  Result<void> check_here() const override {
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
      cudaGetLastError();  // the error is reported here, so the next call must not see it
      return Error{ErrorCode::unsupported, "there is no CUDA device, or no driver for it"};
    }
    if (major == 9 && minor == 0) return {};
    return Error{ErrorCode::unsupported, "the current CUDA device is of compute capability " +
                                             std::to_string(major) + "." + std::to_string(minor) +
                                             ", the kernels are for 9.0 (H100, H200)"};
  }

  Result<std::unique_ptr<PreparedPlan>> prepare(std::shared_ptr<const AttentionPlan> plan,
                                                Stream stream,
                                                const PrepareOptions& options) const override {
    FDMA_TRY(std::unique_ptr<DevicePlan> on_device, upload(*plan, stream, options));
    return Result<std::unique_ptr<PreparedPlan>>(
        std::make_unique<Sm90Plan>(*plan, std::move(on_device)));
  }

  Result<DeviceProfile> calibrate(const CalibrateOptions& options) const override {
    return calibrate_sm90(options);
  }
};

}  // namespace
}  // namespace fdma::sm90

namespace fdma::with_cuda {

std::unique_ptr<AttentionBackend> make_sm90_backend() {
  return std::make_unique<sm90::Sm90Backend>();
}

}  // namespace fdma::with_cuda
