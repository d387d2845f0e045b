// Head sizes of the backward kernels, for host code with and without CUDA.
#pragma once

#include <span>

#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/score_spec.hpp"

namespace fdma::sm90 {

/// The kernel's head sizes. A plan is computed with the smallest one that holds both its head
/// sizes. With a softcap, terms of pairs or dropout the kernel of 64 has too few registers.
inline constexpr int kBackwardDims[] = {64, 128, 256}, kSoftcapBackwardDims[] = {128, 256},
                     kPartsBackwardDims[] = {128};
inline int backward_dim(const AttentionShape& shape, const ScoreSpec& score = {}) {
  const std::span<const int> dims =
      score.bias || score.alibi || score.relative_table || score.dropout
          ? std::span<const int>(kPartsBackwardDims)
      : score.softcap ? std::span<const int>(kSoftcapBackwardDims)
                      : std::span<const int>(kBackwardDims);
  for (const int dim : dims) {
    if (shape.head_dim <= dim && shape.head_dim_v <= dim) return dim;
  }
  return kMaxHeadDim;
}

}  // namespace fdma::sm90
