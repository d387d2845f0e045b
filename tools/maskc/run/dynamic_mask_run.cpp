#include "run/dynamic_mask_run.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "cli/file_reading.hpp"
#include "cli/number_text.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "fdma/select/select_topk.hpp"
#include "inputs/mask_operand.hpp"

namespace fdma::maskc {
namespace {

constexpr float kRandomA = -1;
constexpr std::uint64_t kWhichTensor = 4;  // after q, k, v and key_bias

Outcome<OwnedTensor> read_tensor(const std::string& file, const std::string& dataset) {
  FDMA_TRY(const TensorSpec spec, describe_tensor_file(file, dataset));
  FDMA_TRY(OwnedTensor tensor, read_tensor_file(file, dataset, spec));
  return tensor;
}

// The scores as float32 [heads_kv, kv_len] of one batch element, or [batch, heads_kv, kv_len].
Outcome<OwnedTensor> read_scores(const std::string& text, const AttentionShape& shape) {
  const MaskAddress address = parse_address(text);
  if (address.file.empty() || address.inner.empty()) {
    return usage_failure(fmt::format("--scores: expected FILE.h5:/DATASET, got '{}'", text));
  }
  FDMA_TRY(const OwnedTensor read, read_tensor(address.file, address.inner));
  const TensorSpec& spec = read.spec();
  TensorSpec wanted{DType::float32, 3, {shape.batch, shape.heads_kv, shape.max_kv_len(), 1}};
  const bool is_one_element = spec.rank == 2 && spec.extents[0] == wanted.extents[1] &&
                              spec.extents[1] == wanted.extents[2];
  if (spec.dtype != DType::float32 || !(is_one_element || spec == wanted)) {
    return usage_failure(
        fmt::format("--scores: expected {}, or without the batch, that is [batch, heads of k, len "
                    "of k], got {} in {}",
                    to_string(wanted), to_string(spec), text));
  }
  FDMA_TRY(OwnedTensor scores, OwnedTensor::zeros(wanted));
  const auto* from = static_cast<const float*>(read.data());
  auto* to = static_cast<float*>(scores.data());
  const std::int64_t one = wanted.extents[1] * wanted.extents[2];
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    std::copy_n(from + (is_one_element ? 0 : b * one), one, to + b * one);
  }
  return scores;
}

// Sets the mask M of each batch element and KV head.
Status set_among(const BlockMask& among, DynamicMaskSpec& spec) {
  const AttentionShape& shape = spec.shape;
  const std::int64_t num_heads = among.shape.num_heads;
  if (num_heads != 1 && num_heads != shape.heads_kv) {
    return usage_failure(
        fmt::format("--keep-window: keys are selected for each KV head, {} here, but the mask has "
                    "{} heads; give a mask of 1 or {}",
                    shape.heads_kv, num_heads, shape.heads_kv));
  }
  FDMA_TRY_VOID(check_serves(among, shape.batch, shape.heads_kv, "mask: it", "k has"));
  FDMA_TRY_VOID(check_serves(among, shape.batch, shape.heads_q, "mask: it", "q has"));
  for (std::int64_t g = 0; g < among.num_groups(); ++g) {
    spec.masks.push_back(columns_from_segment(segment_of_group(among, g, among.block)));
  }
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads_kv; ++h) {
      spec.mask_of.push_back(
          among.group(among.shape.num_batches == 1 ? 0 : b, num_heads == 1 ? 0 : h));
    }
  }
  return Nothing{};
}

}  // namespace

std::vector<OptionSpec> dynamic_mask_options() {
  return {
      {.name = "keep-window",
       .value = "W",
       .help = "Dynamic Mask Attention: of the keys that MASK shows, each query keeps the W with "
               "the best scores."},
      {.name = "score-bias",
       .value = "BIAS",
       .help = "What is added to the logits of kept keys: exp, their scores (the default); log, "
               "the logarithm, by which they are then ranked, too; none.",
       .choices = {"exp", "log", "none"}},
      {.name = "scores",
       .value = "DATASET",
       .help = "The scores, FILE.h5:/DATASET, float32 [heads_kv, kv_len] or with a batch in front "
               "(default: of v, by dt_proj and a_coef beside it; random with random tensors).",
       .takes_file = true},
  };
}

Outcome<SelectionChoice> selection_choice(const Arguments& arguments) {
  constexpr std::int64_t kMaxKeys = std::int64_t{1} << 31;
  SelectionChoice choice;
  FDMA_TRY(choice.w, arguments.integer("keep-window", 0, 1, kMaxKeys));
  for (const char* option : {"score-bias", "scores"}) {
    if (choice.w > 0 || !arguments.has(option)) continue;
    return usage_failure(fmt::format("--{}: expected --keep-window beside it", option));
  }
  if (choice.w == 0) return choice;
  for (const char* option : {"tile", "plan-form", "dump"}) {
    if (!arguments.has(option)) continue;
    return usage_failure(fmt::format(
        "--{}: not together with --keep-window, whose plan is made in the call", option));
  }
  FDMA_TRY(choice.bias, parse_score_bias(arguments.find("score-bias").value_or("exp")));
  choice.scores = arguments.find("scores").value_or("");
  return choice;
}

Outcome<DynamicMaskCall> DynamicMaskCall::make(const SelectionChoice& choice,
                                               const BlockMask& among,
                                               const AttentionProblem& problem,
                                               const PlanChoice& plans, int num_threads) {
  const ScoreSpec& parts = problem.score.parts;
  if (parts.softcap) {
    return usage_failure("--softcap: not together with --keep-window, whose logits have no cap");
  }
  if (parts.dropout) {
    return usage_failure("--dropout: not together with --keep-window, which drops nothing");
  }
  if (parts.key_bias) {
    return usage_failure(
        "--keep-window: the tensors have a key_bias, whose place the scores take; leave it out");
  }
  for (const ScoreTensor& tensor : kScoreTensors) {
    if (!problem.score.has(tensor)) continue;
    return usage_failure(fmt::format(
        "--keep-window: adds only its scores to the logits, but the tensors have {}; leave it out",
        tensor.name));
  }
  DynamicMaskSpec spec;
  spec.shape = problem.shape;
  spec.w = choice.w;
  spec.bias = choice.bias;
  spec.backend = plans.options.backend;
  spec.profile = plans.options.profile;
  FDMA_TRY_VOID(check_device(plans.options));
  FDMA_TRY_VOID(set_among(among, spec));
  const std::vector<ColumnIntervals> masks = spec.masks;
  const std::vector<std::int32_t> mask_of = spec.mask_of;
  Result<DynamicMaskAttention> made = DynamicMaskAttention::make(spec);
  if (!made && plans.is_auto && made.error().code == ErrorCode::unsupported) {
    PlanOptions on_cpu = plans.options;
    spec.backend = on_cpu.backend = Backend::cpu;
    FDMA_TRY_VOID(check_device(on_cpu));
    made = DynamicMaskAttention::make(spec);
  }
  if (!made) return std::move(made).error();
  DynamicMaskCall call(*std::move(made));
  call.masks_ = masks;
  call.mask_of_ = mask_of;
  const AttentionShape& shape = problem.shape;
  DynamicMaskTensors& tensors = call.tensors_;
  call.is_given_ = !choice.scores.empty();
  if (call.is_given_) {
    FDMA_TRY(call.scores_, read_scores(choice.scores, shape));
    FDMA_TRY(tensors.scores, call.place(call.scores_));
  } else {
    FDMA_TRY(call.scores_,
             OwnedTensor::zeros(
                 {DType::float32, 3, {shape.batch, shape.heads_kv, shape.max_kv_len(), 1}}));
    FDMA_TRY(tensors.made_scores, call.place(call.scores_));
    if (problem.file.empty()) {
      const std::int64_t columns = shape.head_dim_v;
      FDMA_TRY(call.dt_proj_,
               OwnedTensor::zeros({DType::float32, 2, {shape.heads_kv, columns, 1, 1}}));
      FDMA_TRY(call.a_coef_, OwnedTensor::zeros({DType::float32, 1, {shape.heads_kv, 1, 1, 1}}));
      draw(call.dt_proj_, problem.seed, kWhichTensor, num_threads);
      auto* const weights = static_cast<float*>(call.dt_proj_.data());
      for (std::int64_t i = 0; i < shape.heads_kv * columns; ++i) {
        weights[i] /= std::sqrt(static_cast<float>(columns));
      }
      std::fill_n(static_cast<float*>(call.a_coef_.data()), shape.heads_kv, kRandomA);
    } else {
      FDMA_TRY(call.dt_proj_, read_tensor(problem.file, problem.group + "dt_proj"));
      FDMA_TRY(call.a_coef_, read_tensor(problem.file, problem.group + "a_coef"));
    }
    FDMA_TRY(tensors.dt_proj, call.place(call.dt_proj_));
    FDMA_TRY(tensors.a_coef, call.place(call.a_coef_));
  }
  if (call.is_on_gpu()) {
    FDMA_TRY(DeviceMemory workspace, DeviceMemory::allocate(call.attention_.workspace_bytes()));
    call.on_device_.push_back(std::move(workspace));
    FDMA_TRY(StreamTimer timer, StreamTimer::make());
    call.timer_.emplace(std::move(timer));
  }
  return call;
}

Outcome<MutableTensorView> DynamicMaskCall::place(OwnedTensor& tensor) {
  MutableTensorView view = tensor.mutable_view();
  if (!is_on_gpu()) return view;
  const std::int64_t bytes = tensor.spec().num_elements() * size_bytes(tensor.spec().dtype);
  FDMA_TRY(DeviceMemory memory, DeviceMemory::allocate(bytes));
  FDMA_TRY_VOID(copy_to_device(memory.data(), tensor.data(), bytes));
  view.data = memory.data();
  view.device = Device::cuda;
  on_device_.push_back(std::move(memory));
  return view;
}

Outcome<double> DynamicMaskCall::run(const PlacedTensors& placed, const AttentionOptions& options) {
  const AttentionTensors& in_place = placed.in_place();
  tensors_.q = in_place.q;
  tensors_.kv = in_place.kv;
  tensors_.out = in_place.out;
  tensors_.lse = in_place.lse;
  if (!timer_) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    FDMA_TRY_VOID(attention_.run(tensors_, nullptr, nullptr, nullptr, {options}));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  FDMA_TRY_VOID(timer_->start());
  FDMA_TRY_VOID(attention_.run(tensors_, on_device_.back().data(), nullptr, nullptr, {options}));
  FDMA_TRY_VOID(timer_->stop());
  FDMA_TRY(const double seconds, timer_->seconds());
  return seconds;
}

Outcome<BlockMask> DynamicMaskCall::selected() {
  const DynamicMaskSpec& spec = attention_.spec();
  const AttentionShape& shape = spec.shape;
  if (!is_given_ && is_on_gpu()) {
    const std::int64_t bytes = scores_.spec().num_elements() * size_bytes(DType::float32);
    FDMA_TRY_VOID(copy_to_host(scores_.data(), tensors_.made_scores.data, bytes));
  }
  std::vector<ColumnIntervals> kept;
  const auto* scores = static_cast<const float*>(scores_.data());
  for (std::size_t row = 0; row < mask_of_.size(); ++row) {
    const ColumnIntervals& among = masks_[static_cast<std::size_t>(mask_of_[row])];
    const float* first = scores + static_cast<std::int64_t>(row) * shape.max_kv_len();
    FDMA_TRY(ColumnIntervals of_row,
             select_topk({first, static_cast<std::size_t>(among.kv_len)}, spec.w, among));
    kept.push_back(std::move(of_row));
  }
  BlockMask mask;
  mask.block = {128, 128};
  mask.shape = {shape.batch, shape.heads_q, shape.q_lens, shape.kv_lens};
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int32_t h = 0; h < shape.heads_q; ++h) {
      mask.group_of.push_back(
          static_cast<std::int32_t>(b * shape.heads_kv + h / shape.group_size()));
    }
  }
  mask.groups = std::move(kept);
  return mask;
}

Outcome<std::shared_ptr<const AttentionPlan>> DynamicMaskCall::plan_of(
    const BlockMask& selected, const AttentionProblem& problem) const {
  const bool has_bias = attention_.spec().bias != ScoreBias::none;
  PlanOptions options;
  options.backend = backend();
  FDMA_TRY(AttentionPlan plan, make_plan(selected, problem.shape, {.key_bias = has_bias}, options));
  return std::make_shared<const AttentionPlan>(std::move(plan));
}

TensorView DynamicMaskCall::bias() const {
  return attention_.spec().bias == ScoreBias::none ? TensorView{} : scores_.view();
}

std::string DynamicMaskCall::text() const {
  const DynamicMaskSpec& spec = attention_.spec();
  std::string text = fmt::format("{} a query, by scores {}, ", plural(spec.w, "key"),
                                 is_given_ ? "as given" : "of v");
  text += spec.bias == ScoreBias::none ? "which are not added"
                                       : fmt::format("which are added ({})", to_string(spec.bias));
  if (is_on_gpu()) text += fmt::format(", reading {}", to_string(attention_.reading()));
  return text;
}

Json DynamicMaskCall::json() const {
  const DynamicMaskSpec& spec = attention_.spec();
  return {{"keep_window", spec.w},
          {"score_bias", std::string(to_string(spec.bias))},
          {"scores", is_given_ ? "given" : "of v"},
          {"reading",
           is_on_gpu() ? Json(std::string(to_string(attention_.reading()))) : Json(nullptr)}};
}

}  // namespace fdma::maskc
