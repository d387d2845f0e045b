// Checks common to every launch by a DevicePlan.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "cuda/cuda_error.hpp"
#include "cuda/device_plan.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::gpu {

/// Errors      unsupported: the plan is not on the current device; invalid_argument: a workspace
///             that is null or not 16-aligned
inline Result<void> check_launch(const DevicePlan& plan, const void* workspace) {
  int device = -1;
  FDMA_TRY_VOID(check_cuda(cudaGetDevice(&device), "cudaGetDevice"));
  if (device != plan.device) {
    return Error{ErrorCode::unsupported, "plan: is on CUDA device " + std::to_string(plan.device) +
                                             ", but the current device is " +
                                             std::to_string(device)};
  }
  if (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % 16 != 0) {
    return Error{ErrorCode::invalid_argument,
                 "workspace: expected a 16-aligned address of device memory"};
  }
  return {};
}

/// Kernels read and write rows in pieces of 16 bytes. unsupported if a tensor of rows is not
/// aligned for that.
inline Result<void> check_vectors(const TensorView& tensor, const char* name) {
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) {
    return Error{ErrorCode::unsupported,
                 std::string(name) + ": expected an address that is a multiple of 16 bytes"};
  }
  for (int axis = 0; axis < 3; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    if (tensor.extents[at] > 1 && tensor.strides[at] % 8 != 0) {
      return Error{ErrorCode::unsupported,
                   std::string(name) + ": expected strides that are multiples of 8 elements, got " +
                       std::to_string(tensor.strides[at])};
    }
  }
  return {};
}

}  // namespace fdma::gpu
