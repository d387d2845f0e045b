// Checks that a build with CUDA and one without answer differently.
#pragma once

#include "fdma/base/result.hpp"

namespace fdma {

/// Success if the current device runs kernels for sm_90a; otherwise `unsupported` with the reason.
Result<void> check_sm90_device();

}  // namespace fdma
