// Tests attention on the CPU with random masks, shapes, types and layouts. Each head has a mask,
// and column masks run in every mode.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "backend/attention_case.hpp"
#include "fdma/formats/convert.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::MaskCase;
using testing::Order;
using testing::pick;
using testing::TensorChoice;

DType random_dtype(std::mt19937& rng) {
  constexpr DType kDTypes[] = {DType::float32, DType::bfloat16, DType::float16};
  return kDTypes[pick(rng, 0, 2)];
}

TensorChoice random_choice(std::mt19937& rng) {
  TensorChoice choice;
  choice.order = static_cast<Order>(pick(rng, 0, 3));
  choice.side = static_cast<testing::GuardSide>(pick(rng, 0, 1));
  choice.seed = rng();
  choice.q_scale = pick(rng, 0, 3) == 0 ? 8 : 1;
  choice.bias_scale = pick(rng, 0, 3) == 0 ? 20 : 1;
  choice.softcap = pick(rng, 0, 3) == 0 ? 0.3F : pick(rng, 0, 1) == 0 ? 50.0F : 3.0F;
  return choice;
}

TEST(AttentionForward, IsAccurateForRandomMasksAndShapes) {
  EXPECT_TRUE(rc::check("attention", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t batch = pick(rng, 1, 2), heads_kv = pick(rng, 1, 2), group = pick(rng, 1, 3);
    const MaskCase mask = testing::random_case(rng, pick(rng, 0, 1) == 0 ? 1 : batch,
                                               pick(rng, 0, 1) == 0 ? 1 : heads_kv * group, 180,
                                               testing::random_block(rng));
    AttentionShape shape =
        testing::shape_for(mask.mask, batch, static_cast<std::int32_t>(heads_kv * group),
                           static_cast<std::int32_t>(heads_kv));
    // Any head size is allowed, not only a multiple of a vector.
    shape.head_dim = static_cast<std::int32_t>(pick(rng, 1, 70));
    shape.head_dim_v = static_cast<std::int32_t>(pick(rng, 1, 70));
    // Each tensor has a type of its own.
    shape.q_dtype = random_dtype(rng);
    shape.k_dtype = random_dtype(rng);
    shape.v_dtype = random_dtype(rng);
    shape.out_dtype = random_dtype(rng);
    PlanOptions options;
    if (pick(rng, 0, 1) == 0) options.tile = testing::random_block(rng);
    options.columns = static_cast<ColumnMode>(pick(rng, 0, 3));
    const ScoreSpec score{.softcap = pick(rng, 0, 2) == 0, .key_bias = pick(rng, 0, 1) != 0};
    const float softmax_scale = pick(rng, 0, 1) == 0 ? 0 : 0.37F;
    const std::string error =
        testing::check_attention(mask, shape, score, random_choice(rng), options, softmax_scale);
    if (!error.empty()) {
      RC_FAIL(fmt::format("{} (head_dim {}/{}, tile {}x{}, types {} {} {} -> {})", error,
                          shape.head_dim, shape.head_dim_v, options.tile.block_q,
                          options.tile.block_kv, to_string(shape.q_dtype), to_string(shape.k_dtype),
                          to_string(shape.v_dtype), to_string(shape.out_dtype)));
    }
  }));
}

TEST(AttentionForward, IsAccurateForEveryHeadSize) {
  std::mt19937 rng(5);
  const MaskCase mask = testing::case_of(
      "noise", testing::make_cells(37, 45, [&](auto, auto) { return pick(rng, 0, 2) != 0; }),
      {16, 16});
  for (std::int32_t dim = 1; dim <= kMaxHeadDim; dim += dim < 40 ? 1 : 9) {
    AttentionShape shape = testing::shape_for(mask.mask, 1, 1, 1);
    shape.head_dim = dim;
    shape.head_dim_v = kMaxHeadDim + 1 - dim;
    shape.k_dtype = shape.v_dtype = dim % 2 == 0 ? DType::bfloat16 : DType::float32;
    EXPECT_EQ(testing::check_attention(mask, shape, {}, {}), "") << dim;
  }
}

TEST(AttentionForward, IsAccurateForColumnMasksInEveryMode) {
  std::mt19937 rng(9);
  for (int trial = 0; trial < 12; ++trial) {
    const std::int64_t q_len = pick(rng, 100, 300), kv_len = pick(rng, 200, 700);
    Cells cells = testing::random_live_ranges(rng, q_len, kv_len, 1 + trial % 4);
    if (trial % 2 == 0) {  // few keys are ever seen
      for (std::int64_t k = 0; k < kv_len; ++k) {
        if (k % 13 == 0) continue;
        for (std::int64_t q = 0; q < q_len; ++q) cells.at(q, k) = 0;
      }
    }
    const MaskCase mask = testing::case_of("live ranges", cells, {128, 128});
    AttentionShape shape = testing::shape_for(mask.mask, 1, 2, 1);
    shape.head_dim = 40;
    shape.head_dim_v = 24;
    for (const ColumnMode mode :
         {ColumnMode::automatic, ColumnMode::scan, ColumnMode::gather, ColumnMode::reorder}) {
      PlanOptions options;
      options.columns = mode;
      TensorChoice choice;
      choice.seed = static_cast<std::uint64_t>(trial) + 1;
      EXPECT_EQ(testing::check_attention(mask, shape, {.key_bias = true}, choice, options), "")
          << to_string(mode);
    }
  }
}

// Logits differ by hundreds. The online maximum moves from tile to tile, up and down, by more than
// the exponent range of float32.
TEST(AttentionForward, IsAccurateWhereLogitsAreFarApart) {
  const MaskCase mask = testing::case_of(
      "all", testing::make_cells(70, 600, [](auto, auto) { return true; }), {64, 64});
  AttentionShape shape = testing::shape_for(mask.mask, 1, 1, 1);
  shape.head_dim = shape.head_dim_v = 16;
  TensorChoice choice;
  for (const double scale : {1e-3, 30.0, 300.0}) {
    choice.bias_scale = scale;
    EXPECT_EQ(testing::check_attention(mask, shape, {.key_bias = true}, choice), "") << scale;
  }
  const auto plan = make_plan(mask.mask, shape, {.key_bias = true});
  ASSERT_TRUE(plan);
  for (const double step : {1.0, -1.0}) {
    testing::AttentionCase attention(shape, {.key_bias = true}, {});
    for (std::int64_t k = 0; k < 600; ++k)
      attention.bias().set(0, k, 0, 0, step * static_cast<double>(k - 300));
    ASSERT_TRUE(attention.run(*plan));
    EXPECT_EQ(attention.compare(mask), "") << step;
  }
}

// Caps from far below the logits, where every logit is near -cap or cap, to far above them, where
// the cap changes nothing.
TEST(AttentionForward, IsAccurateForEveryCap) {
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(70, 90, [](auto q, auto k) { return k <= q + 20; }), {32, 32});
  AttentionShape shape = testing::shape_for(mask.mask, 1, 2, 1);
  shape.head_dim = shape.head_dim_v = 16;
  TensorChoice choice;
  choice.q_scale = 4;
  for (const float cap :
       {kLeastSoftcap, 1e-3F, 0.5F, 2.0F, 13.0F, 50.0F, 1e3F, 1e6F, kMostSoftcap}) {
    choice.softcap = cap;
    for (const ScoreSpec score :
         {ScoreSpec{.softcap = true}, {.softcap = true, .key_bias = true}}) {
      for (const float scale : {0.0F, -0.3F}) {
        EXPECT_EQ(testing::check_attention(mask, shape, score, choice, {}, scale), "") << cap;
      }
    }
  }
}

}  // namespace
}  // namespace fdma
