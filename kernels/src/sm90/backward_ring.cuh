// What the warps of the backward kernel count and say in shared memory.
#pragma once

#include <cstdint>

namespace fdma::sm90 {

/// A ring of 2^n buffers as producer and consumer count them, in one register (ptx::Ring takes
/// two).
template <int kStages>
struct CountedRing {
  static_assert((kStages & (kStages - 1)) == 0);
  std::uint32_t count = 0;
  __device__ __forceinline__ int stage() const { return static_cast<int>(count % kStages); }
  __device__ __forceinline__ std::uint32_t phase() const { return count / kStages & 1; }
  __device__ __forceinline__ void advance() { ++count; }
};

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

/// Two floats side by side, as those of a thread's two queries of 8.
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

}  // namespace fdma::sm90
