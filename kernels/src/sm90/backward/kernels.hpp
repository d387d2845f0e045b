// The kernels of the backward pass: the first prepares lse and deltas of each query, the second is
// the main one, the third stores dQ from its accumulators. Instances of the main kernel are
// compiled in files of their own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "sm90/backward/params.hpp"

namespace fdma::sm90 {

/// Launches the kernel for element type T, head_dim up to kDimQk and head_dim_v up to kDimV;
/// columns beyond the tensors' are zeros. The bias kernel (kBiasKernel) takes a key bias and any
/// scale, and above kMaxBulkDim the accumulation order of a deterministic call. The other one is
/// faster.
///
/// Gradients::shifts exists only for the bias kernel. With kWorklist the kernel runs over worklist
/// keys (BackwardParams::lists) in place of the work tiles of a plan.
template <class T, int kDimQk, int kDimV, bool kBiasKernel, Gradients kGradients,
          bool kWorklist = false>
cudaError_t launch_backward(const BackwardParams& params, int num_blocks, cudaStream_t stream);

}  // namespace fdma::sm90
