// Copies by TMA against their definition. They are swizzled boxes in and out of strided tensors,
// with edges, and bulk loads, stores and reductions.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "device_array.hpp"
#include "fdma/base/tensor_view.hpp"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/shared/fragment.hpp"
#include "sm90/shared/tensor_map.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;

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

// Loads one box and copies out the bytes that it has in shared memory.
__global__ void load_box(const __grid_constant__ CUtensorMap map, int column, int head, int row,
                         int group, int batch, int bytes, std::uint16_t* out) {
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
    ptx::tma_load_5d(ptx::shared_address(tile), &map, bar, column, head, row, group, batch,
                     ptx::kEvictLast);
  }
  ptx::mbarrier_wait(bar, 0, "load_box");
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 2; i += static_cast<int>(blockDim.x)) {
    out[i] = reinterpret_cast<const std::uint16_t*>(tile)[i];
  }
}

// Stores one box, whose element (row, col) is row * 256 + col.
__global__ void store_box(const __grid_constant__ CUtensorMap map, int column, int head, int row,
                          int group, int batch, int num_rows) {
  unsigned char* tile = aligned_shared();
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * sm90::kPanelColumns;
       i += static_cast<int>(blockDim.x)) {
    const int r = i / sm90::kPanelColumns, c = i % sm90::kPanelColumns;
    *reinterpret_cast<std::uint16_t*>(tile + sm90::swizzled_offset(r, c, num_rows)) =
        static_cast<std::uint16_t>(r * 256 + c);
  }
  ptx::fence_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::tma_store_5d(&map, ptx::shared_address(tile), column, head, row, group, batch);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}

// A tensor, its groups of heads, and a box whose last rows, heads and columns are outside the
// tensor.
struct MapCase {
  Extents extents;
  int group_size;
  sm90::TileBox box;
  int tile_rows() const { return box.rows * box.heads; }
  // Sets the place in the tensor of tile row r of the box at (column, head, row, group, batch).
  // Returns false if it is outside.
  bool find(int r, int c, int head, int row, std::size_t& at) const {
    const Extents& e = extents;
    const int tensor_row = row + r / box.heads, in_group = head + r % box.heads;
    if (tensor_row >= e.rows || in_group >= group_size || c >= e.head_dim) return false;
    at = static_cast<std::size_t>(e.batch - 1) * e.batch_stride() +
         static_cast<std::size_t>(tensor_row) * e.row_stride() +
         static_cast<std::size_t>((e.heads - group_size + in_group) * e.head_dim + c);
    return true;
  }
};

class TmaShapes : public testing::TestWithParam<MapCase> {};

TEST_P(TmaShapes, LoadsASwizzledBoxAndFillsWhatLiesOutside) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MapCase& m = GetParam();
  const Extents& e = m.extents;
  std::vector<std::uint16_t> values(e.num_elements());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i * 7 + 1);
  const DeviceArray<std::uint16_t> tensor(values);
  const auto map = sm90::make_tile_map(e.view(tensor.data()), m.group_size, m.box);
  ASSERT_TRUE(map) << map.error().message;
  const int bytes = m.tile_rows() * sm90::kPanelRowBytes;
  for (const int row : {0, std::max(e.rows - 3, 0), e.rows}) {
    for (int column = 0; column < e.head_dim + 64; column += sm90::kPanelColumns) {
      for (int head = 0; head < m.group_size; head += m.box.heads) {
        const DeviceArray<std::uint16_t> out(
            std::vector<std::uint16_t>(static_cast<std::size_t>(bytes / 2), 77));
        gpu_test::launch(load_box, 1, 64, bytes + 1024, *map, column, head, row,
                         e.heads / m.group_size - 1, e.batch - 1, bytes, out.data());
        const std::vector<std::uint16_t> got = out.to_host();
        for (int r = 0; r < m.tile_rows(); ++r) {
          for (int c = 0; c < sm90::kPanelColumns; ++c) {
            std::size_t at = 0;
            const bool is_inside = m.find(r, column + c, head, row, at);
            ASSERT_EQ(got[sm90::swizzled_offset(r, c, m.tile_rows()) / 2],
                      is_inside ? values[at] : 0)
                << "row " << row << " head " << head << " tile row " << r << " column "
                << column + c;
          }
        }
      }
    }
  }
}

TEST_P(TmaShapes, StoresABoxAndNothingOutside) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MapCase& m = GetParam();
  const Extents& e = m.extents;
  const std::vector<std::uint16_t> poison(e.num_elements(), 0xDEAD);
  const DeviceArray<std::uint16_t> tensor(poison);
  const auto map = sm90::make_tile_map(e.view(tensor.data()), m.group_size, m.box);
  ASSERT_TRUE(map) << map.error().message;
  const int row = std::max(e.rows - 3, 0), head = m.group_size - 1,
            column = (e.head_dim - 1) / sm90::kPanelColumns * sm90::kPanelColumns;
  gpu_test::launch(store_box, 1, 64, m.tile_rows() * sm90::kPanelRowBytes + 1024, *map, column,
                   head, row, e.heads / m.group_size - 1, e.batch - 1, m.tile_rows());
  std::vector<std::uint16_t> expected = poison;
  for (int r = 0; r < m.tile_rows(); ++r) {
    for (int c = 0; c < sm90::kPanelColumns; ++c) {
      std::size_t at = 0;
      if (m.find(r, column + c, head, row, at)) {
        expected[at] = static_cast<std::uint16_t>(r * 256 + c);
      }
    }
  }
  EXPECT_EQ(tensor.to_host(), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Tensors, TmaShapes,
    testing::Values(MapCase{{1, 100, 1, 64, 0}, 1, {64}}, MapCase{{2, 77, 3, 128, 8}, 1, {64}},
                    MapCase{{1, 31, 2, 256, 64}, 1, {128}}, MapCase{{2, 50, 2, 80, 0}, 1, {64}},
                    MapCase{{1, 9, 3, 8, 0}, 1, {64}}, MapCase{{2, 20, 8, 64, 0}, 4, {16, 4}},
                    MapCase{{1, 40, 14, 96, 16}, 7, {8, 8}}, MapCase{{2, 5, 3, 16, 0}, 3, {32, 2}},
                    MapCase{{1, 1, 12, 128, 0}, 12, {8, 8}}));

TEST(MakeTileMap, RejectsWhatTheCopyEngineCannotAddress) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const DeviceArray<std::uint16_t> tensor(std::vector<std::uint16_t>(65536, 0));
  const auto is_made = [](const Extents& extents, const void* data) {
    return static_cast<bool>(sm90::make_tile_map(extents.view(data), 1, {64}));
  };
  EXPECT_FALSE(is_made({1, 10, 1, 84, 0}, tensor.data()));
  EXPECT_FALSE(is_made({1, 10, 1, 64, 3}, tensor.data()));
  EXPECT_FALSE(is_made({1, 10, 1, 64, 0}, tensor.data() + 1));
  EXPECT_TRUE(is_made({1, 10, 1, 64, 0}, tensor.data()));
}

// Loads bytes, then stores them and adds them.
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
