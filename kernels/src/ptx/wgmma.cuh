// Warpgroup matrix products (PTX ISA: wgmma), one instruction per function:
//   D[64, N] (float32, registers) += A[64, 16] (shared or registers) * B[16, N] (shared)
// They exist for bfloat16 and float16 elements and for every N that a kernel uses. Descriptors
// (sm90/shared/fragment.hpp) name operands in shared memory.
//
// An asm statement lists each register by number, so a macro writes the statement for a count of
// registers, from lists of 8.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fdma::ptx {

/// Called before the first product that reads or accumulates into registers written by other
/// instructions.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes the group of the products issued so far.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of accumulators above the wait for them.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

/// The same for an operand in registers.
template <int kCount>
__device__ __forceinline__ void pin_registers(std::uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// The contiguous dimension of an operand in shared memory: k, or the other one (m, n).
enum class Major : int { k = 0, mn = 1 };

/// product<T, N>::shared<a, b>(d, a, b, is_added): A and B in shared memory.
/// product<T, N>::registers<b>(d, a, b, is_added): A in registers. d = A B where is_added is 0.
template <class T, int N>
struct product;

// clang-format off
#define FDMA_OUT8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                     "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FDMA_OUT16(i) FDMA_OUT8(i), FDMA_OUT8(i + 8)
#define FDMA_OUT32(i) FDMA_OUT16(i), FDMA_OUT16(i + 16)
#define FDMA_OUT64(i) FDMA_OUT32(i), FDMA_OUT32(i + 32)
#define FDMA_R0_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FDMA_R0_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17" \
  ", %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FDMA_R32_40 "%32, %33, %34, %35, %36, %37, %38, %39"
#define FDMA_R40_48 "%40, %41, %42, %43, %44, %45, %46, %47"
#define FDMA_R40_64 "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55" \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FDMA_R64_80 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define FDMA_R80_88 "%80, %81, %82, %83, %84, %85, %86, %87"
#define FDMA_R88_128 "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102" \
  ", %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115" \
  ", %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// r0 .. r6: the numbers of the operands after the accumulators.
#define FDMA_WGMMA(T, TYPE, N, LIST, OUTS, r0, r1, r2, r3, r4, r5, r6)                              \
  template <>                                                                                       \
  struct product<T, N> {                                                                            \
    template <Major kA, Major kB>                                                                   \
    static __device__ __forceinline__ void shared(float (&d)[N / 2], std::uint64_t a,               \
                                                  std::uint64_t b, int is_added) {                  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " r2 ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST "}, "  \
                   r0 ", " r1 ", p, 1, 1, " r3 ", " r4 ";\n}"                                       \
                   : OUTS                                                                           \
                   : "l"(a), "l"(b), "r"(is_added), "n"(static_cast<int>(kA)),                      \
                     "n"(static_cast<int>(kB)));                                                    \
    }                                                                                               \
    template <Major kB>                                                                             \
    static __device__ __forceinline__ void registers(float (&d)[N / 2], const std::uint32_t (&a)[4],\
                                                     std::uint64_t b, int is_added) {               \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " r5 ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST "}, {" \
                   r0 ", " r1 ", " r2 ", " r3 "}, " r4 ", p, 1, 1, " r6 ";\n}"                      \
                   : OUTS                                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(is_added),             \
                     "n"(static_cast<int>(kB)));                                                    \
    }                                                                                               \
  };
#define FDMA_COMMA ,
FDMA_WGMMA(__nv_bfloat16, "bf16", 32, FDMA_R0_16,
           FDMA_OUT16(0),
           "%16", "%17", "%18", "%19", "%20", "%21", "%22")
FDMA_WGMMA(__half, "f16", 32, FDMA_R0_16,
           FDMA_OUT16(0),
           "%16", "%17", "%18", "%19", "%20", "%21", "%22")
FDMA_WGMMA(__nv_bfloat16, "bf16", 64, FDMA_R0_32,
           FDMA_OUT32(0),
           "%32", "%33", "%34", "%35", "%36", "%37", "%38")
FDMA_WGMMA(__half, "f16", 64, FDMA_R0_32,
           FDMA_OUT32(0),
           "%32", "%33", "%34", "%35", "%36", "%37", "%38")
FDMA_WGMMA(__nv_bfloat16, "bf16", 80, FDMA_R0_32 ", " FDMA_R32_40,
           FDMA_OUT32(0) FDMA_COMMA FDMA_OUT8(32),
           "%40", "%41", "%42", "%43", "%44", "%45", "%46")
FDMA_WGMMA(__half, "f16", 80, FDMA_R0_32 ", " FDMA_R32_40,
           FDMA_OUT32(0) FDMA_COMMA FDMA_OUT8(32),
           "%40", "%41", "%42", "%43", "%44", "%45", "%46")
FDMA_WGMMA(__nv_bfloat16, "bf16", 96, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_48,
           FDMA_OUT32(0) FDMA_COMMA FDMA_OUT16(32),
           "%48", "%49", "%50", "%51", "%52", "%53", "%54")
FDMA_WGMMA(__half, "f16", 96, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_48,
           FDMA_OUT32(0) FDMA_COMMA FDMA_OUT16(32),
           "%48", "%49", "%50", "%51", "%52", "%53", "%54")
FDMA_WGMMA(__nv_bfloat16, "bf16", 128, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_64,
           FDMA_OUT64(0),
           "%64", "%65", "%66", "%67", "%68", "%69", "%70")
FDMA_WGMMA(__half, "f16", 128, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_64,
           FDMA_OUT64(0),
           "%64", "%65", "%66", "%67", "%68", "%69", "%70")
FDMA_WGMMA(__nv_bfloat16, "bf16", 160, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_64 ", " FDMA_R64_80,
           FDMA_OUT64(0) FDMA_COMMA FDMA_OUT16(64),
           "%80", "%81", "%82", "%83", "%84", "%85", "%86")
FDMA_WGMMA(__half, "f16", 160, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_64 ", " FDMA_R64_80,
           FDMA_OUT64(0) FDMA_COMMA FDMA_OUT16(64),
           "%80", "%81", "%82", "%83", "%84", "%85", "%86")
FDMA_WGMMA(__nv_bfloat16, "bf16", 176, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_64 ", " FDMA_R64_80 ", " FDMA_R80_88,
           FDMA_OUT64(0) FDMA_COMMA FDMA_OUT16(64) FDMA_COMMA FDMA_OUT8(80),
           "%88", "%89", "%90", "%91", "%92", "%93", "%94")
FDMA_WGMMA(__half, "f16", 176, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_64 ", " FDMA_R64_80 ", " FDMA_R80_88,
           FDMA_OUT64(0) FDMA_COMMA FDMA_OUT16(64) FDMA_COMMA FDMA_OUT8(80),
           "%88", "%89", "%90", "%91", "%92", "%93", "%94")
FDMA_WGMMA(__nv_bfloat16, "bf16", 256, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_64 ", " FDMA_R64_80 ", " FDMA_R80_88 ", " FDMA_R88_128,
           FDMA_OUT64(0) FDMA_COMMA FDMA_OUT64(64),
           "%128", "%129", "%130", "%131", "%132", "%133", "%134")
FDMA_WGMMA(__half, "f16", 256, FDMA_R0_32 ", " FDMA_R32_40 ", " FDMA_R40_64 ", " FDMA_R64_80 ", " FDMA_R80_88 ", " FDMA_R88_128,
           FDMA_OUT64(0) FDMA_COMMA FDMA_OUT64(64),
           "%128", "%129", "%130", "%131", "%132", "%133", "%134")

#undef FDMA_COMMA
#undef FDMA_WGMMA
#undef FDMA_OUT8
#undef FDMA_OUT16
#undef FDMA_OUT32
#undef FDMA_OUT64
#undef FDMA_R0_16
#undef FDMA_R0_32
#undef FDMA_R32_40
#undef FDMA_R40_48
#undef FDMA_R40_64
#undef FDMA_R64_80
#undef FDMA_R80_88
#undef FDMA_R88_128
// clang-format on

}  // namespace fdma::ptx
