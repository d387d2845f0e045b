// Calls of attention_backward as the verbs make them: the forward call that they follow, the
// tensors of gradients, the time.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "fdma/kernels/attention_backward.hpp"
#include "run/attention_input.hpp"
#include "run/attention_run.hpp"

namespace fdma::maskc {

/// The tensors that a backward call has besides those of the forward call, in the order of the
/// file: dout is that of out, gradients are those of q, k, v and key_bias (float32, where there is
/// one), 0 until they are computed.
struct GradientMemory {
  OwnedTensor dout, dq, dk, dv, dkey_bias;

  /// dout is read from the problem's file (dataset dout) or drawn. Failures: file, unsupported
  /// (memory).
  static Outcome<GradientMemory> fill(const AttentionProblem& problem, int num_threads);
  /// With `forward`: those of the forward call, out and lse written. Borrows.
  BackwardTensors tensors(const AttentionProblem& problem, const AttentionTensors& forward);
};

/// The same where a backend computes, beside the PlacedTensors of the forward call.
class PlacedGradients {
 public:
  /// Borrows both. Failures: unsupported (memory).
  static Outcome<PlacedGradients> make(const PlacedTensors& forward,
                                       const AttentionProblem& problem, GradientMemory& memory);

  const BackwardTensors& on_host() const { return on_host_; }
  const BackwardTensors& in_place() const { return in_place_; }
  /// Brings gradients to the host's memory, where they are not there.
  Status fetch_results() const;

 private:
  BackwardTensors on_host_, in_place_;
  GradientMemory* memory_ = nullptr;
  std::vector<DeviceMemory> copies_;
};

/// Whether gradients are computed, and how.
struct BackwardChoice {
  bool is_backward = false;
  bool is_deterministic = false;  ///< --deterministic
};
OptionSpec deterministic_option();
/// Failures: usage, for --deterministic without gradients, and for gradients with --keep-window.
/// `option` is the one that asks for gradients.
Outcome<BackwardChoice> backward_choice(const Arguments& arguments, const char* option,
                                        bool is_backward);

/// The plans of one mask: of the forward call and, where gradients are wanted, of the backward
/// call, both for the same backend.
struct CallPlans {
  AttentionPlan forward;
  std::optional<AttentionPlan> backward;

  /// Failures: those of make_plan.
  static Outcome<CallPlans> make(const BlockMask& mask, const AttentionProblem& problem,
                                 const PlanChoice& choice, const BackwardChoice& gradients);
  /// The one whose call is timed.
  const AttentionPlan& timed() const { return backward ? *backward : forward; }
};

/// Calls of one mask where its backend runs them.
class PlacedCalls {
 public:
  /// Borrows `plans`. Failures: those of upload.
  static Outcome<PlacedCalls> make(const CallPlans& plans, const BackwardChoice& gradients);

  /// The forward call, and the backward call if there is one, which then is what the seconds are
  /// of. `gradients`: null without one. Failures: those of the calls.
  Outcome<double> run(const PlacedTensors& tensors, const PlacedGradients* gradients,
                      const AttentionOptions& options, bool quiet);

 private:
  PlacedCalls(PlacedPlan forward, bool is_deterministic)
      : forward_(std::move(forward)), is_deterministic_(is_deterministic) {}

  PlacedPlan forward_;
  std::optional<PlacedPlan> backward_;
  bool is_deterministic_;
};

/// Operations for `pairs` allowed pairs of the timed call.
double flops_of(const AttentionPlan& plan, std::int64_t pairs);
/// Bytes of every tensor of the timed call, each once: what it moves at least.
double bytes_of(const AttentionPlan& plan);

}  // namespace fdma::maskc
