// The arrays that the steps of backward_any.cu exchange through the workspace.
#pragma once

#include <cstdint>

#include "selection/scores/backward_call.cuh"

namespace fdma::zoh {

/// The arrays of the workspace: ddt [batch, heads, kv_len], used [batch, kv_len], da_parts [heads,
/// parts], weight_parts [parts, heads, width].
struct Arrays {
  float* ddt;
  std::uint8_t* used;  ///< whether a key has a ddt that is not 0; nullptr: read ddt instead
  float *da_parts, *weight_parts;
  std::int64_t num_keys, num_parts, part_keys;

  __device__ std::int64_t ddt_at(const DeviceScoresCall& call, std::int64_t flat, int head) const {
    const std::int64_t batch = flat / call.kv_len;
    return (batch * call.num_heads + head) * call.kv_len + flat - batch * call.kv_len;
  }
};

/// Computes dvalues and the parts of ddt_proj from ddt, in one pass over values, on tensor cores.
/// It needs a wide dt_proj, values of one type that can be read 16 bytes at a time, and at most 32
/// heads. Parts are a multiple of 64 keys.
bool is_backward_wide(const BackwardCall& call);
Result<void> launch_backward_wide(const BackwardCall& call, const Arrays& arrays, Stream stream);

}  // namespace fdma::zoh
