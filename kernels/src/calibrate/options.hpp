// Checks of what a calibration is asked for.
#pragma once

#include "fdma/kernels/calibrate.hpp"

namespace fdma {

/// invalid_argument: an empty list, an entry that is there twice, a value outside its range.
Result<void> check_calibrate_options(const CalibrateOptions& options);

}  // namespace fdma
