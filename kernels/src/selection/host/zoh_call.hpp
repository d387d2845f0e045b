// One checked call of zoh_scores, as the code of each instruction set sees it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/select/zoh_scores.hpp"

namespace fdma::zoh {

struct HostScoresCall {
  ZohShape shape;
  ZohMode mode;
  const char* values;  ///< any strides (in elements) but the last
  DType dtype;
  std::int64_t batch_stride, key_stride, head_stride;
  std::vector<float>
      weights;              ///< [heads_kv, head_dim] or [heads_kv, heads_kv, padded_dim], float32
  std::int64_t padded_dim;  ///< head_dim rounded up to kPadding where weights are wide
  std::vector<float> a_coef;
  float* scores;
  std::int64_t score_batch_stride, score_head_stride, score_key_stride;
};

/// Keys that one thread scores together.
inline constexpr std::int64_t kBlockKeys = 64;
/// Rows of wide weights are padded with zeros to this many floats, the widest vector.
inline constexpr std::int64_t kPadding = 16;

/// Some keys of a batch element, at most one block.
struct BlockKeys {
  std::int64_t at[kBlockKeys];
  std::size_t count = 0;
  void add(std::int64_t key) { at[count++] = key; }
};

/// Scores of keys [first, first + count) of batch element `batch`, count <= kBlockKeys, with the
/// best instruction set of this machine.
void score_block(const HostScoresCall& call, std::int64_t batch, std::int64_t first,
                 std::int64_t count);

/// One checked call of zoh_scores_backward. `forward` has no scores.
struct HostBackwardCall {
  HostScoresCall forward;
  const float* dscores;
  std::int64_t dscore_batch_stride, dscore_head_stride, dscore_key_stride;
  MutableTensorView dvalues;  ///< data = nullptr: not wanted
  TensorView other_dvalues;   ///< data = nullptr: none
  bool is_in_place;           ///< other_dvalues is dvalues
  bool wants_sums;            ///< ddt_proj is wanted
};

/// The sums over blocks of keys: ddt_proj in the layout of `weights`, and da_coef.
struct Sums {
  std::vector<float> weights;
  std::vector<float> a_coef;
};

/// Gradients of keys [first, first + count) of batch element `batch`, count <= kBlockKeys.
void backward_block(const HostBackwardCall& call, std::int64_t batch, std::int64_t first,
                    std::int64_t count, Sums& sums);

/// Numbers as elements of `dtype`, rounded to nearest even.
void narrow(const float* from, std::size_t count, DType dtype, void* to);

}  // namespace fdma::zoh
