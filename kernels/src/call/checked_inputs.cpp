// Checks the tensors that both passes read, the same for every backend.
#include "call/checked_inputs.hpp"

#include <fmt/format.h>

#include "call/tensor_checks.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/closed_form_mask.hpp"

namespace fdma {
namespace {

// Checks an int32 tensor that a call may give; returns its data, or null.
Result<const std::int32_t*> check_lengths(const TensorView& tensor, const ExpectedTensor& expected,
                                          Device device, bool is_closed_form) {
  if (tensor.data == nullptr) return static_cast<const std::int32_t*>(nullptr);
  if (!is_closed_form) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: a plan of segments has its lengths and documents fixed; make the "
                             "plan with form = parametric",
                             expected.name)};
  }
  FDMA_TRY_VOID(check_tensor(tensor, expected, device));
  if (!tensor.is_contiguous()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: expected a contiguous tensor", expected.name)};
  }
  return static_cast<const std::int32_t*>(tensor.data);
}

Result<void> set_lengths(CallLengths& call, const AttentionShape& shape,
                         const InputTensors& tensors, Device device, bool is_closed_form) {
  constexpr int kNoAxis = kMaxRank;
  const auto lengths = [&](std::string_view name) -> ExpectedTensor {
    return {name, "[batch]", DType::int32, 1, {shape.batch, 1, 1, 1}, kNoAxis};
  };
  FDMA_TRY(call.q_lens, check_lengths(tensors.q_lens, lengths("q_lens"), device, is_closed_form));
  FDMA_TRY(call.kv_lens,
           check_lengths(tensors.kv_lens, lengths("kv_lens"), device, is_closed_form));
  const TensorView& borders = tensors.cu_seqlens;
  const bool is_shared = borders.rank < 2;
  ExpectedTensor expected{"cu_seqlens", "[documents + 1]", DType::int32, 1, {2, 1, 1, 1}, 0};
  if (!is_shared) {
    expected = {"cu_seqlens", "[batch, documents + 1]", DType::int32, 2, {shape.batch, 2, 1, 1}, 1};
  }
  FDMA_TRY(call.cu_seqlens, check_lengths(borders, expected, device, is_closed_form));
  if (call.cu_seqlens == nullptr) return {};
  const std::int64_t num_borders = borders.extents[is_shared ? 0 : 1];
  if (num_borders > kClosedFormMaxLength) {
    return Error{ErrorCode::unsupported,
                 fmt::format("cu_seqlens: {} borders, at most {} are supported", num_borders,
                             kClosedFormMaxLength)};
  }
  call.num_borders = static_cast<std::int32_t>(num_borders);
  call.cu_seqlens_batch_stride = is_shared ? 0 : num_borders;
  return {};
}

Result<void> check_softcap(float softcap, const ScoreSpec& score) {
  if (softcap != 0.0F && !(softcap >= kLeastSoftcap && softcap <= kMostSoftcap)) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("softcap: expected a number from {:g} to {:g}, got {:g}",
                             kLeastSoftcap, kMostSoftcap, softcap)};
  }
  if ((softcap != 0.0F) != score.softcap) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("softcap: {}, but the plan's score is {}",
                             score.softcap ? "is missing" : "is given", to_string(score))};
  }
  return {};
}

}  // namespace

Result<void> check_direction(Direction of_plan, Direction of_call) {
  if (of_plan == of_call) return {};
  return Error{ErrorCode::unsupported,
               fmt::format("direction: attention_{} takes a plan of direction {}, got one of {}",
                           to_string(of_call), to_string(of_call), to_string(of_plan))};
}

Result<void> check_inputs(const AttentionShape& shape, const ScoreSpec& score,
                          const InputTensors& tensors, const InputNumbers& numbers, Device device,
                          bool is_closed_form, CheckedInputs& inputs) {
  if (tensors.kv.layout != KvLayout::contiguous) {
    return Error{ErrorCode::unsupported, fmt::format("kv: expected layout contiguous, got {}",
                                                     to_string(tensors.kv.layout))};
  }
  if (!std::isfinite(numbers.softmax_scale)) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("softmax_scale: expected a finite number, got {}", numbers.softmax_scale)};
  }
  if (numbers.num_threads < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("num_threads: expected at least 0, got {}", numbers.num_threads)};
  }
  FDMA_TRY_VOID(check_softcap(numbers.softcap, score));
  inputs.softcap = numbers.softcap;
  FDMA_TRY_VOID(check_rows(tensors.q, expected_q("q", shape, shape.q_dtype), device));
  FDMA_TRY_VOID(check_rows(tensors.kv.k, expected_k("k", shape, shape.k_dtype), device));
  FDMA_TRY_VOID(check_rows(tensors.kv.v, expected_v("v", shape, shape.v_dtype), device));
  inputs.q = Strided(tensors.q);
  inputs.k = Strided(tensors.kv.k);
  inputs.v = Strided(tensors.kv.v);
  inputs.scale = numbers.softmax_scale != 0.0F
                     ? numbers.softmax_scale
                     : 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  inputs.scale_log2 = inputs.scale * 1.44269504088896340736F;

  const TensorView& bias = tensors.key_bias;
  const bool has_bias = bias.data != nullptr;
  if (has_bias != score.key_bias && shape.max_kv_len() > 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("key_bias: {}, but the plan's score is {}",
                             has_bias ? "is given" : "is missing", to_string(score))};
  }
  if (has_bias) {
    FDMA_TRY_VOID(check_rows(bias, expected_key_bias("key_bias", shape), device));
    inputs.key_bias = {static_cast<const float*>(bias.data), bias.strides[0], bias.strides[1]};
  }
  return set_lengths(inputs, shape, tensors, device, is_closed_form);
}

Result<void> check_results(const AttentionShape& shape, const TensorView& out,
                           const TensorView& out_low, const TensorView& lse, Device device) {
  FDMA_TRY_VOID(check_rows(out, expected_out("out", shape), device));
  FDMA_TRY_VOID(check_distinct(out, "out"));
  if (out_low.data != nullptr) {
    if (shape.out_dtype == DType::float32) {
      return Error{ErrorCode::invalid_argument,
                   "out_low: is given, but out is float32 and is not rounded"};
    }
    FDMA_TRY_VOID(check_rows(out_low, expected_out("out_low", shape), device));
    FDMA_TRY_VOID(check_distinct(out_low, "out_low"));
  }
  if (lse.data == nullptr) return {};
  FDMA_TRY_VOID(check_tensor(lse, expected_lse("lse", shape), device));
  return check_distinct(lse, "lse");
}

}  // namespace fdma
