// Converts errors of the CUDA runtime to fdma::Error.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "fdma/base/result.hpp"

namespace fdma::gpu {

/// Success for cudaSuccess. Otherwise ErrorCode::cuda (out_of_memory if an allocation failed), with
/// a message that names the call.
inline Result<void> check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  return Error{error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::cuda,
               std::string(call) + ": " + cudaGetErrorString(error)};
}

}  // namespace fdma::gpu
