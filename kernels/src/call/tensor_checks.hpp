// Checks whether a tensor of a call is what the plan says. They are the same for every call and
// backend.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "call/strided_views.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/attention_shape.hpp"

namespace fdma {

/// What a tensor of a call has to be.
struct ExpectedTensor {
  std::string_view name;
  std::string_view dimensions;  ///< for messages, for example "[batch, q_len, heads_q, head_dim]"
  DType dtype;
  int rank;
  std::array<std::int64_t, kMaxRank> extents;
  int length_axis;  ///< the axis that may be longer than its extent here; kMaxRank: none
};

/// Checks device, dtype, extents, data and alignment. Errors name the tensor: unsupported,
/// shape_mismatch or invalid_argument.
Result<void> check_tensor(const TensorView& tensor, const ExpectedTensor& expected, Device device);

/// Checks that the stride of the last axis, along which vectors run, is 1.
Result<void> check_last_stride(const TensorView& tensor, std::string_view name);

/// Both check_tensor and check_last_stride.
Result<void> check_rows(const TensorView& tensor, const ExpectedTensor& expected, Device device);

/// Checks that no two elements have one address, as far as strides tell.
Result<void> check_distinct(const TensorView& tensor, std::string_view name);

/// What q, k, v and out of a call have to be, and float32 tensors like lse and key_bias.
ExpectedTensor expected_q(std::string_view name, const AttentionShape& shape, DType dtype);
ExpectedTensor expected_k(std::string_view name, const AttentionShape& shape, DType dtype);
ExpectedTensor expected_v(std::string_view name, const AttentionShape& shape, DType dtype);
ExpectedTensor expected_out(std::string_view name, const AttentionShape& shape);
ExpectedTensor expected_lse(std::string_view name, const AttentionShape& shape);
ExpectedTensor expected_key_bias(std::string_view name, const AttentionShape& shape);

/// A tensor that passed the checks of expected_lse.
template <class T, class Data>
QueryValues<T> query_values(const BasicTensorView<Data>& tensor) {
  return {static_cast<T*>(tensor.data), tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

/// A tensor [batch, head, row] or [batch, head, row, key] that passed its checks, or [head]. Axes of
/// extent 1 are those of all.
template <class Data, class View>
PairValues<Data> pair_values(const View& tensor, std::int32_t heads_per_index) {
  const auto stride = [&](std::size_t axis) {
    return tensor.extents[axis] == 1 ? std::int64_t{0} : tensor.strides[axis];
  };
  if (tensor.rank == 1) {
    return {tensor.data, tensor.dtype, 0, stride(0), 0, heads_per_index};
  }
  return {tensor.data, tensor.dtype, stride(0), stride(1), stride(2), heads_per_index};
}

}  // namespace fdma
