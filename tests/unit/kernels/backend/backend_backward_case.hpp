// One backward call on a backend fixture, with everything around it: the forward call whose results
// it takes, tensors, plan, reference gradients, bounds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend_attention_case.hpp"

namespace fdma::testing {

/// What a backward case has besides the choice of its forward call (whose lse it always wants).
struct BackwardChoice {
  bool has_dlse = true;
  bool wants_dbias = true;  ///< where there is a bias
  bool are_gradients_float32 = false;
  bool deterministic = false;
  BlockShape tile{0, 0};  ///< of the backward plan
  PlanForm form = PlanForm::segments;
  ColumnMode columns = ColumnMode::automatic;      ///< of the backward plan
  std::int64_t l2_bytes = PlanOptions().l2_bytes;  ///< the same
};
std::string to_string(const BackwardChoice& choice);

/// Inputs as those of BackendAttentionCase; gradients are poisoned.
class BackendBackwardCase {
 public:
  /// Plans for the machine's backend and runs the forward call; throws where that fails. Borrows
  /// machine and mask.
  BackendBackwardCase(BackendFixture& fixture, const MaskCase& mask, const CaseHeads& heads,
                      CaseChoice choice, const BackwardChoice& backward = {});

  const AttentionPlan& plan() const { return plan_; }
  BackendAttentionCase& forward() { return forward_; }
  /// Tensors where the machine computes.
  BackwardTensors tensors() const;
  BackwardOptions options() const;
  BackendTensor& dout() { return dout_; }
  BackendTensor& dlse() { return dlse_; }
  BackendTensor& dq() { return dq_; }
  BackendTensor& dk() { return dk_; }
  BackendTensor& dv() { return dv_; }
  BackendTensor& dbias() { return dbias_; }

  /// After an input of the forward call has changed: that call again.
  void run_forward();
  /// Poisons, runs, fetches. The result is that of attention_backward.
  Result<void> run(unsigned char byte = 0xff);
  Result<void> run(const BackwardOptions& options, unsigned char byte = 0xff);
  /// The same by another plan, of the same shape or longer.
  Result<void> run(const AttentionPlan& plan, const BackwardTensors& tensors,
                   const BackwardOptions& options, unsigned char byte = 0xff);

  /// The same by anything else that computes gradients.
  Result<void> run_by(const std::function<Result<void>(const BackwardTensors&)>& call,
                      unsigned char byte = 0xff);

  /// What is wrong with the gradients that were fetched; empty if nothing. Errors are bounded as
  /// TensorError says, against gradients in float64; dq of rows without keys, and dk, dv and
  /// dkey_bias of keys that no row sees are exactly 0; nothing was written beside the valid
  /// elements of the gradients.
  std::string check();

  /// How far gradients of the bias that were fetched are from adding up to the gradients of lse, as
  /// they do where rows of dS do: the most of any KV head. Every row must see a key.
  double surplus() const;

  /// The bytes of all gradients.
  std::vector<unsigned char> result_bytes() const;

 private:
  Result<void> fetched();

  BackendFixture& fixture_;
  const MaskCase& mask_;
  CaseChoice choice_;
  BackwardChoice backward_;
  BackendAttentionCase forward_;
  AttentionPlan plan_;
  BackendTensor dout_, dlse_, dq_, dk_, dv_, dbias_;
};

/// Plans, runs and checks; empty if all is well. Adds what the backward plan has to `counts`, if
/// given.
std::string check_backward_case(BackendFixture& fixture, const MaskCase& mask,
                                const CaseHeads& heads, const CaseChoice& choice,
                                const BackwardChoice& backward = {}, PlanCounts* counts = nullptr);

/// What is wrong with what DeltaSource says, tried with a bias and 16-bit tensors; empty if
/// nothing.
std::string delta_error(BackendFixture& fixture, CaseChoice choice,
                        const BackwardChoice& backward = {});

}  // namespace fdma::testing
