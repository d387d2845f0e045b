// Copies by the copy engine against their definition: swizzled boxes in and out of strided tensors,
// with edges; bulk loads, stores and reductions.
#include <cuda_bf16.h>

#include <cstdint>

#include "device_array.hpp"
#include "fdma/formats/tensor_view.hpp"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/fragment.hpp"
#include "sm90/tensor_map.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;

constexpr int kBoxRows = 64;

// Shapes of [batch, rows, heads, head_dim], with padding between rows.
struct Extents {
  int batch, rows, heads, head_dim, row_padding;
  int row_stride() const { return heads * head_dim + row_padding; }
  int batch_stride() const { return rows * row_stride(); }
  std::size_t num_elements() const { return static_cast<std::size_t>(batch) * batch_stride(); }
  TensorView view(const void* data) const {
    return {data,
            DType::bfloat16,
            Device::cuda,
            4,
            {batch, rows, heads, head_dim},
            {batch_stride(), row_stride(), head_dim, 1}};
  }
};

__device__ unsigned char* aligned_shared() {
  extern __shared__ unsigned char raw[];
  return reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(raw) + 1023) &
                                          ~std::uintptr_t{1023});
}

// One box, as it lies in shared memory.
__global__ void load_box(const __grid_constant__ CUtensorMap map, int row, int head, int batch,
                         int bytes, std::uint16_t* out) {
  unsigned char* tile = aligned_shared();
  __shared__ std::uint64_t barrier;
  const std::uint32_t bar = ptx::shared_address(&barrier);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(bar, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect(bar, bytes);
    ptx::tma_load_5d(ptx::shared_address(tile), &map, bar, 0, row, 0, head, batch, ptx::kEvictLast);
  }
  ptx::mbarrier_wait(bar, 0, "load_box");
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 2; i += static_cast<int>(blockDim.x)) {
    out[i] = reinterpret_cast<const std::uint16_t*>(tile)[i];
  }
}

// Element (row, col) of the box is row * 256 + col.
__global__ void store_box(const __grid_constant__ CUtensorMap map, int row, int head, int batch,
                          int head_dim) {
  unsigned char* tile = aligned_shared();
  for (int i = static_cast<int>(threadIdx.x); i < kBoxRows * head_dim;
       i += static_cast<int>(blockDim.x)) {
    const int r = i / head_dim, c = i % head_dim;
    *reinterpret_cast<std::uint16_t*>(tile + sm90::swizzled_offset(r, c, kBoxRows)) =
        static_cast<std::uint16_t>(r * 256 + c);
  }
  ptx::fence_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::tma_store_5d(&map, ptx::shared_address(tile), 0, row, 0, head, batch);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

class TmaShapes : public testing::TestWithParam<Extents> {};

TEST_P(TmaShapes, LoadsASwizzledBoxAndFillsWhatLiesOutside) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const Extents e = GetParam();
  std::vector<std::uint16_t> values(e.num_elements());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i * 7 + 1);
  const DeviceArray<std::uint16_t> tensor(values);
  const auto map = sm90::make_tile_map(e.view(tensor.data()), kBoxRows);
  ASSERT_TRUE(map) << map.error().message;
  const int bytes = kBoxRows * e.head_dim * 2;
  for (const int row : {0, e.rows - 30, e.rows}) {
    const int head = e.heads - 1, batch = e.batch - 1;
    const DeviceArray<std::uint16_t> out(
        std::vector<std::uint16_t>(static_cast<std::size_t>(bytes / 2), 77));
    gpu_test::launch(load_box, 1, 64, bytes + 1024, *map, row, head, batch, bytes, out.data());
    const std::vector<std::uint16_t> got = out.to_host();
    for (int r = 0; r < kBoxRows; ++r) {
      for (int c = 0; c < e.head_dim; ++c) {
        const bool is_inside = row + r < e.rows;
        const std::size_t at = static_cast<std::size_t>(batch) * e.batch_stride() +
                               static_cast<std::size_t>(row + r) * e.row_stride() +
                               static_cast<std::size_t>(head * e.head_dim + c);
        ASSERT_EQ(got[sm90::swizzled_offset(r, c, kBoxRows) / 2], is_inside ? values[at] : 0)
            << "row " << row << " + " << r << " column " << c;
      }
    }
  }
}

TEST_P(TmaShapes, StoresABoxAndNothingOutside) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const Extents e = GetParam();
  const std::vector<std::uint16_t> poison(e.num_elements(), 0xDEAD);
  const DeviceArray<std::uint16_t> tensor(poison);
  const auto map = sm90::make_tile_map(e.view(tensor.data()), kBoxRows);
  ASSERT_TRUE(map) << map.error().message;
  const int row = e.rows - 30;
  gpu_test::launch(store_box, 1, 64, kBoxRows * e.head_dim * 2 + 1024, *map, row, 0, 0, e.head_dim);
  std::vector<std::uint16_t> expected = poison;
  for (int r = 0; r < 30; ++r) {
    for (int c = 0; c < e.head_dim; ++c) {
      expected[static_cast<std::size_t>(row + r) * e.row_stride() + static_cast<std::size_t>(c)] =
          static_cast<std::uint16_t>(r * 256 + c);
    }
  }
  EXPECT_EQ(tensor.to_host(), expected);
}

INSTANTIATE_TEST_SUITE_P(Tensors, TmaShapes,
                         testing::Values(Extents{1, 100, 1, 64, 0}, Extents{2, 77, 3, 128, 8},
                                         Extents{1, 31, 2, 256, 64}));

TEST(MakeTileMap, RejectsWhatTheCopyEngineCannotAddress) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const DeviceArray<std::uint16_t> tensor(std::vector<std::uint16_t>(65536, 0));
  Extents odd_dim{1, 10, 1, 80, 0};
  EXPECT_FALSE(sm90::make_tile_map(odd_dim.view(tensor.data()), kBoxRows));
  Extents odd_stride{1, 10, 1, 64, 3};
  EXPECT_FALSE(sm90::make_tile_map(odd_stride.view(tensor.data()), kBoxRows));
  Extents good{1, 10, 1, 64, 0};
  EXPECT_FALSE(sm90::make_tile_map(good.view(tensor.data() + 1), kBoxRows));
  EXPECT_TRUE(sm90::make_tile_map(good.view(tensor.data()), kBoxRows));
}

// Loads, then stores and adds what was loaded.
__global__ void bulk_copies(const float* from, float* copied, float* added, int bytes) {
  unsigned char* buffer = aligned_shared();
  __shared__ std::uint64_t barrier;
  const std::uint32_t bar = ptx::shared_address(&barrier), at = ptx::shared_address(buffer);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(bar, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect(bar, bytes);
    ptx::bulk_load(at, from, bytes, bar);
    ptx::mbarrier_wait(bar, 0, "bulk_copies");
    ptx::bulk_store(copied, at, bytes);
    ptx::bulk_commit();
    ptx::bulk_reduce_add(added, at, bytes);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::bulk_wait<0>();
  }
}

TEST(Bulk, LoadsStoresAndAdds) {
  FDMA_SKIP_WITHOUT_HOPPER();
  constexpr int kCount = 512, kBlocks = 5;
  std::vector<float> values(kCount), sum(kCount);
  for (int i = 0; i < kCount; ++i) {
    values[static_cast<std::size_t>(i)] = static_cast<float>(i - 100);
    sum[static_cast<std::size_t>(i)] = 1.0F + kBlocks * static_cast<float>(i - 100);
  }
  const DeviceArray<float> from(values), copied(std::vector<float>(kCount, -1)),
      added(std::vector<float>(kCount, 1));
  gpu_test::launch(bulk_copies, kBlocks, 32, kCount * 4 + 1024,
                   static_cast<const float*>(from.data()), copied.data(), added.data(), kCount * 4);
  EXPECT_EQ(copied.to_host(), values);
  EXPECT_EQ(added.to_host(), sum);
}

}  // namespace
}  // namespace fdma
