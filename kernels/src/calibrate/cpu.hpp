// Calibration on the CPU.
#pragma once

#include "fdma/kernels/calibrate.hpp"

namespace fdma {

/// calibrate for backend cpu. `options` have been checked.
Result<DeviceProfile> calibrate_cpu(const CalibrateOptions& options);

}  // namespace fdma
