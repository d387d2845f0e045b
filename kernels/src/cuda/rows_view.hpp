// Tensors of rows that kernels read or write in one of two element types.
#pragma once

#include "call/strided_views.hpp"

namespace fdma::gpu {

/// A tensor [batch, row, head, column] on the device.
struct RowsView {
  void* data;
  TensorStrides strides;
  bool is_float32;  ///< otherwise of the kernel's 16-bit type
};

}  // namespace fdma::gpu
