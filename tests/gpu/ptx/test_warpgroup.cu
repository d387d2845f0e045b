// Tests of barriers, register reallocation, stmatrix, conversions and mask fragments, each alone.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/mask_bits.hpp"
#include "device_array.hpp"
#include "ptx/mbarrier.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/shared/fragment.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;

constexpr int kStages = 3, kRounds = 20;

// One warp writes numbers into a ring of buffers, and a warpgroup adds them up. The buffers are
// handed back either by one lane for its warp after __syncwarp, as kernels do it, or by every
// thread for itself.
//
// For the first way, racecheck of compute-sanitizer reports a write after read: a read by another
// lane of the warp and the write of the next round. The report is wrong. The read comes before the
// lane's __syncwarp. That orders it before the arrival (release) of lane 0, which the phase makes
// visible to the writer's wait (acquire). This order is transitive (PTX ISA, memory consistency
// model, causality order), but racecheck follows a barrier only for the threads that arrive
// themselves. For the second way, which makes the same accesses, it reports nothing.
template <bool kEachArrives>
__global__ void ring(int* sums) {
  __shared__ int buffer[kStages][128];
  __shared__ std::uint64_t barriers[2 * kStages];
  const auto full = [&](int stage) { return ptx::shared_address(&barriers[stage]); };
  const auto empty = [&](int stage) { return ptx::shared_address(&barriers[kStages + stage]); };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(full(stage), 32);
      ptx::mbarrier_init(empty(stage), kEachArrives ? 128 : 4);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::Ring<kStages> at;
  if (threadIdx.x >= 128) {
    const int lane = static_cast<int>(threadIdx.x) - 128;
    for (int round = 0; round < kRounds; ++round, at.advance()) {
      ptx::mbarrier_wait(empty(at.stage), at.phase ^ 1, "writer");
      for (int i = lane; i < 128; i += 32) buffer[at.stage][i] = round * 1000 + i;
      ptx::mbarrier_arrive(full(at.stage));
    }
  } else {
    int sum = 0;
    for (int round = 0; round < kRounds; ++round, at.advance()) {
      ptx::mbarrier_wait(full(at.stage), at.phase, "reader");
      sum += buffer[at.stage][threadIdx.x];
      if constexpr (kEachArrives) {
        ptx::mbarrier_arrive(empty(at.stage));
      } else {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty(at.stage));
      }
    }
    sums[threadIdx.x] = sum;
  }
}

void expect_sums_of_ring(void (*kernel)(int*)) {
  const DeviceArray<int> sums(std::vector<int>(128, -1));
  gpu_test::launch(kernel, 1, 160, 0, sums.data());
  std::vector<int> expected(128);
  for (int i = 0; i < 128; ++i) expected[static_cast<std::size_t>(i)] = 190 * 1000 + kRounds * i;
  EXPECT_EQ(sums.to_host(), expected);
}

TEST(Mbarrier, RingHandsOverEveryRoundByOneLaneOfAWarp) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_sums_of_ring(ring<false>);
}

TEST(Mbarrier, RingHandsOverEveryRoundByEveryThread) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_sums_of_ring(ring<true>);
}

// Two warpgroups take turns: each adds its digit to a number in shared memory.
//
// racecheck reports hazards here too, and the report is wrong. Each digit is written before its
// thread's fence and arrival, and the other group reads it after a barrier that waits for that
// arrival. A thread that only arrives is ordered before the threads that wait (PTX ISA,
// barrier.arrive with barrier.sync as producer and consumer). Any two accesses to `number` are
// ordered at least in this way.
__global__ void __launch_bounds__(384, 1) take_turns(std::uint64_t* out) {
  __shared__ std::uint64_t number;
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (threadIdx.x == 0) number = 0;
  __syncthreads();
  if (group == 0) {
    ptx::decrease_registers<40>();
  } else {
    ptx::increase_registers<232>();
    if (group == 2) ptx::named_barrier_arrive(1, 256);  // the first group goes first
    for (int turn = 0; turn < 5; ++turn) {
      ptx::named_barrier_sync(group, 256);
      if (threadIdx.x % 128 == 0) number = number * 10 + static_cast<std::uint64_t>(group);
      __threadfence_block();
      ptx::named_barrier_arrive(3 - group, 256);
    }
    if (group == 1) ptx::named_barrier_sync(1, 256);  // the last arrival of the second group
  }
  __syncthreads();
  if (threadIdx.x == 0) *out = number;
}

TEST(NamedBarrier, WarpgroupsTakeTurnsWithTheirOwnRegisterCounts) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const DeviceArray<std::uint64_t> out(std::vector<std::uint64_t>(1, 0));
  gpu_test::launch(take_turns, 1, 384, 0, out.data());
  EXPECT_EQ(out.to_host()[0], 1212121212u);
}

// Stores a 64 x 16 accumulator tile to swizzled shared memory by stmatrix.
template <class T>
__global__ void store_fragment(std::uint16_t* out) {
  __shared__ alignas(1024) unsigned char tile[64 * 128];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  std::uint32_t packed[4];
  for (int i = 0; i < 4; ++i) {
    const gpu::FragmentCell cell = gpu::accumulator_cell(thread, 2 * i);
    packed[i] = ptx::pack<T>(static_cast<float>(cell.row * 16 + cell.col),
                             static_cast<float>(cell.row * 16 + cell.col + 1));
  }
  // The first two matrices are rows 0-7 and 8-15 of the warp's 16 with columns 0-7; the other two
  // have columns 8-15.
  const int row = thread / 32 * 16 + lane % 16, col = lane / 16 * 8;
  ptx::stmatrix_x4(ptx::shared_address(tile) + sm90::swizzled_offset(row, col, 64), packed[0],
                   packed[1], packed[2], packed[3]);
  __syncthreads();
  for (int i = thread; i < 64 * 16; i += 128) {
    out[i] =
        *reinterpret_cast<const std::uint16_t*>(tile + sm90::swizzled_offset(i / 16, i % 16, 64));
  }
}

TEST(Stmatrix, PutsAccumulatorsWhereTheTileWantsThem) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const DeviceArray<std::uint16_t> out(std::vector<std::uint16_t>(64 * 16, 0));
  gpu_test::launch(store_fragment<__half>, 1, 128, 0, out.data());
  const std::vector<std::uint16_t> got = out.to_host();
  for (std::size_t i = 0; i < got.size(); ++i) {
    __half value;
    std::memcpy(static_cast<void*>(&value), &got[i], sizeof value);
    ASSERT_EQ(__half2float(value), static_cast<float>(i)) << i;
  }
}

__global__ void mask_fragments(std::uint32_t* out) {
  const int limit = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) - 300;
  out[limit + 300] = gpu::columns_below(limit);
}

TEST(ColumnsBelow, IsTheSameOnTheDevice) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const DeviceArray<std::uint32_t> out(std::vector<std::uint32_t>(640, 0));
  gpu_test::launch(mask_fragments, 5, 128, 0, out.data());
  const std::vector<std::uint32_t> got = out.to_host();
  for (int limit = -300; limit < 340; ++limit) {
    ASSERT_EQ(got[static_cast<std::size_t>(limit + 300)], gpu::columns_below(limit)) << limit;
  }
}

__global__ void powers(const float* x, float* y) {
  y[threadIdx.x] = ptx::exp2_approx(x[threadIdx.x]);
}

TEST(Exp2Approx, IsCloseAndZeroAtMinusInfinity) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::vector<float> x(128);
  for (int i = 0; i < 127; ++i) x[static_cast<std::size_t>(i)] = -0.37F * static_cast<float>(i);
  x[127] = -INFINITY;
  const DeviceArray<float> in(x), out(std::vector<float>(128, -1));
  gpu_test::launch(powers, 1, 128, 0, static_cast<const float*>(in.data()), out.data());
  const std::vector<float> got = out.to_host();
  for (std::size_t i = 0; i < 127; ++i) {
    EXPECT_NEAR(got[i] / std::exp2(static_cast<double>(x[i])), 1.0, 5e-7) << x[i];
  }
  EXPECT_EQ(got[127], 0.0F);
}

__global__ void reduce(float* sums) {
  ptx::reduce_add_x4(sums + 4 * threadIdx.x, 1, 2, 3, static_cast<float>(threadIdx.x));
}

TEST(ReduceAdd, AddsFourFloats) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const DeviceArray<float> sums(std::vector<float>(4 * 32, 10));
  gpu_test::launch(reduce, 7, 32, 0, sums.data());
  std::vector<float> expected;
  for (int i = 0; i < 32; ++i) {
    for (const float x : {1.0F, 2.0F, 3.0F, static_cast<float>(i)}) expected.push_back(10 + 7 * x);
  }
  EXPECT_EQ(sums.to_host(), expected);
}

}  // namespace
}  // namespace fdma
