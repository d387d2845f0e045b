// Tests that a checked call describes the tensors that were checked, and that only a check makes one.
#include <gtest/gtest.h>

#include <type_traits>

#include "backend/attention_case.hpp"
#include "call/attention_call.hpp"
#include "call/backward_call.hpp"

namespace fdma {
namespace {

using testing::Cells;

static_assert(!std::is_default_constructible_v<CheckedCall>);
static_assert(!std::is_default_constructible_v<CheckedBackwardCall>);
static_assert(!std::is_aggregate_v<CheckedCall> && !std::is_aggregate_v<CheckedBackwardCall>);

template <class Data>
void expect_same(const BasicTensorView<Data>& got, const BasicTensorView<Data>& wanted) {
  EXPECT_EQ(got.data, wanted.data);
  EXPECT_EQ(got.dtype, wanted.dtype);
  EXPECT_EQ(got.device, wanted.device);
  EXPECT_EQ(got.rank, wanted.rank);
  EXPECT_EQ(got.extents, wanted.extents);
  EXPECT_EQ(got.strides, wanted.strides);
}

TEST(CheckedCall, HasTheExtentsAndStridesOfTheTensors) {
  const testing::MaskCase mask = testing::case_of("one", Cells(30, 50), {16, 16});
  AttentionShape shape = testing::shape_for(mask.mask, 2, 4, 2);
  shape.head_dim = 24;
  shape.head_dim_v = 40;
  testing::AttentionCase attention(shape, {.key_bias = true}, {});
  const AttentionTensors tensors = attention.tensors();
  const auto call = checked_call(shape, {.key_bias = true}, tensors, {}, Device::cpu);
  ASSERT_TRUE(call) << call.error().message;
  expect_same(call->q.view(), tensors.q);
  expect_same(call->k.view(), tensors.kv.k);
  expect_same(call->v.view(), tensors.kv.v);
  expect_same(call->out.view(), tensors.out);
  EXPECT_EQ(call->out_low.data, nullptr);
  EXPECT_EQ(call->k.num_rows(), tensors.kv.k.extents[1]);
  EXPECT_EQ(call->k.row(1, 2, 1),
            static_cast<const char*>(tensors.kv.k.data) +
                (tensors.kv.k.strides[0] + 2 * tensors.kv.k.strides[1] + tensors.kv.k.strides[2]) *
                    size_bytes(shape.k_dtype));
  const auto* const bias = static_cast<const float*>(tensors.key_bias.data);
  EXPECT_EQ(&call->key_bias.at(1, 1, 7),
            bias + tensors.key_bias.strides[0] + tensors.key_bias.strides[1] + 7);
  auto* const lse = static_cast<float*>(tensors.lse.data);
  EXPECT_EQ(&call->lse.at(1, 3, 5),
            lse + tensors.lse.strides[0] + 3 * tensors.lse.strides[1] + 5 * tensors.lse.strides[2]);
  EXPECT_FLOAT_EQ(call->scale * call->scale * 24, 1);
}

}  // namespace
}  // namespace fdma
