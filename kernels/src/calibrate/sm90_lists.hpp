// Times the kernels that make the kv index lists of learned top-k on the current CUDA device.
#pragma once

#include "calibrate/added_costs.hpp"
#include "fdma/kernels/calibrate.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma {

/// Selections of a few keys and of many, over few and many lists. The stage of the lists runs alone,
/// several times between two events; the median counts.
///
/// Errors  out_of_memory, cuda; io: cancelled
Result<ListCosts> time_lists(const CalibrateOptions& options, StreamTimer& timer);

}  // namespace fdma
