#include "backend/cpu_backend.hpp"

#include <utility>

#include "calibrate/cpu.hpp"
#include "cpu/worker_bytes.hpp"

namespace fdma::cpu {
namespace {

constexpr ScoreSpec kScore{.softcap = true,
                           .key_bias = true,
                           .bias = true,
                           .alibi = true,
                           .relative_table = true,
                           .sink = true,
                           .dropout = true};

// Live keys are computed wherever they are, so that gathering saves looking at the others alone.
const BackendTraits& cpu_traits() {
  static const BackendTraits the_traits{
      .name = "cpu",
      .forward_score = kScore,
      .backward_score = kScore,
      .least_gains = {.row = 0.05},
      .profile = "cpu",
      .worker_bytes = worker_bytes,
  };
  return the_traits;
}

// A call of one work tile wakes no thread.
template <class Options>
Options options_of(const AttentionPlan& plan, Options options) {
  if (plan.num_work_tiles() == 1 && options.num_threads == 0) options.num_threads = 1;
  return options;
}

class CpuPlan final : public PreparedPlan {
 public:
  explicit CpuPlan(std::shared_ptr<const AttentionPlan> plan)
      : PreparedPlan(*plan), plan_(std::move(plan)) {}

  std::int64_t size_bytes() const override { return plan_->size_bytes(); }
  Result<void> forward(const AttentionTensors& tensors, const Launch&,
                       const AttentionOptions& options) const override {
    return attention_forward(*plan_, tensors, options_of(*plan_, options));
  }
  Result<void> backward(const BackwardTensors& tensors, const Launch&,
                        const BackwardOptions& options) const override {
    return attention_backward(*plan_, tensors, options_of(*plan_, options));
  }

 private:
  std::shared_ptr<const AttentionPlan> plan_;
};

class CpuBackend final : public AttentionBackend {
 public:
  const BackendTraits& traits() const override { return cpu_traits(); }
  Result<void> check_here() const override { return {}; }
  Result<std::unique_ptr<PreparedPlan>> prepare(std::shared_ptr<const AttentionPlan> plan, Stream,
                                                const PrepareOptions&) const override {
    return std::unique_ptr<PreparedPlan>(std::make_unique<CpuPlan>(std::move(plan)));
  }
  Result<DeviceProfile> calibrate(const CalibrateOptions& options) const override {
    return calibrate_cpu(options);
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace fdma::cpu
