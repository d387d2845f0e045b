#include <gtest/gtest.h>

#include <random>

#include "io/dense/geometry.hpp"

namespace fdma::io {
namespace {

DatasetInfo info_of(std::vector<std::int64_t> extents, std::vector<std::int64_t> chunk) {
  DatasetInfo info;
  info.extents = std::move(extents);
  info.chunk = std::move(chunk);
  return info;
}

DenseGeometry geometry_of(const DatasetInfo& info, std::int64_t element_bytes) {
  auto geometry = DenseGeometry::of(info, {}, element_bytes, "test");
  EXPECT_TRUE(geometry);
  return *geometry;
}

void expect_within_limits(const DenseGeometry& geometry, std::int64_t element_bytes) {
  const std::int64_t least = geometry.group[0] * geometry.group[1] * 64 * element_bytes;
  EXPECT_LE(geometry.slab_values() * element_bytes, std::max(DenseGeometry::kSlabBytes, least));
  const std::int64_t bits = geometry.group[0] * geometry.group[1] *
                            (std::min(geometry.band_rows + 128, geometry.extents[2]) + 2) *
                            (geometry.extents[3] + 256) / 8;
  EXPECT_LE(bits, std::max(DenseGeometry::kWindowBytes, 260 * (geometry.extents[3] + 256) / 8));
}

// Every cell lies in exactly one slab, and bands and groups end where the slabs say so.
TEST(DenseGeometry, CoversEveryCellOnce) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const auto up_to = [&](std::int64_t n) { return 1 + static_cast<std::int64_t>(random() % n); };
    std::vector<std::int64_t> extents = {up_to(3), up_to(3), up_to(40), up_to(40)};
    std::vector<std::int64_t> chunk;
    if (trial % 3 != 0) chunk = {up_to(3), up_to(3), up_to(50), up_to(50)};
    DenseGeometry geometry = geometry_of(info_of(extents, chunk), 1);
    if (trial % 2 != 0) {  // as if the budgets were tiny
      geometry.band_rows = up_to(geometry.band_rows);
      geometry.group_cols = up_to(geometry.group_cols);
      geometry.slab_rows = up_to(geometry.band_rows);
      geometry.slab_cols = up_to(geometry.group_cols);
    }
    std::vector<int> seen(static_cast<std::size_t>(geometry.num_values()));
    std::vector<std::int64_t> complete(static_cast<std::size_t>(extents[0] * extents[1]));
    geometry.for_each_slab([&](const Slab& slab) {
      for (std::int64_t b = 0; b < slab.count[0]; ++b) {
        for (std::int64_t h = 0; h < slab.count[1]; ++h) {
          const std::int64_t plane = (slab.begin[0] + b) * extents[1] + slab.begin[1] + h;
          for (std::int64_t q = 0; q < slab.count[2]; ++q) {
            for (std::int64_t k = 0; k < slab.count[3]; ++k) {
              const std::int64_t row = slab.begin[2] + q;
              ++seen[static_cast<std::size_t>((plane * extents[2] + row) * extents[3] +
                                              slab.begin[3] + k)];
              EXPECT_GE(row, complete[static_cast<std::size_t>(plane)]);
            }
          }
          const std::int64_t end = slab.begin[2] + slab.count[2];
          if (slab.ends_band) complete[static_cast<std::size_t>(plane)] = end;
          EXPECT_EQ(slab.ends_group, slab.ends_band && end == extents[2]);
        }
      }
      return true;
    });
    for (const int count : seen) ASSERT_EQ(count, 1);
    for (const std::int64_t rows : complete) ASSERT_EQ(rows, extents[2]);
  }
}

TEST(DenseGeometry, KeepsLargeMasksWithinItsBudgets) {
  constexpr std::int64_t k128 = 131072;
  const std::vector<std::int64_t> chunks[] = {{},           {512, 512},   {1, k128}, {k128, 1},
                                              {k128, 8},    {1024, 1024}, {16, 16},  {100, 7000},
                                              {8192, 8192}, {2048, k128}};
  for (const auto& chunk : chunks) {
    for (const std::int64_t element_bytes : {1, 2, 4}) {
      const DatasetInfo info = info_of({k128, k128}, chunk);
      const DenseGeometry geometry = geometry_of(info, element_bytes);
      expect_within_limits(geometry, element_bytes);
      if (!chunk.empty() && geometry.slab_rows * geometry.slab_cols < chunk[0] * chunk[1]) {
        EXPECT_EQ(geometry.cache_bytes, chunk[0] * chunk[1] * element_bytes);
      }
    }
  }
}

TEST(DenseGeometry, ReadsPlanesThatShareChunksTogether) {
  const DenseGeometry geometry = geometry_of(info_of({4, 8, 1024, 1024}, {1, 4, 64, 64}), 1);
  EXPECT_EQ(geometry.group, (std::array<std::int64_t, 2>{1, 4}));
  EXPECT_EQ(geometry.band_rows % 64, 0);
}

TEST(DenseGeometry, RejectsWhatWouldNotFit) {
  const auto code_of = [](const DatasetInfo& info) {
    const auto geometry = DenseGeometry::of(info, {}, 8, "test");
    return geometry ? ErrorCode::internal : geometry.error().code;
  };
  EXPECT_EQ(code_of(info_of({1 << 20, 1 << 20}, {1 << 16, 1 << 16})), ErrorCode::unsupported);
  EXPECT_EQ(code_of(info_of({kMaxLength, kMaxLength}, {})), ErrorCode::out_of_memory);
  EXPECT_EQ(code_of(info_of({16, kMaxLength + 1}, {})), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(info_of({1 << 20, 1 << 20, 1, 1}, {})), ErrorCode::shape_mismatch);
}

}  // namespace
}  // namespace fdma::io
