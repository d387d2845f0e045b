// The main kernel of the backward pass. Its instances are compiled in files of their own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/policies.hpp"
#include "sm90/backward/params.hpp"

namespace fdma::sm90 {

/// The launches of the main kernel for one head size.
struct BackwardKernel {
  using Launch = cudaError_t (*)(const BackwardParams&, const ScoreNumbers&, int num_blocks,
                                 cudaStream_t);

  int dim;
  int step_queries;    ///< BackwardLayout::kStepQueries
  Launch shifts;       ///< the correction pass, or null
  Launch launches[2];  ///< one after the other; the second may be null
};

// Readers of keys (key_reader.cuh).
struct KeyTiles;
struct WorklistKeys;

/// Launches the kernel for element type T and the policies Score, Weight (cuda/score.cuh) and
/// Reader (key_reader.cuh), for head_dim up to kDimQk and head_dim_v up to kDimV; columns beyond
/// the tensors' are zeros. KeyBiasScore takes a key bias and any scale, and above kMaxBulkDim the
/// accumulation order of a deterministic call; SoftcapScore the same and a cap, PartsScore the same
/// and terms of pairs. LinearScore is faster. WorklistKeys runs over
/// worklist keys (BackwardParams::worklist) in place of the work tiles of a plan.
template <class T, class Score, class Weight, class Reader, Gradients kGradients, int kDimQk,
          int kDimV>
cudaError_t launch_backward(const BackwardParams& params, const ScoreNumbers& numbers,
                            int num_blocks, cudaStream_t stream);

}  // namespace fdma::sm90
