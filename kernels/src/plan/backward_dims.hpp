// Head sizes of the backward kernels, for host code with and without CUDA.
#pragma once

#include "fdma/formats/attention_shape.hpp"

namespace fdma::sm90 {

/// The smallest that holds both head sizes of a plan computes.
inline constexpr int kBackwardDims[] = {64, 128, 256};
inline int backward_dim(const AttentionShape& shape) {
  for (const int dim : kBackwardDims) {
    if (shape.head_dim <= dim && shape.head_dim_v <= dim) return dim;
  }
  return kMaxHeadDim;
}

}  // namespace fdma::sm90
