// One attention call on a backend fixture, with everything around it: tensors, plan, reference,
// bounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend_fixture.hpp"
#include "backend/backend_tensor.hpp"
#include "backend/mask_cases.hpp"

namespace fdma::testing {

/// What a case computes besides mask and heads, and how its tensors lie.
struct CaseChoice {
  DType dtype = DType::bfloat16;
  std::int32_t head_dim = 128;
  std::int32_t head_dim_v = 0;  ///< 0: head_dim
  Layout layout = Layout::rows;
  bool has_bias = false;
  bool wants_lse = true;
  bool wants_out_low = false;  ///< of out; of 16-bit tensors only, ignored for others
  float softmax_scale = 0;     ///< 0: the default
  std::uint64_t seed = 1;
  double q_scale = 1;  ///< larger: logits further apart
  double bias_scale = 1;
  /// Compare this many rows of each head, those at the edges of tiles first; 0: all.
  std::int64_t rows_per_head = 0;
  SplitMode split = SplitMode::automatic;
  PackMode pack = PackMode::automatic;
  ColumnMode columns = ColumnMode::automatic;
};
std::string to_string(const CaseChoice& choice);

/// Heads of a case; batch is the mask's, or `batch` where the mask has one element.
struct CaseHeads {
  std::int64_t batch;
  std::int32_t heads_q;
  std::int32_t heads_kv;
};

/// More than 16 bits of each type can be off together, of values below 8.
inline constexpr double kOutLowError = 4e-5;

/// Inputs are random where elements exist and NaN elsewhere, beyond the lengths of their batch
/// element and around the storage; outputs are poisoned.
class BackendAttentionCase {
 public:
  /// Plans for the machine's backend; throws where that fails. Borrows machine and mask.
  BackendAttentionCase(BackendFixture& fixture, const MaskCase& mask, const CaseHeads& heads,
                       const CaseChoice& choice);

  const AttentionPlan& plan() const { return plan_; }
  /// Tensors where the machine computes.
  AttentionTensors tensors() const;
  AttentionOptions options() const;
  BackendTensor& q() { return q_; }
  BackendTensor& k() { return k_; }
  BackendTensor& v() { return v_; }
  BackendTensor& bias() { return bias_; }
  BackendTensor& out() { return out_; }
  BackendTensor& lse() { return lse_; }
  BackendTensor& out_low() { return out_low_; }

  /// Sets every byte of the outputs; fetch() brings them back after a run.
  void poison(unsigned char byte);
  void fetch();
  /// Poisons, runs, fetches. The result is that of attention_forward.
  Result<void> run(unsigned char byte = 0xff);

  /// What is wrong with the outputs that were fetched; empty if nothing. Errors are bounded as
  /// TensorError says; rows without keys are exactly 0 and -inf; out_low is not larger than
  /// what rounding takes; nothing was written beside the valid elements of the outputs.
  std::string check();

  /// How far out and out_low together are from float64, at most, for magnitudes about 1.
  double error_with_out_low();

  /// The bytes of out and, where wanted, lse and out_low.
  std::vector<unsigned char> result_bytes() const;

  /// The rows to compare.
  ReferenceProblem problem() const;

 private:
  BackendFixture& fixture_;
  const MaskCase& mask_;
  CaseChoice choice_;
  AttentionShape shape_;
  AttentionPlan plan_;
  bool has_out_low() const { return choice_.wants_out_low && choice_.dtype != DType::float32; }

  BackendTensor q_, k_, v_, bias_, out_, lse_, out_low_;
};

/// Tiles by kind and empty work tiles.
void add_counts(PlanCounts& sum, const PlanCounts& counts);

/// Plans, runs and checks; empty if all is well. Adds what the plan has to `counts`, if given.
std::string check_case(BackendFixture& fixture, const MaskCase& mask, const CaseHeads& heads,
                       const CaseChoice& choice, PlanCounts* counts = nullptr);

}  // namespace fdma::testing
