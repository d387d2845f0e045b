// merge on the host, against its formula and against attention over all keys in float64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "backend/merge_case.hpp"
#include "fdma/kernels/merge.hpp"

namespace fdma {
namespace {

using testing::CpuFixture;
using ::testing::HasSubstr;
using testing::Layout;
using testing::MergeCase;
using testing::MergeProblem;
using testing::Sinks;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Merge, IsAttentionOverAllKeys) {
  std::uint64_t seed = 1;
  for (const MergeProblem& problem : testing::merge_problems()) {
    CpuFixture fixture;
    MergeCase test_case(fixture, problem, seed++);
    const auto ran = merge(test_case.tensors());
    ASSERT_TRUE(ran) << ran.error().message;
    ASSERT_EQ(test_case.check(), "") << to_string(problem);
  }
}

// One row of one head with one column.
struct OneRow {
  std::vector<float> outs, lses;
  float sink = -kInfinity, out = -1, lse = -1;

  Result<void> run() {
    const std::int64_t ones[] = {1, 1, 1, 1};
    std::vector<MergePart> parts;
    for (std::size_t i = 0; i < outs.size(); ++i) {
      parts.push_back({make_contiguous_view(&outs[i], DType::float32, 4, ones),
                       make_contiguous_view(&lses[i], DType::float32, 3, ones)});
    }
    return merge({parts, make_contiguous_view(&sink, DType::float32, 1, ones),
                  make_contiguous_mutable_view(&out, DType::float32, 4, ones),
                  make_contiguous_mutable_view(&lse, DType::float32, 3, ones)});
  }
};

TEST(Merge, IsTheExampleOfItsHeader) {
  OneRow row{{1, 4}, {0, std::log(2.0F)}};
  ASSERT_TRUE(row.run());
  EXPECT_FLOAT_EQ(row.out, 3);
  EXPECT_FLOAT_EQ(row.lse, std::log(3.0F));
  row.sink = std::log(3.0F);
  ASSERT_TRUE(row.run());
  EXPECT_FLOAT_EQ(row.out, 1.5);
  EXPECT_FLOAT_EQ(row.lse, std::log(3.0F));
}

TEST(Merge, TakesNothingOfPartsWithoutKeys) {
  OneRow row{{std::nanf(""), 4}, {-kInfinity, -80}};
  ASSERT_TRUE(row.run());
  EXPECT_EQ(row.out, 4);
  EXPECT_EQ(row.lse, -80);
  for (const float sink : {-kInfinity, 0.0F, kInfinity}) {
    OneRow empty{{std::nanf(""), 4}, {-kInfinity, -kInfinity}, sink};
    ASSERT_TRUE(empty.run());
    EXPECT_EQ(empty.out, 0);
    EXPECT_EQ(empty.lse, -kInfinity);
  }
}

TEST(Merge, DoesNotOverflow) {
  OneRow row{{1, 3, 5}, {3e38F, 3e38F, -3e38F}};
  ASSERT_TRUE(row.run());
  EXPECT_FLOAT_EQ(row.out, 2);
  EXPECT_EQ(row.lse, 3e38F);
  row.sink = kInfinity;
  ASSERT_TRUE(row.run());
  EXPECT_EQ(row.out, 0);
}

TEST(Merge, MakesRowsNanWhereLseIsNotFinite) {
  for (const float lse : {std::nanf(""), kInfinity}) {
    OneRow row{{1, 4}, {0, lse}};
    ASSERT_TRUE(row.run());
    EXPECT_TRUE(std::isnan(row.out));
    EXPECT_TRUE(std::isnan(row.lse));
  }
}

TEST(Merge, HasTheSameBitsForAnyNumberOfThreads) {
  MergeProblem problem;
  problem.q_len = 500;
  problem.num_parts = 5;
  problem.sinks = Sinks::per_head;
  std::vector<unsigned char> first;
  for (const int num_threads : {1, 2, 0}) {
    CpuFixture fixture;
    MergeCase test_case(fixture, problem, 7);
    ASSERT_TRUE(merge(test_case.tensors(), num_threads));
    const std::vector<unsigned char> bytes = test_case.result_bytes();
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << num_threads;
  }
}

TEST(Merge, IsEmptyForNoRows) {
  float unread = 0;
  const std::int64_t extents[] = {2, 0, 3, 8}, row_extents[] = {2, 3, 0};
  const std::vector<MergePart> parts(
      2, {make_contiguous_view(&unread, DType::float32, 4, extents),
          make_contiguous_view(&unread, DType::float32, 3, row_extents)});
  EXPECT_TRUE(merge({parts,
                     {},
                     make_contiguous_mutable_view(&unread, DType::float32, 4, extents),
                     make_contiguous_mutable_view(&unread, DType::float32, 3, row_extents)}));
}

TEST(Merge, RejectsByName) {
  struct Refusal {
    const char* named;
    ErrorCode code;
    std::function<void(MergeTensors&, std::vector<MergePart>&)> change;
  };
  using Tensors = MergeTensors&;
  using Parts = std::vector<MergePart>&;
  const Refusal refusals[] = {
      {"parts: expected 1 to 32 of them, got 0", ErrorCode::invalid_argument,
       [](Tensors, Parts parts) { parts.clear(); }},
      {"parts: expected 1 to 32 of them, got 33", ErrorCode::invalid_argument,
       [](Tensors, Parts parts) { parts.resize(33, parts[0]); }},
      {"parts[0].out: expected [batch, q_len, heads_q, head_dim_v], got", ErrorCode::shape_mismatch,
       [](Tensors, Parts parts) { parts[0].out.rank = 3; }},
      {"parts[0].out: expected float32, float16 or bfloat16, got float64", ErrorCode::unsupported,
       [](Tensors, Parts parts) { parts[0].out.dtype = DType::float64; }},
      {"parts[1].out: expected float32, got float16", ErrorCode::shape_mismatch,
       [](Tensors, Parts parts) { parts[1].out.dtype = DType::float16; }},
      {"parts[1].out: expected [batch, q_len, heads_q, head_dim_v] = [2, 23, 3, 64], got [2, 22, "
       "3, "
       "64]",
       ErrorCode::shape_mismatch, [](Tensors, Parts parts) { parts[1].out.extents[1] = 22; }},
      {"parts[1].out: expected stride 1", ErrorCode::invalid_argument,
       [](Tensors, Parts parts) { parts[1].out.strides[3] = 2; }},
      {"parts[1].out: data is null", ErrorCode::invalid_argument,
       [](Tensors, Parts parts) { parts[1].out.data = nullptr; }},
      {"parts[1].out: expected a tensor on the host, got one on a CUDA device",
       ErrorCode::unsupported, [](Tensors, Parts parts) { parts[1].out.device = Device::cuda; }},
      {"parts[0].lse: expected [batch, heads_q, q_len] = [2, 3, 23], got [2, 4, 23]",
       ErrorCode::shape_mismatch, [](Tensors, Parts parts) { parts[0].lse.extents[1] = 4; }},
      {"parts[0].lse: expected float32, got bfloat16", ErrorCode::shape_mismatch,
       [](Tensors, Parts parts) { parts[0].lse.dtype = DType::bfloat16; }},
      {"parts[0].lse: data is not aligned", ErrorCode::invalid_argument,
       [](Tensors, Parts parts) {
         parts[0].lse.data = static_cast<const char*>(parts[0].lse.data) + 1;
       }},
      {"sinks: expected [heads_q] = [3], got [4]", ErrorCode::shape_mismatch,
       [](Tensors tensors, Parts) { tensors.sinks.extents[0] = 4; }},
      {"sinks: expected [batch, heads_q, q_len] = [2, 3, 23]", ErrorCode::shape_mismatch,
       [](Tensors tensors, Parts) { tensors.sinks.rank = 3; }},
      {"sinks: expected float32, got float16", ErrorCode::shape_mismatch,
       [](Tensors tensors, Parts) { tensors.sinks.dtype = DType::float16; }},
      {"out: expected float32, got bfloat16", ErrorCode::shape_mismatch,
       [](Tensors tensors, Parts) { tensors.out.dtype = DType::bfloat16; }},
      {"out: strides put several elements at one address", ErrorCode::invalid_argument,
       [](Tensors tensors, Parts) { tensors.out.strides[0] = 0; }},
      {"lse: expected [batch, heads_q, q_len] = [2, 3, 23]", ErrorCode::shape_mismatch,
       [](Tensors tensors, Parts) { tensors.lse.extents[2] = 24; }},
      {"lse: strides put several elements at one address", ErrorCode::invalid_argument,
       [](Tensors tensors, Parts) { tensors.lse.strides[2] = 0; }},
  };
  MergeProblem problem;
  problem.sinks = Sinks::per_head;
  for (const Refusal& refusal : refusals) {
    CpuFixture fixture;
    MergeCase test_case(fixture, problem, 1);
    const std::vector<unsigned char> before = test_case.result_bytes();
    MergeTensors tensors = test_case.tensors();
    std::vector<MergePart> parts(tensors.parts.begin(), tensors.parts.end());
    refusal.change(tensors, parts);
    tensors.parts = parts;
    const auto ran = merge(tensors);
    ASSERT_FALSE(ran) << refusal.named;
    EXPECT_EQ(ran.error().code, refusal.code) << ran.error().message;
    EXPECT_THAT(ran.error().message, HasSubstr(refusal.named));
    EXPECT_EQ(test_case.result_bytes(), before) << refusal.named;
  }
  CpuFixture fixture;
  MergeCase test_case(fixture, problem, 1);
  EXPECT_THAT(merge(test_case.tensors(), -1).error().message,
              HasSubstr("num_threads: expected 0 or more, got -1"));
  const Stream stream = nullptr;
  EXPECT_EQ(merge(test_case.tensors(), stream).error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace fdma
