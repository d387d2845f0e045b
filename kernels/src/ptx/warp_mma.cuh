// Products of a warp's fragments and the loads that make them (PTX ISA: mma, ldmatrix), one
// instruction per function. Lane 4 g + t of m16n8k16 has of
//   a [16, 16]   rows g, g + 8, columns 2t, 2t + 1 of both; then columns 8 further
//   b [16, 8]    rows 2t, 2t + 1 of column g; then 8 rows further
//   sum [16, 8]  columns 2t, 2t + 1 of row g, then of row g + 8
#pragma once

#include <cstdint>

namespace fdma::ptx {

__device__ __forceinline__ void multiply_bf16(float (&sum)[4], const std::uint32_t (&a)[4],
                                              std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four tiles of 8 rows of 16 bytes; lane l has the shared address of row l % 8 of tile l / 8, and
/// then elements 2t, 2t + 1 of row g of each.
__device__ __forceinline__ void load_tiles(std::uint32_t (&tiles)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(address)
               : "memory");
}
/// The same of their transposes: element g of rows 2t, 2t + 1.
__device__ __forceinline__ void load_transposed_tiles(std::uint32_t (&tiles)[4],
                                                      std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(address)
               : "memory");
}

}  // namespace fdma::ptx
