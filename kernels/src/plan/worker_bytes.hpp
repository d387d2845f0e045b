// What a plan says of a backend's memory: the backend implements it.
#pragma once

#include <cstdint>

#include "fdma/base/interval.hpp"
#include "fdma/formats/attention_shape.hpp"

namespace fdma {

/// Bytes of scratch memory that one thread of the CPU backend takes, forward and backward.
std::int64_t cpu_forward_bytes(const AttentionShape& shape, BlockShape tile);
std::int64_t cpu_backward_bytes(const AttentionShape& shape, BlockShape tile);

}  // namespace fdma
