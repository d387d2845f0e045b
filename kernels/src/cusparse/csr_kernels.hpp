// The steps of the cuSPARSE attention that cuSPARSE does not provide: columns, copies of rows,
// softmax.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "fdma/base/interval.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::cusparse {

/// Writes the column of every cell of `num_rows` rows, as 32-bit or 64-bit (`is_wide`) integers
/// like row_offsets.
cudaError_t expand_columns(std::int64_t num_rows, const void* row_offsets,
                           const std::int64_t* interval_offsets, const Interval* intervals,
                           void* columns, bool is_wide, cudaStream_t stream);

/// `num_rows` rows of `num_columns` contiguous elements, the first at `data`.
template <class Data>
struct BasicRows {
  Data* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t row_stride = 0;  ///< in elements

  template <class Other>
  requires(std::is_const_v<Other> && !std::is_const_v<Data>) operator BasicRows<Other>() const {
    return {data, dtype, row_stride};
  }
};
using Rows = BasicRows<const void>;
using MutableRows = BasicRows<void>;

/// Copies rows, rounding to the type of `to` (float32, float16, bfloat16) where it is narrower. If
/// `from.data` is null, it fills with zeros.
cudaError_t copy_rows(const Rows& from, const MutableRows& to, std::int64_t num_rows,
                      std::int64_t num_columns, cudaStream_t stream);

/// One head's softmax over CSR values.
struct SoftmaxArguments {
  std::int64_t num_rows = 0;
  const void* row_offsets = nullptr;  ///< 32-bit or 64-bit, like columns
  const void* columns = nullptr;
  float* logits = nullptr;        ///< q k^T of each cell; scratch afterwards
  void* probabilities = nullptr;  ///< of each cell; may be logits where they are float32
  float scale = 1;
  const float* key_bias = nullptr;  ///< of each column, or null
  float* lse = nullptr;             ///< or null
  std::int64_t lse_stride = 0;
};

/// probabilities = softmax(scale * logits + key_bias) of each row, in float32, rounded to `dtype`;
/// lse is the natural logarithm of the sum of exponentials. Rows without cells, or with logits of
/// -inf only: 0 and -inf. A NaN among the logits makes the row NaN.
cudaError_t softmax_rows(const SoftmaxArguments& arguments, DType dtype, bool is_wide,
                         cudaStream_t stream);

}  // namespace fdma::cusparse
