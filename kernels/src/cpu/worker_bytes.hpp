// Scratch memory of the CPU backend.
#pragma once

#include <cstdint>

#include "fdma/base/interval.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/direction.hpp"

namespace fdma::cpu {

/// Bytes that one thread takes.
std::int64_t worker_bytes(const AttentionShape& shape, BlockShape tile, Direction direction);

}  // namespace fdma::cpu
