// One backward call on a backend fixture, with the forward call whose results it takes, its
// tensors, plan, reference gradients and error bounds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend_attention_case.hpp"

namespace fdma::testing {

/// The choices of a backward case besides those of its forward call, whose lse it always wants.
struct BackwardChoice {
  bool has_dlse = true;
  bool wants_dbias = true;           ///< counts only if there is a bias
  bool wants_part_gradients = true;  ///< dbias, drelative and dsinks, where there are such parts
  bool are_gradients_float32 = false;
  bool deterministic = false;
  BlockShape tile{0, 0};  ///< tile of the backward plan
  PlanForm form = PlanForm::segments;
  ColumnMode columns = ColumnMode::automatic;      ///< option of the backward plan
  std::int64_t l2_bytes = PlanOptions().l2_bytes;  ///< option of the backward plan
};
std::string to_string(const BackwardChoice& choice);

/// Inputs are as in BackendAttentionCase; gradients are poisoned.
class BackendBackwardCase {
 public:
  /// Plans for the backend of the fixture and runs the forward call; throws if that fails. Borrows
  /// the fixture and the mask.
  BackendBackwardCase(BackendFixture& fixture, const MaskCase& mask, const CaseHeads& heads,
                      CaseChoice choice, const BackwardChoice& backward = {});

  const AttentionPlan& plan() const { return plan_; }
  BackendAttentionCase& forward() { return forward_; }
  /// The tensors in the memory of the fixture.
  BackwardTensors tensors() const;
  BackwardOptions options() const;
  BackendTensor& dout() { return dout_; }
  BackendTensor& dlse() { return dlse_; }
  BackendTensor& dq() { return dq_; }
  BackendTensor& dk() { return dk_; }
  BackendTensor& dv() { return dv_; }
  BackendTensor& dbias() { return dbias_; }

  /// Runs the forward call again, after one of its inputs has changed.
  void run_forward();
  /// Poisons, runs, fetches. The result is that of attention_backward.
  Result<void> run(unsigned char byte = 0xff);
  Result<void> run(const BackwardOptions& options, unsigned char byte = 0xff);
  /// The same with another plan, for the same shape or a longer one.
  Result<void> run(const AttentionPlan& plan, const BackwardTensors& tensors,
                   const BackwardOptions& options, unsigned char byte = 0xff);

  /// The same with another function that computes gradients.
  Result<void> run_by(const std::function<Result<void>(const BackwardTensors&)>& call,
                      unsigned char byte = 0xff);

  /// Says what is wrong with the gradients that were fetched; empty if nothing is. TensorError
  /// bounds the errors against gradients in float64. dq of rows without keys, and dk, dv and
  /// dkey_bias of keys that no row sees, must be exactly 0. Nothing may be written except the valid
  /// elements of the gradients.
  std::string check();

  /// The largest difference, over the KV heads, between the sum of the fetched gradients of the
  /// bias and the sum of dlse. It is 0 if every row of dS adds up to the dlse of the row. Every row
  /// must see a key.
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

/// Plans, runs and checks; empty if all is well. Adds the counts of the backward plan to `counts`,
/// if given.
std::string check_backward_case(BackendFixture& fixture, const MaskCase& mask,
                                const CaseHeads& heads, const CaseChoice& choice,
                                const BackwardChoice& backward = {}, PlanCounts* counts = nullptr);

/// Tests the documented effect of each DeltaSource with a bias and 16-bit tensors. Says what is
/// wrong; empty if nothing is.
std::string delta_error(BackendFixture& fixture, CaseChoice choice,
                        const BackwardChoice& backward = {});

}  // namespace fdma::testing
