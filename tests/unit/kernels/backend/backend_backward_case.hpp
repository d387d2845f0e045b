// One backward call on a machine, with everything around it: the forward call whose results it
// takes, tensors, plan, reference gradients, bounds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend_attention_case.hpp"

namespace fdma::testing {

/// What a backward trial has besides the choice of its forward call (whose lse it always wants).
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

/// Inputs as those of AttentionTrial; gradients are poisoned.
class BackwardTrial {
 public:
  /// Plans for the machine's backend and runs the forward call; throws where that fails. Borrows
  /// machine and mask.
  BackwardTrial(AttentionMachine& machine, const MaskCase& mask, const TrialHeads& heads,
                TrialChoice choice, const BackwardChoice& backward = {});

  const AttentionPlan& plan() const { return plan_; }
  AttentionTrial& forward() { return forward_; }
  /// Tensors where the machine computes.
  BackwardTensors tensors() const;
  BackwardOptions options() const;
  TrialTensor& dout() { return dout_; }
  TrialTensor& dlse() { return dlse_; }
  TrialTensor& dq() { return dq_; }
  TrialTensor& dk() { return dk_; }
  TrialTensor& dv() { return dv_; }
  TrialTensor& dbias() { return dbias_; }

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

  AttentionMachine& machine_;
  const MaskCase& mask_;
  TrialChoice choice_;
  BackwardChoice backward_;
  AttentionTrial forward_;
  AttentionPlan plan_;
  TrialTensor dout_, dlse_, dq_, dk_, dv_, dbias_;
};

/// Plans, runs and checks; empty if all is well. Adds what the backward plan has to `counts`, if
/// given.
std::string check_backward_trial(AttentionMachine& machine, const MaskCase& mask,
                                 const TrialHeads& heads, const TrialChoice& choice,
                                 const BackwardChoice& backward = {}, PlanCounts* counts = nullptr);

/// What is wrong with what RowSums says, tried with a bias and 16-bit tensors; empty if nothing.
std::string row_sums_error(AttentionMachine& machine, TrialChoice choice,
                           const BackwardChoice& backward = {});

}  // namespace fdma::testing
