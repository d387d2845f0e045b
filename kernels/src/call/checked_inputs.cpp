// Checks the tensors that both passes read, the same for every backend.
#include "call/checked_inputs.hpp"

#include <fmt/format.h>

#include <initializer_list>

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

// Where the score has a part its tensor is given, and only there. An empty mask needs none.
Result<bool> is_given(const TensorView& tensor, std::string_view name, bool is_expected,
                      const AttentionShape& shape, const ScoreSpec& score) {
  const bool is_given = tensor.data != nullptr;
  if (is_given == is_expected || shape.max_kv_len() == 0) return is_given;
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}: {}, but the plan's score is {}", name,
                           is_given ? "is given" : "is missing", to_string(score))};
}

// Sets the extents that a tensor has where it may have that or one of `others`.
void accept(ExpectedTensor& expected, const TensorView& tensor, std::size_t axis,
            std::initializer_list<std::int64_t> others) {
  for (const std::int64_t other : others) {
    if (tensor.extents[axis] == other) expected.extents[axis] = other;
  }
}

// float32 or the type of q.
void accept_float32(ExpectedTensor& expected, const TensorView& tensor) {
  if (tensor.dtype == DType::float32) expected.dtype = DType::float32;
}

// Strides of 0 are read as given, so that distinct elements need not have distinct addresses.
Result<void> set_bias(CheckedInputs& inputs, const AttentionShape& shape, const ScoreSpec& score,
                      const TensorView& bias, Device device) {
  FDMA_TRY(const bool has_bias, is_given(bias, "bias", score.bias, shape, score));
  if (!has_bias) return {};
  ExpectedTensor expected{
      "bias", "[batch or 1, heads_q or heads_kv or 1, q_len or 1, kv_len]",        shape.q_dtype,
      4,      {shape.batch, shape.heads_q, shape.max_q_len(), shape.max_kv_len()}, 3};
  accept_float32(expected, bias);
  accept(expected, bias, 0, {1});
  accept(expected, bias, 1, {shape.heads_kv, 1});
  if (bias.rank == 4 && (bias.extents[2] == 1 || bias.extents[2] >= shape.max_q_len())) {
    expected.extents[2] = bias.extents[2];
  }
  FDMA_TRY_VOID(check_rows(bias, expected, device));
  const bool is_per_kv_head = bias.extents[1] != shape.heads_q;
  inputs.bias = pair_values<const void>(bias, is_per_kv_head ? shape.group_size() : 1);
  return {};
}

Result<void> set_alibi_slopes(CheckedInputs& inputs, const AttentionShape& shape,
                              const ScoreSpec& score, const TensorView& slopes, Device device) {
  FDMA_TRY(const bool has_slopes, is_given(slopes, "alibi_slopes", score.alibi, shape, score));
  if (!has_slopes) return {};
  ExpectedTensor expected{"alibi_slopes",           "[heads_q]", DType::float32, 1,
                          {shape.heads_q, 1, 1, 1}, kMaxRank};
  const bool is_per_element = slopes.rank == 2;
  if (is_per_element) {
    expected = {
        "alibi_slopes", "[batch, heads_q]", DType::float32, 2, {shape.batch, shape.heads_q, 1, 1},
        kMaxRank};
  }
  FDMA_TRY_VOID(check_tensor(slopes, expected, device));
  inputs.alibi_slopes = {static_cast<const float*>(slopes.data),
                         is_per_element ? slopes.strides[0] : 0,
                         slopes.strides[is_per_element ? 1 : 0], 0};
  return {};
}

Result<void> set_relative(CheckedInputs& inputs, const AttentionShape& shape,
                          const ScoreSpec& score, const TensorView& table, std::int64_t left,
                          Device device) {
  FDMA_TRY(const bool has_table, is_given(table, "relative", score.relative_table, shape, score));
  if (!has_table) return {};
  ExpectedTensor expected{"relative", "[heads_q or 1, left + 1 + right]", DType::float32,
                          2,          {shape.heads_q, 1, 1, 1},           1};
  accept(expected, table, 0, {1});
  FDMA_TRY_VOID(check_rows(table, expected, device));
  const std::int64_t size = table.extents[1];
  if (left < 0 || left >= size || size > 2 * kMaxLength) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("relative_left: expected an index into the {} numbers of a row of "
                             "relative, got {}",
                             size, left)};
  }
  inputs.relative = {static_cast<const float*>(table.data),
                     table.extents[0] == 1 ? 0 : table.strides[0], static_cast<std::int32_t>(left),
                     static_cast<std::int32_t>(size - 1 - left)};
  return {};
}

Result<void> set_sinks(CheckedInputs& inputs, const AttentionShape& shape, const ScoreSpec& score,
                       const TensorView& sinks, Device device) {
  FDMA_TRY(const bool has_sinks, is_given(sinks, "sinks", score.sink, shape, score));
  if (!has_sinks) return {};
  ExpectedTensor expected{"sinks", "[heads_q]", shape.q_dtype, 1, {shape.heads_q, 1, 1, 1},
                          kMaxRank};
  if (sinks.rank == 3) {
    expected = expected_lse("sinks", shape);
    expected.dtype = shape.q_dtype;
  }
  accept_float32(expected, sinks);
  FDMA_TRY_VOID(check_tensor(sinks, expected, device));
  inputs.sinks = pair_values<const void>(sinks, 1);
  return {};
}

Result<void> check_dropout(const Dropout& dropout, const ScoreSpec& score) {
  if (!(dropout.rate >= 0 && dropout.rate < 1)) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("dropout: expected a rate of at least 0 and below 1, got {:g}", dropout.rate)};
  }
  if ((dropout.rate > 0) != score.dropout) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("dropout: {}, but the plan's score is {}",
                             score.dropout ? "is missing" : "is given", to_string(score))};
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

  const TensorView& key_bias = tensors.key_bias;
  FDMA_TRY(const bool has_key_bias, is_given(key_bias, "key_bias", score.key_bias, shape, score));
  if (has_key_bias) {
    FDMA_TRY_VOID(check_rows(key_bias, expected_key_bias("key_bias", shape), device));
    inputs.key_bias = {static_cast<const float*>(key_bias.data), key_bias.strides[0],
                       key_bias.strides[1]};
  }
  FDMA_TRY_VOID(set_bias(inputs, shape, score, tensors.bias, device));
  FDMA_TRY_VOID(set_alibi_slopes(inputs, shape, score, tensors.alibi_slopes, device));
  FDMA_TRY_VOID(
      set_relative(inputs, shape, score, tensors.relative, numbers.relative_left, device));
  FDMA_TRY_VOID(set_sinks(inputs, shape, score, tensors.sinks, device));
  FDMA_TRY_VOID(check_dropout(numbers.dropout, score));
  inputs.dropout = numbers.dropout;
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
