#include "backend/known_backends.hpp"

#include <string>
#include <utility>

#include "backend/cpu_backend.hpp"
#include "backend/sm90_traits.hpp"
#if FDMA_HAS_CUDA
#include "backend/sm90_backend.hpp"
#endif

namespace fdma {
namespace {

// A backend whose kernels are not in this build.
class [[maybe_unused]] AbsentBackend final : public AttentionBackend {
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
#if FDMA_HAS_CUDA
  return sm90::make_backend();
#else
  return std::make_unique<AbsentBackend>(sm90::traits(),
                                         "this build has no CUDA (FDMA_CUDA=OFF, or no nvcc)");
#endif
}

}  // namespace

std::vector<std::unique_ptr<AttentionBackend>> known_backends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  backends.push_back(cpu::make_backend());
  backends.push_back(sm90_backend());
  return backends;
}

}  // namespace fdma
