// The backend cpu.
#pragma once

#include <memory>

#include "fdma/kernels/attention_backend.hpp"

namespace fdma::cpu {

std::unique_ptr<AttentionBackend> make_backend();

}  // namespace fdma::cpu
