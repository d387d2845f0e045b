// The backend sm90, in builds with CUDA.
#pragma once

#include <memory>

#include "fdma/kernels/attention_backend.hpp"

namespace fdma::sm90 {

std::unique_ptr<AttentionBackend> make_backend();

}  // namespace fdma::sm90
