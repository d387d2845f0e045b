// Attention on the GPU by closed-form plans. Results must agree with the reference, and bit by bit
// with plans of segments. Lengths and documents change from call to call and between replays of a
// graph.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/backend_cases.hpp"
#include "backend/closed_form_cases.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;
using gpu_test::GpuFixture;
using gpu_test::OwnedPlan;
using gpu_test::prepared;
using gpu_test::require;
using gpu_test::Workspace;
using testing::BackendAttentionCase;
using testing::CallElement;
using testing::CaseChoice;
using testing::MaskCase;
using testing::pick;
using testing::RandomCall;

AttentionPlan closed_form_plan(const BlockMask& mask, const AttentionShape& shape,
                               ScoreSpec score) {
  PlanOptions options;
  options.backend = Backend::sm90;
  options.form = PlanForm::parametric;
  auto plan = make_plan(mask, shape, score, options);
  EXPECT_TRUE(plan) << plan.error().message;
  return *std::move(plan);
}

/// The lengths and documents of a call, on the device.
struct CallTensors {
  DeviceArray<std::int32_t> q_lens, kv_lens, borders;
  std::int64_t border_rows;  ///< 0: one list for all elements
  bool has_borders;

  void add_to(AttentionTensors& tensors) const {
    tensors.q_lens = ints(q_lens, 0);
    tensors.kv_lens = ints(kv_lens, 0);
    if (has_borders) tensors.cu_seqlens = ints(borders, border_rows);
  }
  static TensorView ints(const DeviceArray<std::int32_t>& values, std::int64_t rows) {
    const auto count = static_cast<std::int64_t>(values.size());
    const std::int64_t extents[] = {rows == 0 ? count : rows, rows == 0 ? 0 : count / rows};
    TensorView view = make_contiguous_view(values.data(), DType::int32, rows == 0 ? 1 : 2, extents);
    view.device = Device::cuda;
    return view;
  }
};

CallTensors on_device(const RandomCall& call, std::int64_t border_rows) {
  return {
      DeviceArray<std::int32_t>(call.q_lens), DeviceArray<std::int32_t>(call.kv_lens),
      DeviceArray<std::int32_t>(call.borders.empty() ? std::vector<std::int32_t>(1) : call.borders),
      border_rows, !call.borders.empty()};
}

AttentionShape planned_shape(AttentionShape shape, const ParametricMask& form) {
  shape.q_lens = {form.q_len};
  shape.kv_lens = {form.kv_len};
  return shape;
}

TEST(ParametricAttentionOnGpu, ComputesWhatPlansOfSegmentsDoBitByBit) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  int number = 0;
  for (const auto& [q_len, kv_len] : {std::pair{700, 700}, {385, 1290}, {690, 171}, {1, 400}}) {
    for (const ParametricMask& form : testing::plain_forms(q_len, kv_len)) {
      const MaskCase mask = testing::case_of("plain", testing::cells_of(form), {128, 128});
      CaseChoice choice;
      choice.head_dim = number % 2 == 0 ? 128 : 64;
      choice.split = SplitMode::never;    // other splits give other bits
      choice.columns = ColumnMode::scan;  // kv index lists give other bits
      choice.seed = static_cast<std::uint64_t>(++number);
      BackendAttentionCase test_case(fixture, mask, {2, 4, 2}, choice);
      const auto ran = test_case.run();
      ASSERT_TRUE(ran) << ran.error().message;
      const std::vector<unsigned char> expected = test_case.result_bytes();
      PlanOptions options;
      options.backend = Backend::sm90;
      options.form = PlanForm::parametric;
      options.split = SplitMode::never;
      const auto plan =
          make_plan(testing::block_mask_of(form), test_case.plan().shape, {}, options);
      ASSERT_TRUE(plan) << plan.error().message;
      const OwnedPlan device_plan = prepared(*plan);
      const Workspace workspace(*device_plan);
      test_case.poison(0xff);
      const auto again = device_plan->forward(test_case.tensors(), {workspace.data()});
      ASSERT_TRUE(again) << again.error().message;
      workspace.require_canaries();
      test_case.fetch();
      EXPECT_EQ(test_case.check(), "") << number;
      EXPECT_EQ(test_case.result_bytes(), expected) << number;
    }
  }
}

TEST(ParametricAttentionOnGpu, FollowsTheLengthsAndDocumentsOfEachCall) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (std::uint32_t seed = 0; seed < 150; ++seed) {
    std::mt19937 rng(seed);
    const bool is_short = seed % 5 == 0;  // few rows, so that heads are packed and keys split
    const ParametricMask form =
        is_short ? testing::random_form(rng, 20, 4000) : testing::random_form(rng, 600, 900);
    const std::int64_t batch = pick(rng, 1, 4);
    const std::int64_t num_borders = pick(rng, 0, 1) == 0 ? 0 : pick(rng, 2, 9);
    const bool is_shared = pick(rng, 0, 1) == 0;
    CaseChoice choice;
    choice.has_bias = pick(rng, 0, 3) == 0;
    choice.dtype = pick(rng, 0, 1) == 0 ? DType::bfloat16 : DType::float16;
    choice.head_dim = std::array{64, 128, 80, 256}[static_cast<std::size_t>(pick(rng, 0, 3))];
    choice.layout = static_cast<testing::Layout>(pick(rng, 0, 2));
    choice.seed = seed + 1;
    for (int call = 0; call < 2; ++call) {
      const RandomCall random(rng, form, batch, num_borders, is_shared);
      const MaskCase expected =
          testing::case_at_call(fmt::format("seed {}", seed), form, random.elements);
      BackendAttentionCase test_case(fixture, expected, {batch, 4, 2}, choice);
      const OwnedPlan plan = prepared(closed_form_plan(testing::block_mask_of(form),
                                                       planned_shape(test_case.plan().shape, form),
                                                       test_case.plan().score));
      const Workspace workspace(*plan);
      const CallTensors given = on_device(random, is_shared ? 0 : batch);
      AttentionTensors tensors = test_case.tensors();
      given.add_to(tensors);
      test_case.poison(0xff);
      const auto ran = plan->forward(tensors, {workspace.data()}, test_case.options());
      ASSERT_TRUE(ran) << ran.error().message;
      workspace.require_canaries();
      test_case.fetch();
      ASSERT_EQ(test_case.check(), "") << "seed " << seed << " call " << call;
    }
  }
}

TEST(ParametricAttentionOnGpu, FollowsLengthsThatChangeBetweenReplaysOfAGraph) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  std::mt19937 rng(3);
  ParametricMask form;
  form.q_len = 500;
  form.kv_len = 800;
  form.pos_offset = 300;
  form.right = 0;
  form.left = 200;
  form.kv_end = 800;
  form.cu_seqlens = {0, 800};
  constexpr std::int64_t kBatch = 3;
  CaseChoice choice;
  const RandomCall first(rng, form, kBatch, 4, false);
  const CallTensors given = on_device(first, kBatch);
  const gpu_test::OwnedStream stream;
  for (int replay = 0; replay < 4; ++replay) {
    // Captured once for each set of tensors; lengths are read when it runs.
    const RandomCall call = replay == 0 ? first : RandomCall(rng, form, kBatch, 4, false);
    const MaskCase expected = testing::case_at_call("replay", form, call.elements);
    BackendAttentionCase test_case(fixture, expected, {kBatch, 4, 2}, choice);
    const OwnedPlan plan =
        prepared(closed_form_plan(testing::block_mask_of(form),
                                  planned_shape(test_case.plan().shape, form), {}),
                 stream.get());
    const Workspace workspace(*plan);
    AttentionTensors tensors = test_case.tensors();
    given.add_to(tensors);
    test_case.poison(0xff);
    const gpu_test::CapturedGraph graph(stream, [&] {
      return plan->forward(tensors, {workspace.data(), stream.get()});
    });
    const auto copy = [](const DeviceArray<std::int32_t>& to,
                         const std::vector<std::int32_t>& from) {
      require(cudaMemcpy(to.data(), from.data(), from.size() * 4, cudaMemcpyHostToDevice), "copy");
    };
    copy(given.q_lens, call.q_lens);
    copy(given.kv_lens, call.kv_lens);
    copy(given.borders, call.borders);
    graph.launch();
    graph.replay();
    test_case.fetch();
    EXPECT_EQ(test_case.check(), "") << replay;
  }
}

}  // namespace
}  // namespace fdma
