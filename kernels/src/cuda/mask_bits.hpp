// Bits of a mask fragment: the columns of a tile that belong to one thread (plan/thread_cells.hpp:
// mask_cell). These are pure functions, the same on host and device.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"
#include "plan/thread_cells.hpp"
#ifdef __CUDACC__
#include "ptx/arithmetic.cuh"
#endif

namespace fdma::gpu {

/// Number of the thread's columns below `limit`, which counts from the thread's first column (2 *
/// (thread % 4)) and may be any integer. Each group of 8 columns counts two, as if there were
/// further groups before the first one (negative counts) and after the last.
FDMA_HOST_DEVICE constexpr int column_count(int limit) {
  const int rest = limit & 7;
  return (limit >> 3) * 2 + (rest < 2 ? rest : 2);
}

/// The bits of the first `count` columns: none if `count` is negative, all from 32 on.
FDMA_HOST_DEVICE inline std::uint32_t first_columns(int count) {
  count = count < 0 ? 0 : count;
#ifdef __CUDA_ARCH__
  // The instruction gives 0 for counts over 31. ptxas 13.0 miscompiles a clamp to 32 with a test
  // for it (both become one VIMNMX.RELU whose predicate has the wrong sense).
  return ~ptx::shift_left(0xFFFFFFFFu, static_cast<std::uint32_t>(count));
#else
  return count > 31 ? 0xFFFFFFFFu : ~(0xFFFFFFFFu << count);
#endif
}

/// Bits of the thread's columns below `limit`: the word that keeps the keys before a bound.
FDMA_HOST_DEVICE inline std::uint32_t columns_below(int limit) {
  return first_columns(column_count(limit));
}

}  // namespace fdma::gpu
