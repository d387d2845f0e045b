// Backward calls by plans of work tiles whose main kernel writes the zero fill of the fp32
// accumulators itself (ZeroFill). KV heads with more tile groups than there are multiprocessors
// come one after the other. While blocks compute, they clear the accumulators of the next head, and
// they wait until their own are cleared. The tests read from the workspace that this happened.
#include <gtest/gtest.h>

#include <vector>

#include "backend/backend_backward_case.hpp"
#include "gpu_fixture.hpp"
#include "sm90/backward/attention_backward.hpp"
#include "sm90/backward/workspace.hpp"

namespace fdma {
namespace {

using gpu_test::CapturedGraph;
using gpu_test::GpuFixture;
using gpu_test::OwnedStream;
using gpu_test::require;
using gpu_test::Workspace;
using testing::BackendBackwardCase;
using testing::BackwardChoice;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::MaskCase;

constexpr std::int64_t kManyKeys = 17000;  // 133 tile groups
constexpr BlockShape kBlock{128, 128};

// A mask with some queries for each key. They are few, since references are slow.
MaskCase few_queries(std::int64_t q_len, std::int64_t kv_len = kManyKeys) {
  return testing::case_of(
      "some queries for each key",
      testing::make_cells(q_len, kv_len, [](auto q, auto k) { return (k + 400) / 800 == q / 14; }),
      kBlock);
}

// The choices give D from out and out_low, and KV heads one by one.
CaseChoice choice_of(std::int32_t head_dim) {
  CaseChoice choice;
  choice.dtype = DType::bfloat16;
  choice.head_dim = head_dim;
  choice.has_bias = head_dim == 64;
  choice.wants_out_low = true;
  return choice;
}
BackwardChoice head_by_head() {
  BackwardChoice backward;
  backward.l2_bytes = 1;
  return backward;
}

std::unique_ptr<gpu::DevicePlan> uploaded(const AttentionPlan& plan) {
  Result<std::unique_ptr<gpu::DevicePlan>> result = gpu::upload(plan, nullptr);
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

// A plan on the device, and the workspace of its calls.
class Calls {
 public:
  explicit Calls(const BackendBackwardCase& test_case)
      : plan_(uploaded(test_case.plan())), workspace_(sm90::backward_workspace_bytes(*plan_)) {}

  Result<void> run(const BackendBackwardCase& test_case, Stream stream = nullptr) const {
    return sm90::attention_backward(*plan_, test_case.tensors(), {workspace_.data(), stream},
                                    test_case.options());
  }
  // Expects that the main kernel of the last call wrote the zero fill of all KV heads except the
  // first.
  void expect_written_meanwhile() const {
    workspace_.require_canaries();
    const AttentionShape& shape = plan_->shape;
    const sm90::BackwardWorkspace places(*plan_);
    ASSERT_TRUE(plan_->is_by_row);
    std::vector<sm90::ZeroFillCounters> counters(
        static_cast<std::size_t>(shape.batch * shape.heads_kv));
    require(cudaMemcpy(counters.data(),
                       static_cast<const char*>(workspace_.data()) + places.zero_counters,
                       counters.size() * sizeof(counters.front()), cudaMemcpyDeviceToHost),
            "counters");
    EXPECT_EQ(counters.front().done, 0);
    for (std::size_t row = 1; row < counters.size(); ++row) {
      EXPECT_EQ(counters[row].done, shape.group_size() * (places.padded_q_len / gpu::kTileKeys))
          << row;
    }
  }

 private:
  std::unique_ptr<gpu::DevicePlan> plan_;
  Workspace workspace_;
};

void poison(BackendBackwardCase& test_case, unsigned char byte) {
  for (auto* tensor : {&test_case.dq(), &test_case.dk(), &test_case.dv(), &test_case.dbias()}) {
    tensor->poison(byte);
  }
}
std::string fetched_error(BackendBackwardCase& test_case) {
  for (auto* tensor : {&test_case.dq(), &test_case.dk(), &test_case.dv(), &test_case.dbias()})
    tensor->fetch();
  return test_case.check();
}

void expect_good(const MaskCase& mask, const CaseHeads& heads) {
  GpuFixture fixture;
  for (const std::int32_t head_dim : {128, 64}) {
    BackendBackwardCase test_case(fixture, mask, heads, choice_of(head_dim), head_by_head());
    const Calls calls(test_case);
    // The second call finds the workspace as the first one left it.
    for (const unsigned char byte : {0xff, 0x41}) {
      poison(test_case, byte);
      const auto ran = calls.run(test_case);
      ASSERT_TRUE(ran) << ran.error().message;
      calls.expect_written_meanwhile();
      EXPECT_EQ(fetched_error(test_case), "") << head_dim;
    }
  }
}

TEST(AttentionZerosOnGpu, AreWrittenMeanwhile) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(few_queries(300), {1, 6, 3});
}

TEST(AttentionZerosOnGpu, AreThoseOfEveryBatchElement) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(few_queries(300), {2, 4, 2});
}

// Heads without a work tile. Nothing is added to their accumulators, which are read all the same.
TEST(AttentionZerosOnGpu, AreThoseOfHeadsWithoutKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::combined("no keys between", 3, 1,
                                {few_queries(290), few_queries(200, 0), few_queries(300)}, kBlock),
              {3, 4, 2});
  expect_good(testing::combined("no keys at the end", 3, 1,
                                {few_queries(290), few_queries(300), few_queries(200, 0)}, kBlock),
              {3, 2, 2});
}

TEST(AttentionZerosOnGpu, AreWrittenByEveryReplayOfAGraph) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = few_queries(300);
  GpuFixture fixture;
  BackendBackwardCase test_case(fixture, mask, {1, 6, 3}, choice_of(128), head_by_head());
  const Calls calls(test_case);
  const OwnedStream stream;
  const CapturedGraph graph(
      stream, [&] { return calls.run(test_case, stream.get()); }, 2);
  for (const unsigned char byte : {0xff, 0x41, 0xff}) {
    poison(test_case, byte);
    graph.replay();
    calls.expect_written_meanwhile();
    EXPECT_EQ(fetched_error(test_case), "") << int{byte};
  }
}

}  // namespace
}  // namespace fdma
