// Permutes keys: copies their rows of K and V, and their biases, in the order of a kv permutation
// before the forward kernel runs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "call/strided_views.hpp"
#include "cuda/key_rows.hpp"
#include "cuda/plan_arrays.hpp"

namespace fdma::gpu {

/// Arguments of one launch. For row r (a batch element and KV head), key i of its order goes to row
/// r * orders.max_keys + i of permuted_k, permuted_v and permuted_bias. Rows past an order's keys
/// are left as they are.
struct PermuteParams {
  KvPermutationsOnDevice orders;
  KeyRows k, v;
  std::int32_t batch, heads_kv;
  std::uint8_t* permuted_k;
  std::uint8_t* permuted_v;
  KeyValues<const float> key_bias;  ///< or null
  float* permuted_bias;
  std::int32_t* counter;  ///< set to 0
};

/// Launches the copy on `stream`. The next kernel may overlap with it.
///
/// Cost  each permuted row is read and written once, at the rate of main memory
cudaError_t permute_kv(const PermuteParams& params, cudaStream_t stream);

}  // namespace fdma::gpu
