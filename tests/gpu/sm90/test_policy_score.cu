// A score of the test's own: a slope for each query head times the distance of key and query is
// added to the logit, as ALiBi does. Nothing in the library knows it.
#include <gtest/gtest.h>

#include "sm90/backward/kernel.cuh"
#include "sm90/forward/kernel.cuh"
#include "sm90/policy_case.hpp"

namespace fdma {
namespace {

using gpu_test::CellRules;
using gpu_test::PolicyCase;
using gpu_test::PolicyErrors;

constexpr float kSlope = 0.01F;  // of head 0; head h has (h + 1) times as much. An argument

struct SlopedScore : gpu::LinearScore {
  static constexpr bool kIsLinear = false, kNeedsPlaces = true;

  struct Arguments {
    float slope;
  };
  static Arguments arguments(const gpu::ScoreNumbers&) { return {kSlope}; }

  template <class Place>
  __device__ __forceinline__ static float logit(float product, float scale_log2, float offset,
                                                const Arguments& arguments, const Place& place) {
    constexpr float kLog2E = 1.44269504088896340736f;
    const gpu::CellPlace cell = place();
    const auto distance = static_cast<float>((cell.head + 1) * (cell.key - cell.query));
    return fmaf(product, scale_log2, fmaf(arguments.slope * kLog2E, distance, offset));
  }
};

CellRules rules() {
  CellRules rules;
  rules.added_logit = [](int head, int query, int key) {
    return double{kSlope} * (head + 1) * (key - query);
  };
  return rules;
}

constexpr int kDim = PolicyCase::kHeadDim;

sm90::ForwardKernel forward_kernel() {
  return {kDim, kDim, sm90::ForwardLayout<kDim, kDim>::kStepKeys,
          sm90::launch_forward<__nv_bfloat16, SlopedScore, gpu::NoWeight, sm90::ContiguousKeys,
                               kDim, kDim>};
}
sm90::BackwardKernel backward_kernel() {
  return {kDim,
          sm90::BackwardLayout<kDim, kDim>::kStepQueries,
          nullptr,
          {sm90::launch_backward<__nv_bfloat16, SlopedScore, gpu::NoWeight, sm90::KeyTiles,
                                 sm90::Gradients::all, kDim, kDim>,
           nullptr}};
}

TEST(ScorePolicy, AddsASlopeToLogits) {
  FDMA_SKIP_WITHOUT_HOPPER();
  PolicyCase test_case;
  test_case.forward(forward_kernel());
  const PolicyErrors errors = test_case.forward_errors(rules());
  EXPECT_LT(errors.out, 0.01);
  EXPECT_LT(errors.lse, 0.01);
  EXPECT_GT(test_case.forward_errors(CellRules{}).out, 0.1);
}

TEST(ScorePolicy, HasGradients) {
  FDMA_SKIP_WITHOUT_HOPPER();
  PolicyCase test_case;
  test_case.forward(forward_kernel());
  test_case.backward(backward_kernel());
  const PolicyErrors errors = test_case.backward_errors(rules());
  EXPECT_LT(errors.dq, 0.02);
  EXPECT_LT(errors.dk, 0.02);
  EXPECT_LT(errors.dv, 0.02);
  EXPECT_GT(test_case.backward_errors(CellRules{}).dv, 0.1);
}

}  // namespace
}  // namespace fdma
