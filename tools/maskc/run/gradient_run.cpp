#include "run/gradient_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/file_reading.hpp"
#include "cli/number_text.hpp"
#include "fdma/kernels/estimate.hpp"

namespace fdma::maskc {
namespace {

constexpr std::uint64_t kWhichTensor = 5;  // after q, k, v, key_bias and dt_proj

TensorView in_call_order(const AttentionTensors& forward, const OwnedTensor& of_out) {
  TensorView view = forward.out.view();
  view.data = of_out.data();
  return view;
}

// A view of a gradient with the dtype and strides of `input`.
MutableTensorView like(const TensorView& input, OwnedTensor& gradient) {
  MutableTensorView view;
  view.data = gradient.data();
  view.dtype = input.dtype;
  view.rank = input.rank;
  view.extents = input.extents;
  view.strides = input.strides;
  view.device = input.device;
  return view;
}

}  // namespace

Outcome<GradientMemory> GradientMemory::fill(const AttentionProblem& problem, int num_threads) {
  const ProblemScore& score = problem.score;
  std::vector<NamedSpec> tensors{{"dout", out_spec(problem)},
                                 {"dq", q_spec(problem)},
                                 {"dk", k_spec(problem)},
                                 {"dv", v_spec(problem)}};
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (!score.has_gradient(kScoreTensors[i])) continue;
    tensors.push_back({kScoreTensors[i].gradient, score.specs[i]});
  }
  FDMA_TRY_VOID(check_memory(tensors));
  GradientMemory memory;
  FDMA_TRY(memory.dq, OwnedTensor::zeros(q_spec(problem)));
  FDMA_TRY(memory.dk, OwnedTensor::zeros(k_spec(problem)));
  FDMA_TRY(memory.dv, OwnedTensor::zeros(v_spec(problem)));
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (!score.has_gradient(kScoreTensors[i])) continue;
    FDMA_TRY(memory.score[i], OwnedTensor::zeros(score.specs[i]));
  }
  if (problem.file.empty()) {
    FDMA_TRY(memory.dout, OwnedTensor::zeros(out_spec(problem)));
    draw(memory.dout, problem.seed, kWhichTensor, num_threads);
    return memory;
  }
  const std::string dataset = problem.group + "dout";
  FDMA_TRY(const bool has_dout, has_object_in_file(problem.file, dataset));
  if (!has_dout) {
    return usage_failure(fmt::format("{}:{}: expected the gradient of out, {}, got nothing",
                                     problem.file, dataset, to_string(out_spec(problem))));
  }
  FDMA_TRY(memory.dout, read_tensor_file(problem.file, dataset, out_spec(problem)));
  return memory;
}

BackwardTensors GradientMemory::tensors(const AttentionProblem& problem,
                                        const AttentionTensors& forward) {
  BackwardTensors all;
  all.q = forward.q;
  all.kv = forward.kv;
  all.out = forward.out.view();
  all.lse = forward.lse.view();
  all.dout = in_call_order(forward, dout);
  all.dq = like(forward.q, dq);
  all.dk = like(forward.kv.k, dk);
  all.dv = like(forward.kv.v, dv);
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    const ScoreTensor& tensor = kScoreTensors[i];
    all.*tensor.backward_view = forward.*tensor.view;
    if (!problem.score.has_gradient(tensor)) continue;
    all.*tensor.gradient_view = like(forward.*tensor.view, score[i]);
  }
  return all;
}

Outcome<PlacedGradients> PlacedGradients::make(const PlacedTensors& forward,
                                               const AttentionProblem& problem,
                                               GradientMemory& memory) {
  PlacedGradients placed;
  placed.on_host_ = memory.tensors(problem, forward.on_host());
  placed.in_place_ = memory.tensors(problem, forward.in_place());
  if (forward.is_on_host()) return placed;
  // Gradients are copied too, so that values that a kernel does not write come back unchanged.
  BackwardTensors& tensors = placed.in_place_;
  const auto copy = [&](OwnedTensor& tensor, auto& view) -> Status {
    FDMA_TRY(DeviceMemory bytes, copied_to_gpu(tensor, view));
    placed.copies_.push_back(std::move(bytes));
    return Nothing{};
  };
  const auto copy_result = [&](OwnedTensor& tensor, MutableTensorView& view) -> Status {
    placed.results_.push_back(&tensor);
    return copy(tensor, view);
  };
  FDMA_TRY_VOID(copy_result(memory.dq, tensors.dq));
  FDMA_TRY_VOID(copy_result(memory.dk, tensors.dk));
  FDMA_TRY_VOID(copy_result(memory.dv, tensors.dv));
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    if (!problem.score.has_gradient(kScoreTensors[i])) continue;
    FDMA_TRY_VOID(copy_result(memory.score[i], tensors.*kScoreTensors[i].gradient_view));
  }
  FDMA_TRY_VOID(copy(memory.dout, tensors.dout));
  return placed;
}

Status PlacedGradients::fetch_results() const {
  for (std::size_t i = 0; i < results_.size(); ++i) {
    FDMA_TRY_VOID(copy_to_host(results_[i]->data(), copies_[i].data(), copies_[i].size_bytes()));
  }
  return Nothing{};
}

OptionSpec deterministic_option() {
  return {.name = "deterministic",
          .help =
              "Gradients with the same bits every run, which takes longer on a GPU (a CPU's "
              "always are)."};
}

Outcome<BackwardChoice> backward_choice(const Arguments& arguments, const char* option,
                                        bool is_backward) {
  const BackwardChoice choice{is_backward, arguments.has("deterministic")};
  if (choice.is_deterministic && !is_backward) {
    return usage_failure(fmt::format("--deterministic: expected {} beside it", option));
  }
  if (is_backward && arguments.has("keep-window")) {
    return usage_failure(fmt::format(
        "{}: not together with --keep-window, whose gradients are not computed here", option));
  }
  return choice;
}

Outcome<CallPlans> CallPlans::make(const BlockMask& mask, const AttentionProblem& problem,
                                   const PlanChoice& choice, const BackwardChoice& gradients) {
  CallPlans plans;
  PlanChoice forward = choice, backward = choice;
  backward.options.direction = Direction::backward;
  if (gradients.is_backward) {
    FDMA_TRY(plans.backward, make_chosen_plan(mask, problem, backward));
    forward.options.backend = plans.backward->backend;
  }
  FDMA_TRY(plans.forward, make_chosen_plan(mask, problem, forward));
  const bool agree = !plans.backward || plans.backward->backend == plans.forward->backend;
  if (!agree) {  // auto: the backend of the backward plan has no forward kernel
    backward.options.backend = plans.forward->backend;
    FDMA_TRY(plans.backward, make_chosen_plan(mask, problem, backward));
  }
  return plans;
}

Outcome<PlacedCalls> PlacedCalls::make(const CallPlans& plans, const BackwardChoice& gradients) {
  FDMA_TRY(TimedPlan forward, TimedPlan::make(plans.forward));
  PlacedCalls calls(std::move(forward), gradients.is_deterministic);
  if (!plans.backward) return calls;
  PrepareOptions options;
  options.deterministic = gradients.is_deterministic;
  FDMA_TRY(TimedPlan backward, TimedPlan::make(plans.backward, options));
  calls.backward_.emplace(std::move(backward));
  return calls;
}

Outcome<double> PlacedCalls::run(const PlacedTensors& tensors, const PlacedGradients* gradients,
                                 const AttentionOptions& options, bool quiet) {
  FDMA_TRY(const double seconds, forward_.run(tensors.in_place(), options, quiet));
  if (!backward_ || gradients == nullptr) return seconds;
  BackwardOptions how;
  how.softmax_scale = options.softmax_scale;
  how.softcap = options.softcap;
  how.relative_left = options.relative_left;
  how.dropout = options.dropout;
  how.num_threads = options.num_threads;
  how.deterministic = is_deterministic_;
  return backward_->run(gradients->in_place(), how, quiet);
}

double flops_of(const AttentionPlan& plan, std::int64_t pairs) {
  return attention_flops(plan.shape, plan.direction, static_cast<double>(pairs));
}

double bytes_of(const AttentionPlan& plan) {
  const AttentionShape& shape = plan.shape;
  const double q = shape.head_dim * size_bytes(shape.q_dtype);
  const double out = shape.head_dim_v * size_bytes(shape.out_dtype);
  const double kv =
      shape.head_dim * size_bytes(shape.k_dtype) + shape.head_dim_v * size_bytes(shape.v_dtype);
  const double times = plan.is_backward() ? 2 : 1;  // each input with its gradient
  double bytes = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    bytes +=
        static_cast<double>(shape.q_len(b)) * shape.heads_q * (times * (q + out) + sizeof(float)) +
        static_cast<double>(shape.kv_len(b)) * shape.heads_kv * times * kv;
  }
  return bytes;
}

}  // namespace fdma::maskc
