// Whether a tensor of a call is what the plan says, the same for every call and backend.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "call/attention_call.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/attention_shape.hpp"

namespace fdma {

/// What a tensor of a call has to look like.
struct ExpectedTensor {
  std::string_view name;
  std::string_view dimensions;  ///< for messages, for example "[batch, q_len, heads_q, head_dim]"
  DType dtype;
  int rank;
  std::array<std::int64_t, kMaxRank> extents;
  int length_axis;  ///< the axis that may be longer than its extent here; kMaxRank: none
};

/// Where it lies, its dtype, extents, data and alignment: unsupported, shape_mismatch or
/// invalid_argument by its name.
Result<void> check_tensor(const TensorView& tensor, const ExpectedTensor& expected, Device device);

/// Vectors run along the last axis: its stride is 1.
Result<void> check_last_stride(const TensorView& tensor, std::string_view name);

/// Both of them.
Result<void> check_rows(const TensorView& tensor, const ExpectedTensor& expected, Device device);

/// No two elements at one address, as far as strides tell.
Result<void> check_distinct(const TensorView& tensor, std::string_view name);

/// Tensors as q, k, v and out of a call have to be, and float32 ones as lse and key_bias.
ExpectedTensor expected_q(std::string_view name, const AttentionShape& shape, DType dtype);
ExpectedTensor expected_k(std::string_view name, const AttentionShape& shape, DType dtype);
ExpectedTensor expected_v(std::string_view name, const AttentionShape& shape, DType dtype);
ExpectedTensor expected_out(std::string_view name, const AttentionShape& shape);
ExpectedTensor expected_lse(std::string_view name, const AttentionShape& shape);
ExpectedTensor expected_key_bias(std::string_view name, const AttentionShape& shape);

Strided strided(const TensorView& tensor);

}  // namespace fdma
