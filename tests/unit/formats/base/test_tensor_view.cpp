// Tests that a view that may be written is one that may be read, and never the other way round.
#include <gtest/gtest.h>

#include <type_traits>

#include "fdma/base/tensor_view.hpp"

namespace fdma {
namespace {

static_assert(std::is_convertible_v<MutableTensorView, TensorView>);
static_assert(!std::is_convertible_v<TensorView, MutableTensorView>);
static_assert(std::is_aggregate_v<TensorView> && std::is_aggregate_v<MutableTensorView>);

TEST(MutableTensorView, ConvertsToAViewOfTheSameElements) {
  float data[6] = {};
  const std::int64_t extents[] = {2, 3};
  MutableTensorView written = make_contiguous_mutable_view(data, DType::float32, 2, extents);
  written.device = Device::cuda;
  const TensorView read = written;
  EXPECT_EQ(read.data, data);
  EXPECT_EQ(read.dtype, DType::float32);
  EXPECT_EQ(read.device, Device::cuda);
  EXPECT_EQ(read.rank, 2);
  EXPECT_EQ(read.extents, written.extents);
  EXPECT_EQ(read.strides, written.strides);
  EXPECT_TRUE(written.is_contiguous());
  EXPECT_EQ(written.num_elements(), 6);
}

TEST(TensorView, MayDescribeOtherElements) {
  const float data[6] = {};
  float copy[6] = {};
  const std::int64_t extents[] = {2, 3};
  const TensorView read = make_contiguous_view(data, DType::float32, 2, extents);
  const MutableTensorView written = read.with_data(static_cast<void*>(copy));
  EXPECT_EQ(written.data, copy);
  EXPECT_EQ(written.extents, read.extents);
  EXPECT_EQ(written.strides, read.strides);
}

}  // namespace
}  // namespace fdma
