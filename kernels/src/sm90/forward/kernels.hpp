// The instances of the forward kernel. Each is compiled in a file of its own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "sm90/forward/params.hpp"

namespace fdma::sm90 {

/// Launches the kernel for element type T, head_dim up to kDimQk and head_dim_v up to kDimV;
/// columns beyond the tensors' are zeros. The bias kernel (kBiasKernel) takes a key bias and any
/// scale. The other one needs a positive scale and is faster. The gathering kernel (kGather) runs
/// plans with kv index lists.
template <class T, int kDimQk, int kDimV, bool kBiasKernel, bool kGather>
cudaError_t launch_forward(const ForwardParams& params, int num_blocks, cudaStream_t stream);

}  // namespace fdma::sm90
