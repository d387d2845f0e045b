// The parts of module _fdma. Defaults, convenience and documentation for users belong to the Python
// package above it; here each function checks its arguments, releases the GIL and calls FDMA.
#pragma once

#include <nanobind/nanobind.h>

namespace fdma::python {

/// BlockMask, compile, to_dense.
void bind_masks(nanobind::module_& module);

/// AttentionPlan, DevicePlan, make_plan, upload, attention, cpu_target, available_backends.
void bind_attention(nanobind::module_& module);

/// zoh_scores, IncrementalTopk.
void bind_select(nanobind::module_& module);

/// DeviceTopk, DeviceIncrementalTopk.
void bind_device_select(nanobind::module_& module);

}  // namespace fdma::python
