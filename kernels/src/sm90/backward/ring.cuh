// Counters and shared-memory words through which the warps of the backward kernel synchronise.
#pragma once

#include <cstdint>

#include "ptx/addresses.cuh"

namespace fdma::sm90 {

using ptx::load_pair, ptx::load_word, ptx::load_words2;
using ptx::store_pair, ptx::store_word, ptx::store_words2;

/// A ring of 2^n buffers as producer and consumer count it, in one register (ptx::Ring takes two).
template <int kStages>
struct CountedRing {
  static_assert((kStages & (kStages - 1)) == 0);
  std::uint32_t count = 0;
  __device__ __forceinline__ int stage() const { return static_cast<int>(count % kStages); }
  __device__ __forceinline__ std::uint32_t phase() const { return count / kStages & 1; }
  __device__ __forceinline__ void advance() { ++count; }
};

}  // namespace fdma::sm90
