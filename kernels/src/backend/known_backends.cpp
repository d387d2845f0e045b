#include "backend/known_backends.hpp"

#include <string>
#include <utility>

#include "backend/cpu_backend.hpp"
#include "backend/sm90_traits.hpp"
#include "cuda/gpu_library.hpp"

namespace fdma {
namespace {

// A backend whose kernels are not in this build.
class AbsentBackend final : public AttentionBackend {
 public:
  AbsentBackend(const BackendTraits& traits, std::string reason)
      : traits_(traits), reason_(std::move(reason)) {}

  const BackendTraits& traits() const override { return traits_; }
  Result<void> check_here() const override { return error(); }
  Result<std::unique_ptr<PreparedPlan>> prepare(std::shared_ptr<const AttentionPlan>, Stream,
                                                const PrepareOptions&) const override {
    return error();
  }

 private:
  Error error() const { return {ErrorCode::unsupported, reason_}; }

  const BackendTraits& traits_;
  std::string reason_;
};

std::unique_ptr<AttentionBackend> sm90_backend() {
  const Result<const GpuLibrary*> gpu = gpu_library();
  if (gpu) return (*gpu)->make_sm90_backend();
  return std::make_unique<AbsentBackend>(sm90::traits(), gpu.error().message);
}

}  // namespace

std::vector<std::unique_ptr<AttentionBackend>> known_backends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  backends.push_back(cpu::make_backend());
  backends.push_back(sm90_backend());
  return backends;
}

}  // namespace fdma
