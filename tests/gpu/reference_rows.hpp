// Attention by its definition on the GPU: what tests/reference computes, fast enough for hundreds
// of trials (test_reference_rows.cpp compares the two).
#pragma once

#include "backend/backend_fixture.hpp"

namespace fdma::gpu_test {

/// The rows of a problem whose tensors lie on the device, all of one 16-bit type.
testing::ReferenceRows reference_on_device(const testing::ReferenceProblem& problem);

}  // namespace fdma::gpu_test
