// Checks a call of Dynamic Mask Attention before anything is computed, and makes the tensors of
// its parts.
#include "dynamic_mask/call_check.hpp"

#include <fmt/format.h>

#include "call/attention_call.hpp"
#include "call/backward_call.hpp"
#include "dynamic_mask/selection_plan.hpp"

namespace fdma::dynamic_mask {
namespace {

Result<void> check_array(std::string_view name, std::string_view dimensions, const TensorView& got,
                         const TensorView& expected) {
  if (got.device != expected.device) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: expected a tensor {}, where q is", name,
                             expected.device == Device::cpu ? "in host memory" : "on the GPU")};
  }
  if (got.dtype != expected.dtype || got.rank != expected.rank || got.extents != expected.extents) {
    const auto text = [](const TensorView& view) {
      return fmt::format("[{}]",
                         fmt::join(view.extents.begin(), view.extents.begin() + view.rank, ", "));
    };
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: expected {} {} = {}, got {} {}", name, to_string(expected.dtype),
                             dimensions, text(expected), to_string(got.dtype), text(got))};
  }
  return {};
}

Result<void> check_scores(const DynamicMaskSpec& spec, std::string_view name,
                          const TensorView& scores, Device device) {
  FDMA_TRY_VOID(
      check_array(name, "[batch, heads_kv, kv_len]", scores, scores_view(spec, nullptr, device)));
  if (scores.strides[2] == 1 || scores.extents[2] <= 1) return {};
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("{}: expected stride 1 along the last axis, got {}", name, scores.strides[2])};
}

Result<void> check_kept(const DynamicMaskSpec& spec, const TensorView& kept, Device device) {
  if (kept.data == nullptr) return {};
  const std::int64_t extents[] = {spec.shape.batch, spec.shape.heads_kv, spec.shape.max_kv_len(),
                                  2};
  TensorView expected = make_contiguous_view(nullptr, DType::int32, 4, extents);
  expected.device = device;
  FDMA_TRY_VOID(check_array("kept", "[batch, heads_kv, kv_len, 2]", kept, expected));
  if (kept.is_contiguous()) return {};
  return Error{ErrorCode::invalid_argument, "kept: expected a contiguous tensor"};
}

// Checks that the call has either scores, or the tensors from which scores are computed.
Result<void> check_score_source(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                                Device device) {
  const bool is_given = tensors.scores.data != nullptr;
  const bool is_made = tensors.dt_proj.data != nullptr && tensors.a_coef.data != nullptr;
  const bool is_half_made = tensors.dt_proj.data != nullptr || tensors.a_coef.data != nullptr;
  if (is_given == is_half_made || is_made != is_half_made) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("scores: expected either scores, or dt_proj and a_coef, got {}",
                             is_given       ? "scores and others of them"
                             : is_half_made ? "one of dt_proj and a_coef"
                                            : "none of them")};
  }
  if (is_given) return check_scores(spec, "scores", tensors.scores, device);
  FDMA_TRY(const ZohShape shape,
           zoh_shape(values_of(spec, tensors.kv.v), tensors.dt_proj, tensors.a_coef));
  static_cast<void>(shape);
  if (tensors.dt_proj.device != device) {
    return Error{ErrorCode::unsupported, "dt_proj: expected a tensor where q is"};
  }
  return {};
}

}  // namespace

TensorView values_of(const DynamicMaskSpec& spec, TensorView v) {
  v.extents[1] = std::min(v.extents[1], spec.shape.max_kv_len());
  return v;
}

AttentionTensors attention_tensors(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                                   const TensorView& scores) {
  AttentionTensors attention{};
  attention.q = tensors.q;
  attention.kv = tensors.kv;
  attention.out = tensors.out;
  attention.lse = tensors.lse;
  attention.out_low = tensors.out_low;
  if (spec.bias != ScoreBias::none) attention.key_bias = scores;
  return attention;
}

BackwardTensors backward_tensors(const DynamicMaskSpec& spec,
                                 const DynamicMaskBackwardTensors& tensors,
                                 const MutableTensorView& dscores) {
  BackwardTensors attention{};
  attention.q = tensors.q;
  attention.kv = tensors.kv;
  attention.out = tensors.out;
  attention.lse = tensors.lse;
  attention.out_low = tensors.out_low;
  attention.dout = tensors.dout;
  attention.dlse = tensors.dlse;
  attention.dq = tensors.dq;
  attention.dk = tensors.dk;
  attention.dv = tensors.dv;
  if (spec.bias == ScoreBias::none) return attention;
  attention.key_bias = tensors.scores;
  attention.dkey_bias = dscores;
  return attention;
}

ZohBackwardTensors zoh_tensors(const DynamicMaskSpec& spec,
                               const DynamicMaskBackwardTensors& tensors,
                               const TensorView& dscores) {
  ZohBackwardTensors scores{};
  scores.values = values_of(spec, tensors.kv.v);
  scores.dt_proj = tensors.dt_proj;
  scores.a_coef = tensors.a_coef;
  scores.dscores = dscores;
  scores.dvalues = values_of(spec, tensors.dv).with_data(tensors.dv.data);
  scores.other_dvalues = scores.dvalues;
  scores.ddt_proj = tensors.ddt_proj;
  scores.da_coef = tensors.da_coef;
  return scores;
}

MutableTensorView scores_view(const DynamicMaskSpec& spec, void* data, Device device) {
  const std::int64_t extents[] = {spec.shape.batch, spec.shape.heads_kv, spec.shape.max_kv_len()};
  MutableTensorView view = make_contiguous_mutable_view(data, DType::float32, 3, extents);
  view.device = device;
  return view;
}

ZohMode zoh_mode_of(ScoreBias bias) { return bias == ScoreBias::log ? ZohMode::log : ZohMode::exp; }

Result<void> check_call(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                        const AttentionOptions& options, Device device) {
  // A placeholder stands for scores that are still to be computed.
  float placeholder = 0;
  const TensorView scores = scores_view(spec, &placeholder, device);
  FDMA_TRY(const CheckedCall call,
           checked_call(spec.shape, score_of(spec.bias), attention_tensors(spec, tensors, scores),
                        options, device));
  static_cast<void>(call);
  FDMA_TRY_VOID(check_score_source(spec, tensors, device));
  if (tensors.made_scores.data != nullptr) {
    FDMA_TRY_VOID(check_scores(spec, "made_scores", tensors.made_scores, device));
  }
  return check_kept(spec, tensors.kept, device);
}

Result<void> check_backward(const DynamicMaskSpec& spec, const DynamicMaskBackwardTensors& tensors,
                            const BackwardOptions& options, Device device) {
  float placeholder = 0;
  MutableTensorView dscores = tensors.dscores;
  if (dscores.data == nullptr) dscores = scores_view(spec, &placeholder, device);
  FDMA_TRY(const CheckedBackwardCall call,
           checked_backward_call(Direction::backward, spec.shape, score_of(spec.bias),
                                 backward_tensors(spec, tensors, dscores), options, device));
  static_cast<void>(call);
  FDMA_TRY_VOID(check_scores(spec, "scores", tensors.scores, device));
  FDMA_TRY_VOID(check_scores(spec, "dscores", dscores, device));
  FDMA_TRY_VOID(check_kept(spec, tensors.kept, device));
  if (tensors.dt_proj.data != nullptr && tensors.a_coef.data != nullptr) {
    FDMA_TRY(const ZohShape shape, zoh_backward_shape(zoh_tensors(spec, tensors, dscores)));
    static_cast<void>(shape);
    return {};
  }
  const bool has_either = tensors.dt_proj.data != nullptr || tensors.a_coef.data != nullptr;
  const bool wants_any = tensors.ddt_proj.data != nullptr || tensors.da_coef.data != nullptr;
  if (!has_either && !wants_any) return {};
  return Error{ErrorCode::invalid_argument,
               "dt_proj: expected dt_proj and a_coef of the forward call, got one of them or "
               "gradients without them"};
}

}  // namespace fdma::dynamic_mask
