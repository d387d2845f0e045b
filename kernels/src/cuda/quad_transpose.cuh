// Words exchanged among the four lanes of a quad, so that each of them has 16 bytes of one row.
#pragma once

#include <cstdint>

namespace fdma::gpu {

/// Transposes 4 x 4 words among the four lanes of a quad: word i of lane t becomes word t of lane
/// i.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4], int lane) {
  const auto exchange = [&](std::uint32_t& low, std::uint32_t& high, int distance) {
    const bool is_high = (lane & distance) != 0;
    const std::uint32_t got = __shfl_xor_sync(~0u, is_high ? low : high, distance);
    (is_high ? low : high) = got;
  };
  exchange(words[0], words[1], 1);
  exchange(words[2], words[3], 1);
  exchange(words[0], words[2], 2);
  exchange(words[1], words[3], 2);
}

}  // namespace fdma::gpu
