// A weight of the test's own: pairs of odd q + k are dropped and the others count twice, as dropout
// does with a half of the probabilities. Nothing in the library knows it.
#include <gtest/gtest.h>

#include "sm90/backward/kernel.cuh"
#include "sm90/forward/kernel.cuh"
#include "sm90/policy_case.hpp"

namespace fdma {
namespace {

using gpu_test::CellRules;
using gpu_test::PolicyCase;
using gpu_test::PolicyErrors;

struct EvenPairs {
  static constexpr bool kNeedsPlaces = true, kDrops = false;

  template <class Place>
  __device__ __forceinline__ static float weighted(float value, const Place& place) {
    const gpu::CellPlace cell = place();
    return ((cell.query + cell.key) & 1) == 0 ? 2.0f * value : 0.0f;
  }
};

CellRules rules() {
  CellRules rules;
  rules.weight = [](int, int query, int key) { return (query + key) % 2 == 0 ? 2.0 : 0.0; };
  return rules;
}

constexpr int kDim = PolicyCase::kHeadDim;

sm90::ForwardKernel forward_kernel() {
  return {kDim, kDim, sm90::ForwardLayout<kDim, kDim>::kStepKeys,
          sm90::launch_forward<__nv_bfloat16, gpu::LinearScore, EvenPairs, sm90::ContiguousKeys,
                               kDim, kDim>};
}
sm90::BackwardKernel backward_kernel() {
  return {kDim,
          sm90::BackwardLayout<kDim, kDim>::kStepQueries,
          nullptr,
          {sm90::launch_backward<__nv_bfloat16, gpu::LinearScore, EvenPairs, sm90::KeyTiles,
                                 sm90::Gradients::all, kDim, kDim>,
           nullptr}};
}

TEST(WeightPolicy, WeighsProbabilitiesAfterTheSum) {
  FDMA_SKIP_WITHOUT_HOPPER();
  PolicyCase test_case;
  test_case.forward(forward_kernel());
  const PolicyErrors errors = test_case.forward_errors(rules());
  EXPECT_LT(errors.out, 0.01);
  EXPECT_LT(errors.lse, 0.01);
  const PolicyErrors unweighted = test_case.forward_errors(CellRules{});
  EXPECT_GT(unweighted.out, 0.1);
  EXPECT_LT(unweighted.lse, 0.01);  // rows are summed before
}

TEST(WeightPolicy, HasGradients) {
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
