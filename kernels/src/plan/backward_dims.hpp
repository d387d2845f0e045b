// Head sizes of the backward kernels, for host code with and without CUDA.
#pragma once

#include "fdma/formats/attention_shape.hpp"

namespace fdma::sm90 {

/// The kernel's head sizes. A plan is computed with the smallest one that holds both its head
/// sizes.
inline constexpr int kBackwardDims[] = {64, 128, 256};
inline int backward_dim(const AttentionShape& shape) {
  for (const int dim : kBackwardDims) {
    if (shape.head_dim <= dim && shape.head_dim_v <= dim) return dim;
  }
  return kMaxHeadDim;
}

}  // namespace fdma::sm90
