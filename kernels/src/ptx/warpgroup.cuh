// Instructions of warps and warpgroups (named barriers, register reallocation, proxy fences,
// stmatrix) and the conversions of an attention kernel. One instruction per function.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fdma::ptx {

/// Returns the same value. What is derived from it is computed where it is used, and is not kept in
/// registers from before a loop.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// Reads threadIdx.x anew at each use: it is neither kept in a register nor spilled from one use to
/// the next.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

/// Index of the warp in the block, by a shuffle: the compiler knows it to be the same for all
/// lanes.
__device__ __forceinline__ int warp_index() { return __shfl_sync(~0u, thread_index() / 32, 0); }

/// Waits until `num_threads` threads have arrived at barrier `id` (1 to 15; 0 is __syncthreads).
__device__ __forceinline__ void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

/// Arrives at the barrier without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

/// Register reallocation (setmaxnreg). All warps of a warpgroup call it; kRegisters is a multiple
/// of 8. It needs __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Makes ordinary stores to shared memory by this thread visible to wgmma and to TMA. Each writer
/// fences, then a barrier follows.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Orders accesses of threads to global memory before and after it with those of bulk copies (async
/// proxy).
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Stores four 8 x 8 matrices of 16-bit elements. Lane l holds row l / 4, columns 2 * (l % 4) and 2
/// * (l % 4) + 1 of each matrix, and gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address, std::uint32_t m0,
                                            std::uint32_t m1, std::uint32_t m2, std::uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

/// The inverse of stmatrix_x4: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t address, std::uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

/// Two floats as 16-bit elements, `low` in the low half; rounds to nearest even.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// Returns 2^x with a relative error of about 2^-22; 2^-inf = 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Makes ptxas compute `words` before the code that follows. ptxas moves arithmetic across a wait
/// as it likes, and an asm statement without an instruction does not stop it. The store never
/// happens, because `value` is not negative; ptxas does not know that.
__device__ __forceinline__ void compute_before(int value, const std::uint32_t (&words)[4]) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.eq.s32 p, %0, -1;\n"
      "@p st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n"
      "}" ::"r"(value),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

/// The same for two floats.
__device__ __forceinline__ void compute_before(int value, float a, float b) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.eq.s32 p, %0, -1;\n"
      "@p st.shared.v2.f32 [%0], {%1, %2};\n"
      "}" ::"r"(value),
      "f"(a), "f"(b)
      : "memory");
}

/// Adds four floats to consecutive addresses (16-aligned), relaxed at device scope.
__device__ __forceinline__ void reduce_add_x4(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a),
               "f"(b), "f"(c), "f"(d)
               : "memory");
}

}  // namespace fdma::ptx
