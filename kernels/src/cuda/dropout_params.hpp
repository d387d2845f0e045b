// Dropout as kernel parameters hold it.
#pragma once

#include <cstdint>

#include "call/dropout_bits.hpp"

namespace fdma::gpu {

/// The dropout of a call. Read by kernels with DropoutWeight only.
struct DropoutParams {
  DropoutBits bits;
  std::uint64_t seed = 0, offset = 0;
  const std::uint64_t* seed_at = nullptr;  ///< in device memory, in place of `seed`; or null
  const std::uint64_t* offset_at = nullptr;
  std::int32_t heads_q = 1;
};

inline DropoutParams dropout_params(const Dropout& dropout, std::int32_t heads_q) {
  return {dropout_bits_of_rate(dropout.rate),
          dropout.seed,
          dropout.offset,
          dropout.seed_at,
          dropout.offset_at,
          heads_q};
}

}  // namespace fdma::gpu
