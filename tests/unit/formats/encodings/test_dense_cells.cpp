// Tests the packing of bytes 0 and 1 into bits and the reverse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/dense_cells.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

TensorView view_of(const Cells& cells, DType dtype = DType::boolean) {
  const std::int64_t extents[] = {cells.q_len, cells.kv_len};
  return make_contiguous_view(cells.values.data(), dtype, 2, extents);
}

TEST(DenseFromCells, PacksAnyStrides) {
  EXPECT_TRUE(rc::check("strides", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const Cells cells = testing::random_cells(rng, pick(rng, 0, 130), pick(rng, 0, 130));
    const auto packed = dense_from_cells(view_of(cells));
    RC_ASSERT(packed.has_value());
    RC_ASSERT(*packed == dense_of(cells));
    TensorView turned = view_of(cells, DType::uint8);
    std::swap(turned.extents[0], turned.extents[1]);
    std::swap(turned.strides[0], turned.strides[1]);
    const auto transposed = dense_from_cells(turned);
    RC_ASSERT(transposed.has_value());
    RC_ASSERT(*transposed ==
              dense_of(testing::make_cells(cells.kv_len, cells.q_len,
                                           [&](auto q, auto k) { return cells.get(k, q); })));
  }));
}

TEST(DenseFromCells, RejectsOtherValuesByTheFirstPlace) {
  Cells cells(5000, 131);
  cells.at(4000, 3) = 2;
  cells.at(77, 128) = -1;
  cells.at(77, 130) = 5;
  const auto packed = dense_from_cells(view_of(cells, DType::int8));
  ASSERT_FALSE(packed.has_value());
  EXPECT_EQ(packed.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(packed.error().message, "cell (77, 128): -1, expected 1 (attends) or 0");
}

TEST(DenseFromCells, RejectsOtherTypesRanksAndDevices) {
  const Cells cells(3, 4);
  EXPECT_EQ(dense_from_cells(view_of(cells, DType::float32)).error().code, ErrorCode::unsupported);
  TensorView view = view_of(cells);
  view.device = Device::cuda;
  EXPECT_EQ(dense_from_cells(view).error().code, ErrorCode::unsupported);
  view = view_of(cells);
  view.rank = 1;
  EXPECT_EQ(dense_from_cells(view).error().code, ErrorCode::invalid_argument);
}

TEST(WriteCells, WritesTheMaskAndNothingElse) {
  EXPECT_TRUE(rc::check("cells", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const Cells cells = testing::random_cells(rng, pick(rng, 0, 130), pick(rng, 0, 130));
    const SegmentMask mask = segment_from_dense(dense_of(cells), testing::random_block(rng));
    Cells out(cells.q_len + 1, cells.kv_len + 3);
    std::fill(out.values.begin(), out.values.end(), char{9});
    const std::int64_t extents[] = {out.q_len, out.kv_len};
    write_cells(mask, make_contiguous_mutable_view(out.values.data(), DType::uint8, 2, extents));
    for (std::int64_t q = 0; q < out.q_len; ++q) {
      for (std::int64_t k = 0; k < out.kv_len; ++k) {
        const bool exists = q < cells.q_len && k < cells.kv_len;
        RC_ASSERT(out.at(q, k) == (exists ? char{cells.get(q, k)} : char{9}));
      }
    }
  }));
}

}  // namespace
}  // namespace fdma
