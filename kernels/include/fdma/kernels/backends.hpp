// Which backends this build and this machine have.
#pragma once

#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/kernels/plan.hpp"

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace fdma {

/// A CUDA stream of the calling thread's current device; nullptr: the default stream.
using Stream = CUstream_st*;

/// Checks that `backend` can run here.
///
/// Errors      unsupported, with the reason (not in this build, no GPU, a GPU of another
///             architecture) and the backends that can run
/// Cost        asks the CUDA runtime about the calling thread's current device
Result<void> check_backend(Backend backend);

/// The backends for which check_backend succeeds; cpu always.
std::vector<Backend> available_backends();

/// The fastest available backend: sm90 where it is available, otherwise cpu. "auto" means this.
Backend default_backend();

}  // namespace fdma
