// One attention call with its tensors, plan, reference and error bounds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention_reference.hpp"
#include "backend/mask_cases.hpp"
#include "backend/test_tensor.hpp"
#include "fdma/kernels/attention.hpp"

namespace fdma::testing {

/// The memory layout and contents of the tensors of a case.
struct TensorChoice {
  Order order = Order::rows;
  GuardSide side = GuardSide::end;
  std::uint64_t seed = 1;
  double q_scale = 1;  ///< a larger one spreads the logits further apart
  double bias_scale = 1;
  float softcap = 2.5F;  ///< where the score has one
};

/// Tensors for a shape. Valid elements of inputs are random and the others NaN; outputs are
/// poisoned.
class AttentionCase {
 public:
  AttentionCase(AttentionShape shape, ScoreSpec score, const TensorChoice& choice);

  const AttentionShape& shape() const { return shape_; }
  TestTensor& q() { return *q_; }
  TestTensor& k() { return *k_; }
  TestTensor& v() { return *v_; }
  TestTensor& bias() { return *bias_; }
  TestTensor& out() { return *out_; }
  TestTensor& lse() { return *lse_; }
  AttentionTensors tensors() const;

  /// Poisons the outputs with `poison` and runs with the case's softcap. The result is that of attention_forward.
  Result<void> run(const AttentionPlan& plan, AttentionOptions options = {},
                   unsigned char poison = 0xff);

  /// One head of the inputs, for the reference; borrows the cells.
  reference::HeadProblem problem(std::int64_t b, std::int64_t h, const MaskCase& mask,
                                 float softmax_scale = 0) const;

  /// Says what is wrong with the outputs of the last run; empty if nothing is. The errors of out
  /// and lse (max abs over the tensor) may be at most twice those of the explicit computation plus
  /// 1e-5 times the tensor's largest magnitude. Rows without keys must be exactly 0 and -inf.
  /// Nothing may be written except valid elements.
  std::string compare(const MaskCase& mask, float softmax_scale = 0) const;

  /// The bytes of out and lse.
  std::vector<unsigned char> result_bytes() const;

 private:
  AttentionShape shape_;
  ScoreSpec score_;
  float softcap_;  ///< 0: none
  unsigned char poison_ = 0xff;
  std::unique_ptr<TestTensor> q_, k_, v_, bias_, out_, lse_;
};

/// Plans, runs with one thread and compares; empty if all is well.
std::string check_attention(const MaskCase& mask, const AttentionShape& shape, ScoreSpec score,
                            const TensorChoice& choice, const PlanOptions& options = {},
                            float softmax_scale = 0);

}  // namespace fdma::testing
