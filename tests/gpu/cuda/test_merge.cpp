// merge on the GPU, by the cases of the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/merge_case.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "fdma/kernels/merge.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using gpu_test::CapturedGraph;
using gpu_test::GpuFixture;
using gpu_test::OwnedStream;
using ::testing::HasSubstr;
using testing::Layout;
using testing::MergeCase;
using testing::MergeProblem;
using testing::Sinks;

TEST(MergeOnGpu, IsAttentionOverAllKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::uint64_t seed = 1;
  for (const MergeProblem& problem : testing::merge_problems()) {
    GpuFixture fixture;
    MergeCase test_case(fixture, problem, seed++);
    const auto ran = merge(test_case.tensors(), Stream{});
    ASSERT_TRUE(ran) << ran.error().message;
    ASSERT_EQ(test_case.check(), "") << to_string(problem);
  }
}

TEST(MergeOnGpu, HasTheSameBitsInAGraph) {
  FDMA_SKIP_WITHOUT_HOPPER();
  MergeProblem problem;
  problem.dtype = DType::bfloat16;
  problem.num_parts = 6;
  problem.q_len = 700;
  problem.sinks = Sinks::per_head;
  GpuFixture fixture;
  MergeCase test_case(fixture, problem, 3);
  const OwnedStream stream;
  ASSERT_TRUE(merge(test_case.tensors(), stream.get()));
  stream.wait();
  const std::vector<unsigned char> first = test_case.result_bytes();
  const CapturedGraph graph(stream, [&] { return merge(test_case.tensors(), stream.get()); });
  graph.replay();
  EXPECT_EQ(test_case.result_bytes(), first);
  EXPECT_EQ(test_case.check(), "");
}

TEST(MergeOnGpu, MakesRowsNanWhereLseIsNotFinite) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  MergeCase test_case(fixture, MergeProblem{}, 1);
  test_case.set_lse(1, 0, 0, 0, std::nan(""));
  test_case.set_lse(0, 1, 4, 2, std::numeric_limits<double>::infinity());
  ASSERT_TRUE(merge(test_case.tensors(), Stream{}));
  test_case.fetch();
  EXPECT_TRUE(std::isnan(test_case.out_at(0, 0, 0, 63)));
  EXPECT_TRUE(std::isnan(test_case.lse_at(0, 0, 0)));
  EXPECT_TRUE(std::isnan(test_case.out_at(1, 4, 2, 0)));
  EXPECT_FALSE(std::isnan(test_case.out_at(0, 1, 0, 0)));
}

TEST(MergeOnGpu, RejectsTensorsOnTheHost) {
  FDMA_SKIP_WITHOUT_HOPPER();
  testing::CpuFixture fixture;
  MergeCase test_case(fixture, MergeProblem{}, 1);
  const auto ran = merge(test_case.tensors(), Stream{});
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::unsupported);
  EXPECT_THAT(ran.error().message, HasSubstr("parts[0].out: expected a tensor on a CUDA device"));
}

}  // namespace
}  // namespace fdma
