// Errors of the CUDA runtime as ours.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "fdma/base/result.hpp"

namespace fdma::sm90 {

/// Nothing for cudaSuccess, otherwise `cuda` (out_of_memory where that is the reason) naming the
/// call.
inline Result<void> check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  return Error{error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::cuda,
               std::string(call) + ": " + cudaGetErrorString(error)};
}

}  // namespace fdma::sm90
