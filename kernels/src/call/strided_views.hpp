// Tensors of an attention call as kernels address them: a pointer and its strides. The structs are
// plain, so they are members of kernel parameters as well as of calls on the host.
#pragma once

#include <cstdint>

#include "fdma/base/tensor_view.hpp"
#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// Strides of a tensor of rows [batch, row, head, column], whose columns are adjacent. They count
/// in elements unless the owner says otherwise.
struct TensorStrides {
  std::int64_t batch, row, head;

  /// Offset of column 0 of a row, or of row 0 of a head.
  FDMA_HOST_DEVICE constexpr std::int64_t offset(std::int32_t of_batch, std::int32_t of_row,
                                                 std::int32_t of_head) const {
    return of_batch * batch + of_row * row + of_head * head;
  }
  FDMA_HOST_DEVICE constexpr std::int64_t head_offset(std::int32_t of_batch,
                                                      std::int32_t of_head) const {
    return of_batch * batch + of_head * head;
  }
  /// The same places in a tensor that begins at `data`.
  template <class T>
  FDMA_HOST_DEVICE constexpr T* row_of(T* data, std::int32_t of_batch, std::int32_t of_row,
                                       std::int32_t of_head) const {
    return data + of_batch * batch + of_row * row + of_head * head;
  }
  template <class T>
  FDMA_HOST_DEVICE constexpr T* head_of(T* data, std::int32_t of_batch,
                                        std::int32_t of_head) const {
    return data + of_batch * batch + of_head * head;
  }
};

/// A value for each query row [batch, head, row], for instance lse. Strides in elements.
template <class T>
struct QueryValues {
  T* data;  ///< or null
  std::int64_t batch_stride, head_stride, row_stride;

  FDMA_HOST_DEVICE constexpr T& at(std::int32_t batch, std::int32_t head, std::int32_t row) const {
    return data[batch * batch_stride + head * head_stride + row * row_stride];
  }
  /// The address of a value that may not be there.
  FDMA_HOST_DEVICE constexpr T* place(std::int32_t batch, std::int32_t head,
                                      std::int32_t row) const {
    return data + batch * batch_stride + head * head_stride + row * row_stride;
  }
};

/// A value for each pair of a query head [batch, head, row, key], for instance a bias, or without
/// keys for each row. Strides in elements, 0 along an axis that the tensor does not have; keys are
/// adjacent.
template <class Data>
struct PairValues {
  Data* data;  ///< or null
  DType dtype;
  std::int64_t batch_stride, head_stride, row_stride;
  std::int32_t heads_per_index;  ///< query heads that share an index of the head axis

  /// The index of the value of key 0.
  FDMA_HOST_DEVICE constexpr std::int64_t offset(std::int32_t batch, std::int32_t head,
                                                 std::int64_t row) const {
    return batch * batch_stride + head / heads_per_index * head_stride + row * row_stride;
  }
};

/// A number for each distance of a key from a query's position: that of k - pos at `left` + k - pos.
template <class T>
struct DistanceTable {
  T* data;  ///< or null
  std::int64_t head_stride;
  std::int32_t left, right;

  /// The index in the head's row for k - pos.
  FDMA_HOST_DEVICE constexpr std::int32_t index(std::int64_t distance) const {
    return static_cast<std::int32_t>(distance < -left   ? 0
                                     : distance > right ? left + right
                                                        : left + distance);
  }
};

/// A value for each key [batch, head, key], for instance its bias. Strides in elements; keys are
/// adjacent.
template <class T>
struct KeyValues {
  T* data;  ///< or null
  std::int64_t batch_stride, head_stride;

  FDMA_HOST_DEVICE constexpr T& at(std::int32_t batch, std::int32_t head, std::int64_t key) const {
    return data[offset(batch, head, key)];
  }
  FDMA_HOST_DEVICE constexpr std::int64_t offset(std::int32_t batch, std::int32_t head,
                                                 std::int64_t key) const {
    return batch * batch_stride + head * head_stride + key;
  }
  FDMA_HOST_DEVICE constexpr T* place(std::int32_t batch, std::int32_t head,
                                      std::int64_t key) const {
    return data + offset(batch, head, key);
  }
  /// The values of a head, from key 0 on.
  FDMA_HOST_DEVICE constexpr T* head(std::int32_t batch, std::int32_t head) const {
    return data + batch * batch_stride + head * head_stride;
  }
};

}  // namespace fdma
