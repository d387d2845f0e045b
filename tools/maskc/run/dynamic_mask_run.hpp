// run and bench with --keep-window: Dynamic Mask Attention over the keys that a mask lets a query
// see.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fdma/kernels/dynamic_mask_attention.hpp"
#include "run/attention_input.hpp"
#include "run/attention_run.hpp"

namespace fdma::maskc {

/// --keep-window, --score-bias, --scores.
std::vector<OptionSpec> dynamic_mask_options();

/// The choice that these options make; w is 0 without a selection.
struct SelectionChoice {
  std::int64_t w = 0;
  ScoreBias bias = ScoreBias::exp;
  std::string scores;  ///< FILE.h5:/DATASET; empty: computed from v, dt_proj, a_coef
};
/// Failure: usage.
Outcome<SelectionChoice> selection_choice(const Arguments& arguments);

/// Scores, selection and attention in one call. The call has tensors of its own besides those of a
/// problem: scores from the file, or dt_proj and a_coef from the file of q, k and v, or random
/// ones.
class DynamicMaskCall {
 public:
  /// With `backend` auto, the backend is the best one that takes the tensors and the mask. Borrows
  /// nothing. Failures: those of DynamicMaskAttention and of files; usage.
  static Outcome<DynamicMaskCall> make(const SelectionChoice& choice, const BlockMask& among,
                                       const AttentionProblem& problem, const PlanChoice& plans,
                                       int num_threads);

  Backend backend() const { return attention_.spec().backend; }
  bool is_on_gpu() const { return backend().traits().device == Device::cuda; }
  /// Makes one call and returns its seconds, measured as TimedPlan::run does.
  Outcome<double> run(const PlacedTensors& tensors, const AttentionOptions& options);
  /// The selection by the scores of the last call, computed again on the host, as a mask of all
  /// query heads.
  Outcome<BlockMask> selected();
  /// A plan of attention over that mask alone, for its counts and its check. Failures: those of
  /// make_plan.
  Outcome<std::shared_ptr<const AttentionPlan>> plan_of(const BlockMask& selected,
                                                        const AttentionProblem& problem) const;
  /// The bias that the call added to logits: the scores that selected() has copied to the host, or
  /// nothing.
  TensorView bias() const;
  /// "2,048 keys a query by exp scores of v, read by gather"
  std::string text() const;
  Json json() const;

 private:
  explicit DynamicMaskCall(DynamicMaskAttention attention) : attention_(std::move(attention)) {}
  Outcome<MutableTensorView> place(OwnedTensor& tensor);

  DynamicMaskAttention attention_;
  std::vector<ColumnIntervals> masks_;     ///< M
  std::vector<std::int32_t> mask_of_;      ///< index into masks_ of each batch element and KV head
  bool is_given_ = false;                  ///< the scores are given
  OwnedTensor scores_, dt_proj_, a_coef_;  ///< on the host
  DynamicMaskTensors tensors_{};  ///< where the call runs; q, k, v, out and lse are each call's
  std::vector<DeviceMemory> on_device_;
  std::optional<StreamTimer> timer_;
};

}  // namespace fdma::maskc
