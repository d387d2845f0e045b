// One attention call on a backend fixture, with its tensors, plan, reference and error bounds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend_fixture.hpp"
#include "backend/backend_tensor.hpp"
#include "backend/mask_cases.hpp"
#include "backend/part_arrays.hpp"

namespace fdma::testing {

/// The choices of a case besides its mask and heads: what it computes, and the layout of tensors.
struct CaseChoice {
  DType dtype = DType::bfloat16;
  std::int32_t head_dim = 128;
  std::int32_t head_dim_v = 0;  ///< 0: head_dim
  Layout layout = Layout::rows;
  bool has_bias = false;
  bool wants_lse = true;
  bool wants_out_low = false;  ///< for 16-bit tensors only; ignored for others
  float softmax_scale = 0;     ///< 0: the default
  float softcap = 0;           ///< 0: none
  std::uint64_t seed = 1;
  double q_scale = 1;  ///< a larger one spreads the logits further apart
  double bias_scale = 1;
  /// The number of rows to compare in each head, those at the edges of tiles first; 0 means all.
  std::int64_t rows_per_head = 0;
  SplitMode split = SplitMode::automatic;
  PackMode pack = PackMode::automatic;
  ColumnMode columns = ColumnMode::automatic;
  PlanForm form = PlanForm::segments;
  BlockShape tile{0, 0};  ///< option of the plan
  PartChoice parts = {};
};
std::string to_string(const CaseChoice& choice);

/// The heads of a case. `batch` counts only if the mask has one batch element; otherwise the mask
/// gives the batch.
struct CaseHeads {
  std::int64_t batch;
  std::int32_t heads_q;
  std::int32_t heads_kv;
};

/// A bound on the error of out + out_low for values below 8. It exceeds the rounding error of the
/// pair in each 16-bit type.
inline constexpr double kOutLowError = 4e-5;

/// Valid elements of inputs are random. Beyond the lengths of a batch element and around the
/// storage, inputs are NaN. Outputs are poisoned.
class BackendAttentionCase {
 public:
  /// Plans for the backend of the fixture; throws if that fails. Borrows the fixture and the mask.
  BackendAttentionCase(BackendFixture& fixture, const MaskCase& mask, const CaseHeads& heads,
                       const CaseChoice& choice);

  const AttentionPlan& plan() const { return plan_; }
  /// The tensors in the memory of the fixture.
  AttentionTensors tensors() const;
  AttentionOptions options() const;
  BackendTensor& q() { return q_; }
  BackendTensor& k() { return k_; }
  BackendTensor& v() { return v_; }
  BackendTensor& bias() { return bias_; }
  BackendTensor& out() { return out_; }
  BackendTensor& lse() { return lse_; }
  BackendTensor& out_low() { return out_low_; }
  /// The arrays of the newer parts; null if the case has none.
  PartArrays* parts() const { return parts_.get(); }

  /// Sets every byte of the outputs; fetch() brings them back after a run.
  void poison(unsigned char byte);
  void fetch();
  /// Poisons, runs, fetches. The result is that of attention_forward.
  Result<void> run(unsigned char byte = 0xff);

  /// Says what is wrong with the outputs that were fetched; empty if nothing is. TensorError bounds
  /// the errors. Rows without keys must be exactly 0 and -inf. out_low must not be larger than the
  /// rounding error of out. Nothing may be written except the valid elements of the outputs.
  std::string check();

  /// The largest error of out + out_low against float64, for magnitudes about 1.
  double error_with_out_low();

  /// The bytes of out and, if the case wants them, of lse and out_low.
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
  std::unique_ptr<PartArrays> parts_;
};

/// Adds the counts of tiles by kind and of empty work tiles to `sum`.
void add_counts(PlanCounts& sum, const PlanCounts& counts);

/// Plans, runs and checks; empty if all is well. Adds the counts of the plan to `counts`, if given.
std::string check_case(BackendFixture& fixture, const MaskCase& mask, const CaseHeads& heads,
                       const CaseChoice& choice, PlanCounts* counts = nullptr);

}  // namespace fdma::testing
