// Checks the tensors of an attention call, the same for every backend.
#include "attention_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace fdma {
namespace {

// What a tensor of the call has to look like.
struct Expected {
  std::string_view name;
  std::string_view dimensions;  ///< for messages, for example "[batch, q_len, heads_q, head_dim]"
  DType dtype;
  int rank;
  std::array<std::int64_t, kMaxRank> extents;
  int length_axis;  ///< the axis that may be longer than its extent here; kMaxRank: none
};

std::string extents_text(const std::array<std::int64_t, kMaxRank>& extents, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", extents[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

Result<void> check(const TensorView& tensor, const Expected& expected, Device device) {
  if (tensor.device != device) {
    return Error{ErrorCode::unsupported,
                 device == Device::cpu
                     ? fmt::format("{}: lies on a CUDA device, but the plan is for backend cpu",
                                   expected.name)
                     : fmt::format("{}: lies in host memory, but the plan is on a CUDA device",
                                   expected.name)};
  }
  if (tensor.dtype != expected.dtype) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: expected {} as the plan says, got {}", expected.name,
                             to_string(expected.dtype), to_string(tensor.dtype))};
  }
  bool is_right = tensor.rank == expected.rank;
  bool is_empty = false;
  for (int i = 0; is_right && i < expected.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    is_right = i == expected.length_axis ? tensor.extents[at] >= expected.extents[at]
                                         : tensor.extents[at] == expected.extents[at];
    is_empty = is_empty || expected.extents[at] == 0;
  }
  if (!is_right) {
    const std::string longer = expected.length_axis < expected.rank
                                   ? fmt::format(" (or longer along axis {})", expected.length_axis)
                                   : std::string();
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: expected {} = {}{}, got {}", expected.name, expected.dimensions,
                             extents_text(expected.extents, expected.rank), longer,
                             extents_text(tensor.extents, tensor.rank))};
  }
  if (tensor.data == nullptr && !is_empty) {
    return Error{ErrorCode::invalid_argument, fmt::format("{}: data is null", expected.name)};
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) %
          static_cast<std::uintptr_t>(size_bytes(tensor.dtype)) !=
      0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: data is not aligned to its {} elements", expected.name,
                             to_string(tensor.dtype))};
  }
  return {};
}

// Vectors run along the last axis.
Result<void> check_last_stride(const TensorView& tensor, std::string_view name) {
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  if (tensor.strides[last] == 1 || tensor.extents[last] == 1) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}: expected stride 1 along the last axis, got {}; make the tensor "
                           "contiguous there",
                           name, tensor.strides[last])};
}

// No two elements at one address, as far as strides tell: sorted by stride, each axis must step
// over what the smaller ones span.
Result<void> check_distinct(const TensorView& tensor, std::string_view name) {
  struct Axis {
    std::int64_t stride = 0, extent = 1;
  };
  std::array<Axis, kMaxRank> axes;
  for (int i = 0; i < tensor.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (tensor.extents[at] == 0) return {};
    axes[at] = {std::abs(tensor.strides[at]), tensor.extents[at]};
  }
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t span = 1;
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    if (axis.stride < span) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: strides put several elements at one address", name)};
    }
    span += axis.stride * (axis.extent - 1);
  }
  return {};
}

Strided strided(const TensorView& tensor) {
  return {tensor.data, tensor.dtype, tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

// A tensor of int32 that a call may give: its data, or null.
Result<const std::int32_t*> check_lengths(const TensorView& tensor, const Expected& expected,
                                          Device device, bool is_parametric) {
  if (tensor.data == nullptr) return static_cast<const std::int32_t*>(nullptr);
  if (!is_parametric) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: a plan of segments has its lengths and documents fixed; make the "
                             "plan with form = parametric",
                             expected.name)};
  }
  FDMA_TRY_VOID(check(tensor, expected, device));
  if (!tensor.is_contiguous()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: expected a contiguous tensor", expected.name)};
  }
  return static_cast<const std::int32_t*>(tensor.data);
}

Result<void> set_lengths(AttentionCall& call, const AttentionShape& shape,
                         const AttentionTensors& tensors, Device device, bool is_parametric) {
  constexpr int kNoAxis = kMaxRank;
  const auto lengths = [&](std::string_view name) -> Expected {
    return {name, "[batch]", DType::int32, 1, {shape.batch, 1, 1, 1}, kNoAxis};
  };
  FDMA_TRY(call.q_lens, check_lengths(tensors.q_lens, lengths("q_lens"), device, is_parametric));
  FDMA_TRY(call.kv_lens, check_lengths(tensors.kv_lens, lengths("kv_lens"), device, is_parametric));
  const TensorView& borders = tensors.cu_seqlens;
  const bool is_shared = borders.rank < 2;
  Expected expected{"cu_seqlens", "[documents + 1]", DType::int32, 1, {2, 1, 1, 1}, 0};
  if (!is_shared) {
    expected = {"cu_seqlens", "[batch, documents + 1]", DType::int32, 2, {shape.batch, 2, 1, 1}, 1};
  }
  FDMA_TRY(call.cu_seqlens, check_lengths(borders, expected, device, is_parametric));
  if (call.cu_seqlens == nullptr) return {};
  const std::int64_t num_borders = borders.extents[is_shared ? 0 : 1];
  if (num_borders > kFormulaMaxLength) {
    return Error{ErrorCode::unsupported,
                 fmt::format("cu_seqlens: {} borders, at most {} are supported", num_borders,
                             kFormulaMaxLength)};
  }
  call.num_borders = static_cast<std::int32_t>(num_borders);
  call.cu_seqlens_batch_stride = is_shared ? 0 : num_borders;
  return {};
}

}  // namespace

Result<AttentionCall> checked_call(const AttentionShape& shape, const ScoreSpec& score,
                                   const AttentionTensors& tensors, const AttentionOptions& options,
                                   Device device, bool is_parametric) {
  if (tensors.kv.layout != KvLayout::contiguous) {
    return Error{ErrorCode::unsupported, fmt::format("kv: expected layout contiguous, got {}",
                                                     to_string(tensors.kv.layout))};
  }
  if (!std::isfinite(options.softmax_scale)) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("softmax_scale: expected a finite number, got {}", options.softmax_scale)};
  }
  if (options.num_threads < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("num_threads: expected at least 0, got {}", options.num_threads)};
  }
  const std::int64_t q_len = shape.max_q_len(), kv_len = shape.max_kv_len();
  const auto check_4d = [&](const TensorView& tensor, const Expected& expected) -> Result<void> {
    FDMA_TRY_VOID(check(tensor, expected, device));
    return check_last_stride(tensor, expected.name);
  };
  FDMA_TRY_VOID(check_4d(tensors.q, {"q",
                                     "[batch, q_len, heads_q, head_dim]",
                                     shape.q_dtype,
                                     4,
                                     {shape.batch, q_len, shape.heads_q, shape.head_dim},
                                     1}));
  FDMA_TRY_VOID(check_4d(tensors.kv.k, {"k",
                                        "[batch, kv_len, heads_kv, head_dim]",
                                        shape.k_dtype,
                                        4,
                                        {shape.batch, kv_len, shape.heads_kv, shape.head_dim},
                                        1}));
  FDMA_TRY_VOID(check_4d(tensors.kv.v, {"v",
                                        "[batch, kv_len, heads_kv, head_dim_v]",
                                        shape.v_dtype,
                                        4,
                                        {shape.batch, kv_len, shape.heads_kv, shape.head_dim_v},
                                        1}));
  const TensorView out = tensors.out.view();
  FDMA_TRY_VOID(check_4d(out, {"out",
                               "[batch, q_len, heads_q, head_dim_v]",
                               shape.out_dtype,
                               4,
                               {shape.batch, q_len, shape.heads_q, shape.head_dim_v},
                               1}));
  FDMA_TRY_VOID(check_distinct(out, "out"));

  AttentionCall call;
  call.q = strided(tensors.q);
  call.k = strided(tensors.kv.k);
  call.v = strided(tensors.kv.v);
  call.out = strided(out);
  const float scale = options.softmax_scale != 0.0F
                          ? options.softmax_scale
                          : 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  call.scale_log2 = scale * 1.44269504088896340736F;

  const bool has_bias = tensors.key_bias.data != nullptr;
  if (has_bias != (score.kind == ScoreKind::key_bias) && kv_len > 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("key_bias: {}, but the plan's score is {}",
                             has_bias ? "is given" : "is missing", to_string(score.kind))};
  }
  if (has_bias) {
    const TensorView& bias = tensors.key_bias;
    FDMA_TRY_VOID(check(bias,
                        {"key_bias",
                         "[batch, heads_kv, kv_len]",
                         DType::float32,
                         3,
                         {shape.batch, shape.heads_kv, kv_len, 1},
                         2},
                        device));
    FDMA_TRY_VOID(check_last_stride(bias, "key_bias"));
    call.key_bias = static_cast<const float*>(bias.data);
    call.bias_batch_stride = bias.strides[0];
    call.bias_head_stride = bias.strides[1];
  }
  if (tensors.lse.data != nullptr) {
    const TensorView lse = tensors.lse.view();
    FDMA_TRY_VOID(check(lse,
                        {"lse",
                         "[batch, heads_q, q_len]",
                         DType::float32,
                         3,
                         {shape.batch, shape.heads_q, q_len, 1},
                         2},
                        device));
    FDMA_TRY_VOID(check_distinct(lse, "lse"));
    call.lse = static_cast<float*>(tensors.lse.data);
    call.lse_batch_stride = lse.strides[0];
    call.lse_head_stride = lse.strides[1];
    call.lse_row_stride = lse.strides[2];
  }
  FDMA_TRY_VOID(set_lengths(call, shape, tensors, device, is_parametric));
  return call;
}

}  // namespace fdma
