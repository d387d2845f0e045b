// What every launch by a DevicePlan is refused for.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "fdma/formats/result.hpp"
#include "sm90/cuda_error.hpp"
#include "sm90/device_plan.hpp"

namespace fdma::sm90 {

/// unsupported where the plan is not on the current device, invalid_argument for a workspace that
/// is null or not 16-aligned.
inline Result<void> check_launch(const DevicePlan::Impl& plan, const void* workspace) {
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

}  // namespace fdma::sm90
