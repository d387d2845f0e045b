// Checks of one tensor of a call. Each error names the tensor, what was expected and what came.
#include "call/tensor_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace fdma {
namespace {

std::string extents_text(const std::array<std::int64_t, kMaxRank>& extents, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", extents[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

}  // namespace

Result<void> check_tensor(const TensorView& tensor, const ExpectedTensor& expected, Device device) {
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

Result<void> check_last_stride(const TensorView& tensor, std::string_view name) {
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  if (tensor.strides[last] == 1 || tensor.extents[last] == 1) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}: expected stride 1 along the last axis, got {}; make the tensor "
                           "contiguous there",
                           name, tensor.strides[last])};
}

// Axes are sorted by stride; the stride of each axis must be at least the span of the smaller ones.
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

Result<void> check_rows(const TensorView& tensor, const ExpectedTensor& expected, Device device) {
  FDMA_TRY_VOID(check_tensor(tensor, expected, device));
  return check_last_stride(tensor, expected.name);
}

ExpectedTensor expected_q(std::string_view name, const AttentionShape& shape, DType dtype) {
  return {name,
          "[batch, q_len, heads_q, head_dim]",
          dtype,
          4,
          {shape.batch, shape.max_q_len(), shape.heads_q, shape.head_dim},
          1};
}

ExpectedTensor expected_k(std::string_view name, const AttentionShape& shape, DType dtype) {
  return {name,
          "[batch, kv_len, heads_kv, head_dim]",
          dtype,
          4,
          {shape.batch, shape.max_kv_len(), shape.heads_kv, shape.head_dim},
          1};
}

ExpectedTensor expected_v(std::string_view name, const AttentionShape& shape, DType dtype) {
  return {name,
          "[batch, kv_len, heads_kv, head_dim_v]",
          dtype,
          4,
          {shape.batch, shape.max_kv_len(), shape.heads_kv, shape.head_dim_v},
          1};
}

ExpectedTensor expected_out(std::string_view name, const AttentionShape& shape) {
  return {name,
          "[batch, q_len, heads_q, head_dim_v]",
          shape.out_dtype,
          4,
          {shape.batch, shape.max_q_len(), shape.heads_q, shape.head_dim_v},
          1};
}

ExpectedTensor expected_lse(std::string_view name, const AttentionShape& shape) {
  return {name,
          "[batch, heads_q, q_len]",
          DType::float32,
          3,
          {shape.batch, shape.heads_q, shape.max_q_len(), 1},
          2};
}

ExpectedTensor expected_key_bias(std::string_view name, const AttentionShape& shape) {
  return {name,
          "[batch, heads_kv, kv_len]",
          DType::float32,
          3,
          {shape.batch, shape.heads_kv, shape.max_kv_len(), 1},
          2};
}

}  // namespace fdma
