// The keys that gradients of scores go to.
#pragma once

#include <cstdint>

#include "zoh/zoh_backward_call.cuh"

namespace fdma::zoh {

inline constexpr int kKeysPerCount = 256;

/// Arrays in the workspace; keys of all batch elements are counted through.
struct UsedKeys {
  std::int32_t* list;      ///< [num_keys] those with a dscore that is not 0 in some head, rising
  std::int32_t* num_used;  ///< their number
  std::int32_t* counts;    ///< [num_keys / kKeysPerCount, rounded up]
  std::uint8_t* used;      ///< [num_keys]
  std::int64_t num_keys;   ///< 1 to 2^31 - 1
};

/// Lists them, and writes dvalues of the others: zeros or other_dvalues, nothing where these are
/// the same. Rows of dvalues and other_dvalues are float32 or bfloat16 and can be moved 16 bytes
/// at a time.
void list_used_keys(const BackwardCall& call, const UsedKeys& keys, Stream stream);

}  // namespace fdma::zoh
