// The instances of the forward kernel. Each is compiled in a file of its own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/policies.hpp"
#include "sm90/forward/params.hpp"

namespace fdma::sm90 {

/// A kernel and its tile sizes. The first one that holds a plan's head sizes runs it.
struct ForwardKernel {
  int dim_qk, dim_v;
  int step_keys;  ///< ForwardLayout::kStepKeys
  cudaError_t (*launch)(const ForwardParams&, const ScoreNumbers&, int num_blocks, cudaStream_t);
};

// Readers of keys (kv_reader.cuh).
struct ContiguousKeys;
struct IndexedKeys;

/// Launches the kernel for element type T and the policies Score, Weight (cuda/score.cuh) and
/// Reader (kv_reader.cuh), for head_dim up to kDimQk and head_dim_v up to kDimV; columns beyond the
/// tensors' are zeros. KeyBiasScore takes a key bias and any scale, SoftcapScore the same and a cap,
/// PartsScore the same as KeyBiasScore and terms of pairs; DropoutWeight drops pairs. LinearScore
/// needs a positive scale and is faster. IndexedKeys runs plans with kv index lists.
template <class T, class Score, class Weight, class Reader, int kDimQk, int kDimV>
cudaError_t launch_forward(const ForwardParams& params, const ScoreNumbers& numbers, int num_blocks,
                           cudaStream_t stream);

}  // namespace fdma::sm90
