// Each wgmma wrapper against a product on the host. Elements are small integers, so that 16-bit
// inputs and fp32 accumulators are exact and results must be equal.
#include <algorithm>
#include <cstdint>
#include <random>

#include "device_array.hpp"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/shared/fragment.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;
using ptx::Major;

constexpr int kRows = 64;  // rows of A and D

template <class T>
__device__ T from_float(float x);
template <>
__device__ __nv_bfloat16 from_float(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ __half from_float(float x) {
  return __float2half(x);
}

// Writes element (row, col) = source[row * cols + col] (or transposed) of a swizzled tile.
template <class T>
__device__ void fill_tile(unsigned char* tile, const float* source, int rows, int cols,
                          bool transposed) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * cols; i += static_cast<int>(blockDim.x)) {
    const int row = i / cols, col = i % cols;
    const float value = transposed ? source[col * rows + row] : source[row * cols + col];
    *reinterpret_cast<T*>(tile + sm90::swizzled_offset(row, col, rows)) = from_float<T>(value);
  }
}

// D = start + A B for A [64, K], B [K, N] (both row-major float32 in global memory). K-major
// operands lie as tiles of [m or n][k], MN-major ones as tiles of [k][m or n].
template <class T, int N, int K, Major kA, Major kB, bool kFromRegisters>
__global__ void __launch_bounds__(128, 1)
    multiply(const float* a, const float* b, float start, float* d) {
  extern __shared__ unsigned char raw[];
  auto* a_tile = reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(raw) + 1023) &
                                                  ~std::uintptr_t{1023});
  unsigned char* b_tile = a_tile + kRows * K * 2;
  constexpr int kARows = kA == Major::k ? kRows : K, kBRows = kB == Major::k ? N : K;
  fill_tile<T>(a_tile, a, kARows, kA == Major::k ? K : kRows, kA == Major::mn);
  fill_tile<T>(b_tile, b, kBRows, kB == Major::k ? K : N, kB == Major::k);
  ptx::fence_async_shared();
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  float sum[N / 2];
  for (float& x : sum) x = start;
  const auto address = [](const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
  };
  const std::uint64_t a_operand = sm90::matrix_descriptor(address(a_tile), kARows * 128, 1024);
  const std::uint64_t b_operand = sm90::matrix_descriptor(address(b_tile), kBRows * 128, 1024);
  std::uint32_t fragment[K / 16][4];
#pragma unroll
  for (int step = 0; step < K / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const gpu::FragmentCell cell = gpu::accumulator_cell(thread, 8 * step + 2 * i);
      fragment[step][i] = ptx::pack<T>(a[cell.row * K + cell.col], a[cell.row * K + cell.col + 1]);
    }
  }
  ptx::pin_registers(sum);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < K / 16; ++step) {
    const std::uint64_t b_step = b_operand + (kB == Major::k ? sm90::k_major_advance(step, kBRows)
                                                             : sm90::mn_major_advance(step));
    if constexpr (kFromRegisters) {
      ptx::product<T, N>::template registers<kB>(sum, fragment[step], b_step, 1);
    } else {
      const std::uint64_t a_step = a_operand + (kA == Major::k ? sm90::k_major_advance(step, kARows)
                                                               : sm90::mn_major_advance(step));
      ptx::product<T, N>::template shared<kA, kB>(sum, a_step, b_step, 1);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(sum);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const gpu::FragmentCell cell = gpu::accumulator_cell(thread, i);
    d[cell.row * N + cell.col] = sum[i];
  }
}

std::vector<float> small_integers(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(static_cast<int>(generator() % 9) - 4);
  return values;
}

template <class T, int N, int K, Major kA, Major kB, bool kFromRegisters>
void expect_product() {
  const std::vector<float> a = small_integers(std::size_t{kRows} * K, 1 + N);
  const std::vector<float> b = small_integers(std::size_t{K} * N, 2 + K);
  constexpr float kStart = 3;
  std::vector<float> expected(std::size_t{kRows} * N, kStart);
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < N; ++n) {
      for (int k = 0; k < K; ++k) {
        expected[static_cast<std::size_t>(m * N + n)] +=
            a[static_cast<std::size_t>(m * K + k)] * b[static_cast<std::size_t>(k * N + n)];
      }
    }
  }
  const DeviceArray<float> device_a(a), device_b(b),
      d(std::vector<float>(expected.size(), -777.0F));
  gpu_test::launch(multiply<T, N, K, kA, kB, kFromRegisters>, 1, 128, (kRows + N) * K * 2 + 1024,
                   static_cast<const float*>(device_a.data()),
                   static_cast<const float*>(device_b.data()), kStart, d.data());
  EXPECT_EQ(d.to_host(), expected)
      << "N " << N << " K " << K << " A " << static_cast<int>(kA) << " B " << static_cast<int>(kB)
      << " registers " << kFromRegisters;
}

// Tests all transposes with A in shared memory and both with A in registers. MN-major operands have
// 64-wide panels.
template <class T, int N, int K>
void expect_products() {
  expect_product<T, N, K, Major::k, Major::k, false>();
  expect_product<T, N, K, Major::mn, Major::k, false>();
  expect_product<T, N, K, Major::k, Major::k, true>();
  if constexpr (N % 64 == 0) {
    expect_product<T, N, K, Major::k, Major::mn, false>();
    expect_product<T, N, K, Major::mn, Major::mn, false>();
    expect_product<T, N, K, Major::k, Major::mn, true>();
  }
}

TEST(Wgmma, Bfloat16EqualsTheHostProduct) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_products<__nv_bfloat16, 32, 128>();
  expect_products<__nv_bfloat16, 64, 64>();
  expect_products<__nv_bfloat16, 64, 128>();
  expect_products<__nv_bfloat16, 80, 128>();
  expect_products<__nv_bfloat16, 128, 64>();
  expect_products<__nv_bfloat16, 128, 128>();
  expect_products<__nv_bfloat16, 160, 128>();
  expect_products<__nv_bfloat16, 176, 128>();
  expect_products<__nv_bfloat16, 256, 64>();
}

TEST(Wgmma, Float16EqualsTheHostProduct) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_products<__half, 32, 64>();
  expect_products<__half, 64, 64>();
  expect_products<__half, 80, 128>();
  expect_products<__half, 128, 128>();
  expect_products<__half, 160, 64>();
  expect_products<__half, 176, 64>();
  expect_products<__half, 256, 64>();
}

// Two groups are in flight. The first is complete once at most one is pending.
__global__ void __launch_bounds__(128, 1) two_groups(float* d) {
  extern __shared__ unsigned char raw[];
  auto* tile = reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(raw) + 1023) &
                                                ~std::uintptr_t{1023});
  for (int i = static_cast<int>(threadIdx.x); i < 64 * 64; i += 128) {
    *reinterpret_cast<__half*>(tile + sm90::swizzled_offset(i / 64, i % 64, 64)) =
        __float2half(1.0F);
  }
  ptx::fence_async_shared();
  __syncthreads();
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile));
  const std::uint64_t operand = sm90::matrix_descriptor(address, 64 * 128, 1024);
  // The values come from memory, since ptxas moves constants to their first use, behind the fence.
  float first[32], second[32];
  for (float& x : first) x = d[threadIdx.x];
  for (float& x : second) x = d[threadIdx.x];
  ptx::pin_registers(first);
  ptx::pin_registers(second);
  ptx::wgmma_fence();
  ptx::product<__half, 64>::shared<Major::k, Major::k>(first, operand, operand, 1);
  ptx::wgmma_commit();
  ptx::product<__half, 64>::shared<Major::k, Major::k>(second, operand, operand, 1);
  ptx::product<__half, 64>::shared<Major::k, Major::k>(second, operand, operand, 1);
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>();
  ptx::pin_registers(first);
  float sum = 0;
  for (const float x : first) sum += x;
  ptx::wgmma_wait<0>();
  ptx::pin_registers(second);
  for (const float x : second) sum += x;
  d[threadIdx.x] = sum;
}

TEST(Wgmma, GroupsEndInOrder) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const DeviceArray<float> d(std::vector<float>(128, 0));
  gpu_test::launch(two_groups, 1, 128, 64 * 128 + 1024, d.data());
  EXPECT_EQ(d.to_host(), std::vector<float>(128, 32 * 16 + 32 * 32));
}

}  // namespace
}  // namespace fdma
