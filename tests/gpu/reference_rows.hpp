// Attention by its definition on the GPU. It computes the same as tests/reference, fast enough for
// hundreds of cases. test_reference_rows.cpp compares the two.
#pragma once

#include "backend/backend_fixture.hpp"

namespace fdma::gpu_test {

/// The rows of a problem whose tensors are on the device and all have one 16-bit type.
testing::ReferenceRows reference_on_device(const testing::ReferenceProblem& problem);

}  // namespace fdma::gpu_test
