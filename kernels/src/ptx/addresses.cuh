// Loads and stores by address, one instruction per function (PTX ISA: cvta, ld, st). Device code of
// the selection and of the kernels calls them.
// A base of many accesses is kept as an address. From pointers the compiler adds base and index
// anew at each access where registers are few.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fdma::ptx {

__device__ __forceinline__ std::uint64_t global_address(const void* pointer) {
  std::uint64_t address;
  asm volatile("cvta.to.global.u64 %0, %1;" : "=l"(address) : "l"(pointer));
  return address;
}
__device__ __forceinline__ std::uint32_t kept_shared_address(const void* pointer) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
  std::uint32_t kept;
  asm volatile("mov.u32 %0, %1;" : "=r"(kept) : "r"(address));
  return kept;
}

/// Returns `value`, which the compiler does not know to be the same at each call. Values that a
/// loop derives from it are therefore not kept in registers.
__device__ __forceinline__ int renewed(int value) {
  int same;
  asm volatile("mov.s32 %0, %1;" : "=r"(same) : "r"(value));
  return same;
}

__device__ __forceinline__ void store_global(std::uint64_t address, std::int32_t value) {
  asm volatile("st.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_global_u16(std::uint64_t address, std::uint32_t value) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(static_cast<std::uint16_t>(value))
               : "memory");
}
__device__ __forceinline__ std::uint32_t load_shared_u8(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// 32-bit words in shared memory: one, two or four consecutive ones.
__device__ __forceinline__ int load_word(std::uint32_t address) {
  int word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ void store_word(std::uint32_t address, int word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ int2 load_words2(std::uint32_t address) {
  int2 words;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "r"(address)
               : "memory");
  return words;
}

__device__ __forceinline__ void store_words2(std::uint32_t address, int a, int b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ float load_float(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_float(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

/// Two consecutive floats, for instance those of a thread's two neighbouring queries.
__device__ __forceinline__ float2 load_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(address)
               : "memory");
  return pair;
}

__device__ __forceinline__ void store_pair(std::uint32_t address, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

__device__ __forceinline__ void store_words(std::uint32_t address, const uint4& words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_words(std::uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}

/// Four consecutive floats.
__device__ __forceinline__ void store_floats(std::uint32_t address, float a, float b, float c,
                                             float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c),
               "f"(d)
               : "memory");
}

/// Toggles `bits` of a word in shared memory, as one access.
__device__ __forceinline__ void toggle_bits(std::uint32_t address, std::uint32_t bits) {
  asm volatile("red.shared.xor.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}

}  // namespace fdma::ptx
