// 64-bit words in shared memory that one thread writes while another reads them (PTX ISA: atom,
// ld.relaxed). Each access is single-copy atomic and orders no other access.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fdma::ptx {

/// Writes 64 bits. It is an exchange, because racecheck treats that as one access, whereas it
/// reports a relaxed store.
__device__ __forceinline__ void exchange_shared(std::uint32_t address, std::uint32_t low,
                                                std::uint32_t high) {
  asm volatile(
      "{\n"
      ".reg .b64 word, before;\n"
      "mov.b64 word, {%1, %2};\n"
      "atom.relaxed.cta.shared::cta.exch.b64 before, [%0], word;\n"
      "}" ::"r"(address),
      "r"(low), "r"(high)
      : "memory");
}
/// Reads 64 bits.
__device__ __forceinline__ uint2 load_shared_relaxed(std::uint32_t address) {
  uint2 words;
  asm volatile(
      "{\n"
      ".reg .b64 word;\n"
      "ld.relaxed.cta.shared::cta.b64 word, [%2];\n"
      "mov.b64 {%0, %1}, word;\n"
      "}"
      : "=r"(words.x), "=r"(words.y)
      : "r"(address)
      : "memory");
  return words;
}

}  // namespace fdma::ptx
