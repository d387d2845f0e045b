// Calibration on the current CUDA device.
#pragma once

#include "fdma/kernels/calibrate.hpp"

namespace fdma {

/// calibrate for backend sm90. `options` have been checked, except for what only the kernels know.
Result<DeviceProfile> calibrate_sm90(const CalibrateOptions& options);

}  // namespace fdma
