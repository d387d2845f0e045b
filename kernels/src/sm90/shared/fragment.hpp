// Layouts of sm_90a: elements in swizzled shared memory and fields of matrix descriptors. These are
// pure functions, the same on host and device. The CPU tests compare them with their definition,
// the GPU tests with the hardware.
//
// Tiles of 16-bit elements lie in shared memory as panels of 64 columns (128 bytes) x rows, panel
// after panel, each swizzled in 128 bytes: the 16-byte chunk c of row r lies at chunk c ^ (r % 8).
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"
#include "plan/thread_cells.hpp"
#include "sm90/shared/neutral.hpp"

namespace fdma::sm90 {

inline constexpr int kPanelColumns = 64;  ///< 16-bit elements
inline constexpr int kPanelRowBytes = 128;

/// Byte offset of element (row, col) in a tile of `num_rows` rows.
FDMA_HOST_DEVICE constexpr std::uint32_t swizzled_offset(int row, int col, int num_rows) {
  const int panel = col / kPanelColumns, byte = col % kPanelColumns * 2;
  const int chunk = (byte / 16) ^ (row % 8);
  return static_cast<std::uint32_t>((panel * num_rows + row) * kPanelRowBytes + chunk * 16 +
                                    byte % 16);
}

/// Descriptor of an operand in 128-byte swizzle at shared address `address` (1024-aligned up to the
/// advance of a step). Strides in bytes. K-major: `stride` 1024 from 8 rows to the next, `leading`
/// unused. MN-major: `leading` from one panel to the next, `stride` 1024 from 8 k to the next.
FDMA_HOST_DEVICE constexpr std::uint64_t matrix_descriptor(std::uint32_t address,
                                                           std::uint32_t leading,
                                                           std::uint32_t stride) {
  return std::uint64_t{(address & 0x3FFFFu) >> 4} | std::uint64_t{leading >> 4} << 16 |
         std::uint64_t{stride >> 4} << 32 | std::uint64_t{1} << 62;
}

/// What to add to a descriptor (in units of 16 bytes) for k16 step `step`.
FDMA_HOST_DEVICE constexpr std::uint64_t k_major_advance(int step, int num_rows) {
  return static_cast<std::uint64_t>(step / 4 * (num_rows * kPanelRowBytes) + step % 4 * 32) >> 4;
}
FDMA_HOST_DEVICE constexpr std::uint64_t mn_major_advance(int step) {
  return static_cast<std::uint64_t>(step * 16 * kPanelRowBytes) >> 4;
}

}  // namespace fdma::sm90
