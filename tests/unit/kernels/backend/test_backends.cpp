// The registry of backends, and a backend that is added in one file: it counts its calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/attention_case.hpp"
#include "backend/backend_cases.hpp"
#include "fdma/kernels/attention_backend.hpp"

namespace fdma {
namespace {

using testing::Cells;
using ::testing::HasSubstr;
using testing::MaskCase;

constexpr BlockShape kTile{128, 128};

AttentionShape half_shape(const BlockMask& mask) {
  AttentionShape shape = testing::shape_for(mask, 1, 2, 1);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::float16;
  return shape;
}

TEST(Backends, AreParsedByTheirNames) {
  for (const Backend backend : registered_backends()) {
    const auto parsed = parse_backend(to_string(backend));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, backend);
  }
  EXPECT_EQ(to_string(Backend::cpu), "cpu");
  EXPECT_EQ(to_string(Backend::sm90), "sm90");
  const auto unknown = parse_backend("sm100");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(unknown.error().message, HasSubstr("expected one of cpu, sm90"));
}

TEST(Backends, AreThoseThatCheckBackendAccepts) {
  const std::vector<Backend> available = available_backends();
  for (const Backend backend : registered_backends()) {
    const bool is_available =
        std::find(available.begin(), available.end(), backend) != available.end();
    const auto checked = check_backend(backend);
    EXPECT_EQ(checked.has_value(), is_available) << to_string(backend);
    if (!checked) {
      EXPECT_EQ(checked.error().code, ErrorCode::unsupported);
      EXPECT_THAT(checked.error().message, HasSubstr(std::string(to_string(backend))));
      EXPECT_THAT(checked.error().message, HasSubstr("available: cpu"));
    }
  }
  EXPECT_TRUE(check_backend(Backend::cpu));
  const bool has_gpu = check_backend(Backend::sm90).has_value();
  EXPECT_EQ(default_backend(), has_gpu ? Backend::sm90 : Backend::cpu);
  EXPECT_EQ(backend_for(Device::cpu), Backend::cpu);
  EXPECT_EQ(backend_for(Device::cuda), Backend::sm90);
}

TEST(Prepare, SaysWhyThereIsNoGpu) {
  if (check_backend(Backend::sm90)) GTEST_SKIP() << "this machine has the GPU";
  const MaskCase mask = testing::case_of("one", Cells(1, 1), kTile);
  PlanOptions options;
  options.backend = Backend::sm90;
  auto plan = make_plan(mask.mask, half_shape(mask.mask), {}, options);
  ASSERT_TRUE(plan);
  const auto prepared = prepare(*std::move(plan));
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code, ErrorCode::unsupported);
  EXPECT_THAT(prepared.error().message, HasSubstr("backend sm90"));
  EXPECT_THAT(prepared.error().message, HasSubstr("available: cpu"));
}

// Everything that a new backend writes. It computes nothing and counts its calls.
struct Counts {
  int num_prepared = 0, num_forward = 0, num_backward = 0;
};

class CountingPlan final : public PreparedPlan {
 public:
  CountingPlan(const AttentionPlan& plan, Counts& counts) : PreparedPlan(plan), counts_(counts) {}

  std::int64_t size_bytes() const override { return 0; }
  Result<void> forward(const AttentionTensors&, const Launch&,
                       const AttentionOptions&) const override {
    ++counts_.num_forward;
    return {};
  }
  Result<void> backward(const BackwardTensors&, const Launch&,
                        const BackwardOptions&) const override {
    ++counts_.num_backward;
    return {};
  }

 private:
  Counts& counts_;
};

class CountingBackend final : public AttentionBackend {
 public:
  explicit CountingBackend(Counts& counts) : counts_(counts) {}

  const BackendTraits& traits() const override {
    static const BackendTraits the_traits{
        .name = "counting",
        .tile = {32, 64},
        .has_one_tile = true,
        .max_gather_head_dim = 16,
        .packs_heads = true,
    };
    return the_traits;
  }
  Result<void> check_here() const override { return {}; }
  Result<std::unique_ptr<PreparedPlan>> prepare(std::shared_ptr<const AttentionPlan> plan, Stream,
                                                const PrepareOptions&) const override {
    ++counts_.num_prepared;
    return std::unique_ptr<PreparedPlan>(std::make_unique<CountingPlan>(*plan, counts_));
  }

 private:
  Counts& counts_;
};

TEST(RegisterBackend, AddsABackendThatEveryCallerKnows) {
  static Counts counts;  // the registry keeps the backend for the rest of the process
  const auto registered = register_backend(std::make_unique<CountingBackend>(counts));
  ASSERT_TRUE(registered) << registered.error().message;
  EXPECT_EQ(*parse_backend("counting"), *registered);
  EXPECT_TRUE(check_backend(*registered));
  EXPECT_EQ(available_backends().back(), *registered);
  EXPECT_EQ(backend_for(Device::cpu), Backend::cpu);
  const auto again = register_backend(std::make_unique<CountingBackend>(counts));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::invalid_argument);

  // The planner asks its traits: its tile, its packing, what it gathers.
  const MaskCase mask = testing::case_of(
      "full", testing::make_cells(40, 300, [](auto, auto) { return true; }), kTile);
  AttentionShape shape = testing::shape_for(mask.mask, 1, 4, 2);
  shape.head_dim = shape.head_dim_v = 32;
  PlanOptions options;
  options.backend = *registered;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    options.direction = direction;
    auto plan = make_plan(mask.mask, shape, {}, options);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->report.profile, "");  // its traits name none
    EXPECT_FALSE(plan->report.decisions.empty());
    const bool is_forward = direction == Direction::forward;
    EXPECT_EQ(plan->heads_per_tile, is_forward ? 2 : 1);
    EXPECT_EQ(plan->tile, (BlockShape{is_forward ? 16 : 32, 64}));
    EXPECT_TRUE(validate(*plan)) << validate(*plan).error().message;
    const auto prepared = prepare(*std::move(plan));
    ASSERT_TRUE(prepared) << prepared.error().message;
    EXPECT_EQ((*prepared)->backend(), *registered);
    EXPECT_EQ((*prepared)->device(), -1);
    const auto ran = is_forward ? (*prepared)->forward({}) : (*prepared)->backward({});
    EXPECT_TRUE(ran);
  }
  EXPECT_EQ(counts.num_prepared, 2);
  EXPECT_EQ(counts.num_forward, 1);
  EXPECT_EQ(counts.num_backward, 1);
  options.direction = Direction::forward;
  options.columns = ColumnMode::gather;
  const auto gathering = make_plan(mask.mask, shape, {}, options);
  ASSERT_FALSE(gathering);
  EXPECT_THAT(gathering.error().message, HasSubstr("counting gathers with head_dim"));
  CalibrateOptions calibration = calibrate_options(*registered);
  EXPECT_EQ(calibration.tiles, (std::vector<BlockShape>{{32, 64}}));
  EXPECT_THAT(calibrate(calibration).error().message, HasSubstr("backend counting"));
}

}  // namespace
}  // namespace fdma
