// run and bench with --keep-window: Dynamic Mask Attention over the keys that a mask shows.
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

/// What these options say; w 0: no selection.
struct SelectionChoice {
  std::int64_t w = 0;
  ScoreBias bias = ScoreBias::exp;
  std::string scores;  ///< FILE.h5:/DATASET, or empty: from v, dt_proj and a_coef
};
/// Failure: usage.
Outcome<SelectionChoice> selection_choice(const Arguments& arguments);

/// Scores, selection and attention in one call, with tensors of its own beside those of a problem:
/// scores of the file, or dt_proj and a_coef beside q, k and v there, or random ones.
class DynamicMaskCall {
 public:
  /// `backend` auto: the best one that takes the tensors and the mask. Borrows nothing. Failures:
  /// those of DynamicMaskAttention, of files, usage.
  static Outcome<DynamicMaskCall> make(const SelectionChoice& choice, const BlockMask& among,
                                       const AttentionProblem& problem, const PlanChoice& plans,
                                       int num_threads);

  Backend backend() const { return attention_.spec().backend; }
  /// One call; its seconds, as PlacedPlan::run has them.
  Outcome<double> run(const PlacedTensors& tensors, const AttentionOptions& options);
  /// What the scores of the last call select, found again on the host, as a mask of all query
  /// heads.
  Outcome<BlockMask> selected();
  /// Attention over that mask by itself, for its counts and its check. Failures: those of
  /// make_plan.
  Outcome<AttentionPlan> plan_of(const BlockMask& selected, const AttentionProblem& problem) const;
  /// What was added to logits: the scores that selected() has brought to the host, or nothing.
  TensorView bias() const;
  /// "2,048 keys a query by exp scores of v, read by gather"
  std::string text() const;
  Json json() const;

 private:
  explicit DynamicMaskCall(DynamicMaskAttention attention) : attention_(std::move(attention)) {}
  Status place(OwnedTensor& tensor, TensorView& view);

  DynamicMaskAttention attention_;
  std::vector<ColumnIntervals> masks_;     ///< M
  std::vector<std::int32_t> mask_of_;      ///< of each batch element and KV head
  bool is_given_ = false;                  ///< the scores are
  OwnedTensor scores_, dt_proj_, a_coef_;  ///< on the host
  DynamicMaskTensors tensors_{};  ///< where the call runs; q, k, v, out and lse are each call's
  std::vector<DeviceMemory> on_device_;
  std::optional<StreamTimer> timer_;
};

}  // namespace fdma::maskc
