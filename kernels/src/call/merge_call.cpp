// Checks of merge. Each error names the tensor, what was expected and what came.
#include "call/merge_call.hpp"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "call/tensor_checks.hpp"

namespace fdma {
namespace {

std::string extents_text(const TensorView& tensor) {
  std::string text = "[";
  for (int i = 0; i < tensor.rank; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", tensor.extents[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

/// Shape and type that every tensor of a call has to agree with.
struct Expected {
  std::array<std::int64_t, kMaxRank> out;  ///< [batch, q_len, heads_q, head_dim_v]
  DType dtype;
  Device device;
};

Result<void> check_elements(const TensorView& tensor, std::string_view name, DType dtype,
                            const Expected& expected) {
  if (tensor.device != expected.device) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: expected a tensor {}, got one {}", name,
                             expected.device == Device::cpu ? "on the host" : "on a CUDA device",
                             tensor.device == Device::cpu ? "on the host" : "on a CUDA device")};
  }
  if (tensor.dtype != dtype) {
    return Error{ErrorCode::shape_mismatch, fmt::format("{}: expected {}, got {}", name,
                                                        to_string(dtype), to_string(tensor.dtype))};
  }
  if (tensor.data == nullptr && tensor.num_elements() != 0) {
    return Error{ErrorCode::invalid_argument, fmt::format("{}: data is null", name)};
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) %
          static_cast<std::uintptr_t>(size_bytes(dtype)) !=
      0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: data is not aligned to its {} elements", name, to_string(dtype))};
  }
  return {};
}

Result<void> check_out(const TensorView& tensor, std::string_view name, const Expected& expected) {
  if (tensor.rank != 4 || tensor.extents != expected.out) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: expected [batch, q_len, heads_q, head_dim_v] = [{}], got {}",
                             name, fmt::join(expected.out, ", "), extents_text(tensor))};
  }
  FDMA_TRY_VOID(check_elements(tensor, name, expected.dtype, expected));
  return check_last_stride(tensor, name);
}

Result<void> check_row_numbers(const TensorView& tensor, std::string_view name,
                               const Expected& expected) {
  const auto& [batch, q_len, heads, head_dim_v] = expected.out;
  if (tensor.rank != 3 || tensor.extents[0] != batch || tensor.extents[1] != heads ||
      tensor.extents[2] != q_len) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{}: expected [batch, heads_q, q_len] = [{}, {}, {}], got {}", name,
                             batch, heads, q_len, extents_text(tensor))};
  }
  return check_elements(tensor, name, DType::float32, expected);
}

Result<void> check_sinks(const TensorView& sinks, const Expected& expected) {
  if (sinks.rank != 1) return check_row_numbers(sinks, "sinks", expected);
  if (sinks.extents[0] != expected.out[2]) {
    return Error{ErrorCode::shape_mismatch, fmt::format("sinks: expected [heads_q] = [{}], got {}",
                                                        expected.out[2], extents_text(sinks))};
  }
  return check_elements(sinks, "sinks", DType::float32, expected);
}

RowStrides out_strides(const TensorView& out) {
  return {out.strides[0], out.strides[2], out.strides[1]};
}

RowStrides row_number_strides(const TensorView& tensor) {
  return {tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

}  // namespace

Result<MergeCall> checked_merge(const MergeTensors& tensors, Device device) {
  const std::size_t num_parts = tensors.parts.size();
  if (num_parts < 1 || num_parts > kMaxMergeParts) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("parts: expected 1 to {} of them, got {}; merge the results of merges",
                             kMaxMergeParts, num_parts)};
  }
  const TensorView& first = tensors.parts[0].out;
  if (first.rank != 4 || first.extents[3] < 1) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("parts[0].out: expected [batch, q_len, heads_q, head_dim_v], got {}",
                             extents_text(first))};
  }
  if (first.dtype != DType::float32 && first.dtype != DType::float16 &&
      first.dtype != DType::bfloat16) {
    return Error{ErrorCode::unsupported,
                 fmt::format("parts[0].out: expected float32, float16 or bfloat16, got {}",
                             to_string(first.dtype))};
  }
  const Expected expected{first.extents, first.dtype, device};
  MergeCall call;
  call.batch = first.extents[0];
  call.q_len = first.extents[1];
  call.heads = first.extents[2];
  call.head_dim_v = first.extents[3];
  call.dtype = first.dtype;
  call.num_parts = static_cast<int>(num_parts);
  for (std::size_t i = 0; i < num_parts; ++i) {
    const MergePart& part = tensors.parts[i];
    FDMA_TRY_VOID(check_out(part.out, fmt::format("parts[{}].out", i), expected));
    FDMA_TRY_VOID(check_row_numbers(part.lse, fmt::format("parts[{}].lse", i), expected));
    call.parts[i] = {part.out.data, static_cast<const float*>(part.lse.data), out_strides(part.out),
                     row_number_strides(part.lse)};
  }
  if (tensors.sinks.data != nullptr) {
    FDMA_TRY_VOID(check_sinks(tensors.sinks, expected));
    call.sinks = static_cast<const float*>(tensors.sinks.data);
    call.sink_strides = tensors.sinks.rank == 1 ? RowStrides{0, tensors.sinks.strides[0], 0}
                                                : row_number_strides(tensors.sinks);
  }
  const TensorView out = tensors.out.view();
  FDMA_TRY_VOID(check_out(out, "out", expected));
  FDMA_TRY_VOID(check_distinct(out, "out"));
  call.out = tensors.out.data;
  call.out_strides = out_strides(out);
  if (tensors.lse.data != nullptr) {
    const TensorView lse = tensors.lse.view();
    FDMA_TRY_VOID(check_row_numbers(lse, "lse", expected));
    FDMA_TRY_VOID(check_distinct(lse, "lse"));
    call.lse = static_cast<float*>(tensors.lse.data);
    call.lse_strides = row_number_strides(lse);
  }
  return call;
}

}  // namespace fdma
