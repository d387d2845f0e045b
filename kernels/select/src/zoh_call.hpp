// One checked call of zoh_scores, as the code for each instruction set sees it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/select/zoh_scores.hpp"

namespace fdma::zoh {

struct Call {
  ZohShape shape;
  ZohMode mode;
  const char* values;  ///< any strides but the last, in elements
  DType dtype;
  std::int64_t batch_stride, key_stride, head_stride;
  std::vector<float>
      weights;              ///< [heads_kv, head_dim] or [heads_kv, heads_kv, padded_dim], float32
  std::int64_t padded_dim;  ///< head_dim rounded up to kPadding where weights are wide
  std::vector<float> a_coef;
  float* scores;
  std::int64_t score_batch_stride, score_head_stride, score_key_stride;
};

/// Keys that are scored together: what one thread takes.
inline constexpr std::int64_t kBlockKeys = 64;
/// Floats to which rows of wide weights are padded with zeros: the widest vector.
inline constexpr std::int64_t kPadding = 16;

/// Scores of keys [first, first + count) of batch element `batch`, count <= kBlockKeys, with the
/// best instruction set of this machine.
void score_block(const Call& call, std::int64_t batch, std::int64_t first, std::int64_t count);

}  // namespace fdma::zoh
