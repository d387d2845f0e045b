// Tests attention by closed-form plans: results of the reference, bits of plans of segments, and
// lengths and documents that change from call to call.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/attention_case.hpp"
#include "backend/closed_form_cases.hpp"
#include "fdma/formats/convert.hpp"
#include "plan/closed_form.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::AttentionCase;
using testing::CallElement;
using ::testing::HasSubstr;
using testing::MaskCase;
using testing::pick;

AttentionPlan closed_form_plan(const BlockMask& mask, const AttentionShape& shape,
                               BlockShape tile = {0, 0}, ScoreSpec score = {}) {
  PlanOptions options;
  options.form = PlanForm::parametric;
  options.tile = tile;
  auto plan = make_plan(mask, shape, score, options);
  EXPECT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(validate(*plan)) << validate(*plan).error().message;
  return *std::move(plan);
}

AttentionShape small_shape(const BlockMask& mask, std::int64_t batch, std::int32_t heads_q = 2,
                           std::int32_t heads_kv = 1) {
  AttentionShape shape = testing::shape_for(mask, batch, heads_q, heads_kv);
  shape.head_dim = 24;
  shape.head_dim_v = 20;
  return shape;
}

TensorView ints(const std::vector<std::int32_t>& values, std::int64_t rows = 0) {
  const auto count = static_cast<std::int64_t>(values.size());
  if (rows == 0) return make_contiguous_view(values.data(), DType::int32, 1, &count);
  const std::int64_t extents[] = {rows, count / rows};
  return make_contiguous_view(values.data(), DType::int32, 2, extents);
}

TEST(ClosedFormPlan, ComputesWhatPlansOfSegmentsDoBitByBit) {
  for (const auto& [q_len, kv_len] : {std::pair{300, 300}, {171, 290}, {290, 171}, {1, 400}}) {
    for (const ParametricMask& form : testing::plain_forms(q_len, kv_len)) {
      const BlockMask mask = testing::block_mask_of(form);
      const MaskCase each = testing::case_of("plain", testing::cells_of(form), {16, 16});
      const AttentionShape shape = small_shape(mask, 2, 4, 2);
      AttentionCase attention(shape, {}, {});
      ASSERT_TRUE(attention.run(closed_form_plan(mask, shape)));
      EXPECT_EQ(attention.compare(each), "");
      const std::vector<unsigned char> bytes = attention.result_bytes();
      ASSERT_TRUE(attention.run(*make_plan(mask, shape)));
      EXPECT_EQ(attention.result_bytes(), bytes);
    }
  }
}

// A mask of another format gets the closed form of its cells.
TEST(ClosedFormPlan, TakesMasksOfEveryFormat) {
  for (const ParametricMask& form : testing::plain_forms(150, 170)) {
    const MaskCase each = testing::case_of("cells", testing::cells_of(form), {32, 32});
    for (const MaskFormat format : kMaskFormats) {
      const auto mask = convert(each.mask, format, {32, 32});
      ASSERT_TRUE(mask) << mask.error().message;
      const AttentionShape shape = small_shape(*mask, 1);
      AttentionCase attention(shape, {}, {});
      ASSERT_TRUE(attention.run(closed_form_plan(*mask, shape, {64, 32})));
      EXPECT_EQ(attention.compare(each), "") << to_string(format);
    }
  }
}

TEST(ClosedFormPlan, FollowsTheLengthsAndDocumentsOfEachCall) {
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    std::mt19937 rng(seed);
    const ParametricMask form = testing::random_form(rng, 150, 200);
    const BlockMask mask = testing::block_mask_of(form);
    const std::int64_t batch = pick(rng, 1, 4);
    const bool has_bias = pick(rng, 0, 3) == 0;
    const ScoreSpec score{.key_bias = has_bias};
    const AttentionShape planned = small_shape(mask, batch, 4, 2);
    const AttentionPlan plan = closed_form_plan(mask, planned, testing::random_block(rng), score);
    const bool has_documents = pick(rng, 0, 1) == 0, is_shared = pick(rng, 0, 1) == 0;
    const std::int64_t num_borders = pick(rng, 2, 6);
    for (int call = 0; call < 3; ++call) {
      const testing::RandomCall given(rng, form, batch, has_documents ? num_borders : 0, is_shared);
      const MaskCase expected =
          testing::case_at_call(fmt::format("seed {}", seed), form, given.elements);
      AttentionShape shape = planned;
      shape.q_lens.assign(given.q_lens.begin(), given.q_lens.end());
      shape.kv_lens.assign(given.kv_lens.begin(), given.kv_lens.end());
      AttentionCase attention(shape, score, {.seed = seed + 1});
      AttentionTensors tensors = attention.tensors();
      tensors.q_lens = ints(given.q_lens);
      tensors.kv_lens = ints(given.kv_lens);
      if (has_documents) tensors.cu_seqlens = ints(given.borders, is_shared ? 0 : batch);
      attention.out().fill(0xff);
      attention.lse().fill(0xff);
      const auto ran = attention_forward(plan, tensors, {});
      ASSERT_TRUE(ran) << ran.error().message;
      ASSERT_EQ(attention.compare(expected), "")
          << closed_form_text(testing::closed_forms_of(plan), 0);
    }
  }
}

// The calls decode by one plan for up to 600 keys. The window moves with the length, and sinks
// stay.
TEST(ClosedFormPlan, MovesAWindowWithTheLengthOfTheKeys) {
  ParametricMask form;
  form.q_len = 1;
  form.kv_len = form.kv_end = 600;
  form.pos_offset = 599;
  form.left = 99;
  form.right = 0;
  form.sink = 4;
  const BlockMask mask = testing::block_mask_of(form);
  const AttentionPlan plan = closed_form_plan(mask, small_shape(mask, 3));
  EXPECT_EQ(plan.size_bytes(), static_cast<std::int64_t>(sizeof(ClosedFormMask)) + 8);
  const std::vector<std::int32_t> q_lens{1, 1, 1}, kv_lens{600, 1, 250};
  const MaskCase expected = testing::case_at_call("decode", form, {{1, 600}, {1, 1}, {1, 250}});
  EXPECT_EQ(std::count(expected.cells[2].values.begin(), expected.cells[2].values.end(), 1), 104);
  AttentionShape shape = plan.shape;
  shape.q_lens.assign(q_lens.begin(), q_lens.end());
  shape.kv_lens.assign(kv_lens.begin(), kv_lens.end());
  AttentionCase attention(shape, {}, {});
  AttentionTensors tensors = attention.tensors();
  tensors.kv_lens = ints(kv_lens);
  attention.out().fill(0xff);
  attention.lse().fill(0xff);
  ASSERT_TRUE(attention_forward(plan, tensors, {}));
  EXPECT_EQ(attention.compare(expected), "");
}

TEST(ClosedFormPlan, RejectsLengthsAndDocumentsThatItCannotHave) {
  const ParametricMask form = testing::plain_forms(40, 50)[1];
  const BlockMask mask = testing::block_mask_of(form);
  const AttentionShape shape = small_shape(mask, 2);
  const AttentionPlan plan = closed_form_plan(mask, shape);
  AttentionCase attention(shape, {}, {});
  const auto expect_error = [&](const AttentionPlan& of, ErrorCode code, const char* text,
                                auto&& change) {
    AttentionTensors tensors = attention.tensors();
    change(tensors);
    attention.out().fill(0x3c);
    const auto ran = attention_forward(of, tensors, {});
    ASSERT_FALSE(ran) << text;
    EXPECT_EQ(ran.error().code, code) << ran.error().message;
    EXPECT_THAT(ran.error().message, HasSubstr(text));
    for (const unsigned char byte : attention.out().bytes()) ASSERT_EQ(byte, 0x3c) << text;
  };
  const std::vector<std::int32_t> fit{40, 40}, too_long{40, 41}, negative{-1, 40}, three{1, 2, 3};
  const std::vector<std::int32_t> falling{0, 30, 29, 50}, beyond{0, 51};
  const auto wrong = ErrorCode::invalid_argument;
  expect_error(*make_plan(mask, shape), ErrorCode::unsupported, "form = parametric",
               [&](AttentionTensors& t) { t.kv_lens = ints(fit); });
  expect_error(plan, wrong, "q_lens[1]: expected 0 to 40, the length in the plan, got 41",
               [&](AttentionTensors& t) { t.q_lens = ints(too_long); });
  expect_error(plan, wrong, "kv_lens[0]: expected 0 to 50",
               [&](AttentionTensors& t) { t.kv_lens = ints(negative); });
  expect_error(plan, ErrorCode::shape_mismatch, "q_lens: expected [batch] = [2], got [3]",
               [&](AttentionTensors& t) { t.q_lens = ints(three); });
  expect_error(plan, ErrorCode::shape_mismatch, "kv_lens: expected int32",
               [&](AttentionTensors& t) {
                 t.kv_lens = ints(fit);
                 t.kv_lens.dtype = DType::int64;
               });
  expect_error(plan, ErrorCode::unsupported, "q_lens: lies on a CUDA device",
               [&](AttentionTensors& t) {
                 t.q_lens = ints(fit);
                 t.q_lens.device = Device::cuda;
               });
  expect_error(plan, wrong, "q_lens: expected a contiguous tensor", [&](AttentionTensors& t) {
    t.q_lens = ints(falling);
    t.q_lens.extents[0] = 2;
    t.q_lens.strides[0] = 2;
  });
  expect_error(plan, wrong, "cu_seqlens[2]: expected 30 to 50, got 29",
               [&](AttentionTensors& t) { t.cu_seqlens = ints(falling); });
  expect_error(plan, wrong, "cu_seqlens[1, 0]: expected 0 to 50", [&](AttentionTensors& t) {
    static const std::vector<std::int32_t> rows{0, 50, -3, 50};
    t.cu_seqlens = ints(rows, 2);
  });
  expect_error(plan, wrong, "cu_seqlens[1]: expected 0 to 50, got 51",
               [&](AttentionTensors& t) { t.cu_seqlens = ints(beyond); });
  expect_error(plan, ErrorCode::shape_mismatch, "cu_seqlens: expected [documents + 1] = [2]",
               [&](AttentionTensors& t) {
                 t.cu_seqlens = ints(beyond);
                 t.cu_seqlens.extents[0] = 1;
               });
  expect_error(plan, ErrorCode::shape_mismatch, "cu_seqlens: expected [batch, documents + 1]",
               [&](AttentionTensors& t) { t.cu_seqlens = ints(three, 3); });
}

}  // namespace
}  // namespace fdma
