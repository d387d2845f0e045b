// Calls of attention_backward for the verbs: the forward call that precedes them, the tensors of
// gradients, the time.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "fdma/kernels/attention_backward.hpp"
#include "run/attention_input.hpp"
#include "run/attention_run.hpp"

namespace fdma::maskc {

/// The tensors that a backward call has besides those of the forward call, in the order of
/// dimensions of the file. dout is the gradient of out. The others are the gradients of q, k, v and
/// of the score's tensors; they are 0 until they are computed.
struct GradientMemory {
  OwnedTensor dout, dq, dk, dv;
  OfScoreTensors<OwnedTensor> score;

  /// dout is read from the problem's file (dataset dout) or drawn. Failures: file, unsupported
  /// (memory).
  static Outcome<GradientMemory> fill(const AttentionProblem& problem, int num_threads);
  /// The tensors of the backward call. `forward` has the tensors of the forward call, with out and
  /// lse computed. Borrows.
  BackwardTensors tensors(const AttentionProblem& problem, const AttentionTensors& forward);
};

/// The same tensors in the memory of a backend, beside the PlacedTensors of the forward call.
class PlacedGradients {
 public:
  /// Borrows both. Failures: unsupported (memory).
  static Outcome<PlacedGradients> make(const PlacedTensors& forward,
                                       const AttentionProblem& problem, GradientMemory& memory);

  const BackwardTensors& on_host() const { return on_host_; }
  const BackwardTensors& in_place() const { return in_place_; }
  /// Copies the gradients to the host's memory, unless they are there.
  Status fetch_results() const;

 private:
  BackwardTensors on_host_, in_place_;
  std::vector<OwnedTensor*> results_;
  std::vector<DeviceMemory> copies_;  ///< of results_ and then of dout
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

/// The plans of one mask, for one backend: the plan of the forward call and, if gradients are
/// wanted, the plan of the backward call.
struct CallPlans {
  std::shared_ptr<const AttentionPlan> forward;
  std::shared_ptr<const AttentionPlan> backward;  ///< null: there is no backward call

  /// Failures: those of make_plan.
  static Outcome<CallPlans> make(const BlockMask& mask, const AttentionProblem& problem,
                                 const PlanChoice& choice, const BackwardChoice& gradients);
  /// The plan of the call that is timed.
  const AttentionPlan& timed() const { return backward ? *backward : *forward; }
};

/// The calls of one mask, ready to run on their backend.
class PlacedCalls {
 public:
  /// Failures: those of prepare.
  static Outcome<PlacedCalls> make(const CallPlans& plans, const BackwardChoice& gradients);

  /// Makes the forward call, and the backward call if there is one. The seconds are those of the
  /// last of them. `gradients` is null without a backward call. Failures: those of the calls.
  Outcome<double> run(const PlacedTensors& tensors, const PlacedGradients* gradients,
                      const AttentionOptions& options, bool quiet);

 private:
  PlacedCalls(TimedPlan forward, bool is_deterministic)
      : forward_(std::move(forward)), is_deterministic_(is_deterministic) {}

  TimedPlan forward_;
  std::optional<TimedPlan> backward_;
  bool is_deterministic_;
};

/// The floating-point operations of the timed call for `pairs` allowed pairs.
double flops_of(const AttentionPlan& plan, std::int64_t pairs);
/// The bytes of every tensor of the timed call, each counted once: a lower bound of its traffic.
double bytes_of(const AttentionPlan& plan);

}  // namespace fdma::maskc
