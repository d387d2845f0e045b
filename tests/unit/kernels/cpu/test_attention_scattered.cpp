// Tests attention on the CPU over masks of few live keys. Tiles, kv index lists and permuted keys
// give results near those in float64, and the same bits in every run.
#include <gtest/gtest.h>

#include "backend/attention_case.hpp"
#include "backend/scattered_cases.hpp"

namespace fdma {
namespace {

using testing::AttentionCase;
using testing::kColumnModes;
using testing::MaskCase;
using testing::TensorChoice;

AttentionShape small_shape(const MaskCase& mask, std::int64_t batch, std::int32_t heads_q,
                           std::int32_t heads_kv) {
  AttentionShape shape = testing::shape_for(mask.mask, batch, heads_q, heads_kv);
  shape.head_dim = 24;
  shape.head_dim_v = 40;
  return shape;
}

TEST(ScatteredAttention, IsAccurateInEveryWay) {
  for (const auto& [q_len, kv_len] : {std::pair{260, 450}, {70, 700}}) {
    TensorChoice choice;
    for (const MaskCase& mask : testing::scattered_cases(q_len, kv_len, 21)) {
      const AttentionShape shape = small_shape(mask, 1, 2, 1);
      for (const ColumnMode mode : kColumnModes) {
        PlanOptions options;
        options.columns = mode;
        ++choice.seed;
        EXPECT_EQ(testing::check_attention(mask, shape, {.key_bias = true}, choice, options), "")
            << to_string(mode);
      }
    }
  }
}

TEST(ScatteredAttention, IsAccurateForHeadsAndElementsOfTheirOwn) {
  const std::vector<MaskCase> one = testing::scattered_cases(150, 300, 22);
  const std::vector<MaskCase> other = testing::scattered_cases(61, 390, 23);
  for (std::size_t i = 0; i + 1 < one.size(); i += 2) {
    const MaskCase mask = testing::combined(
        "heads", 2, 4, {one[i], one[i], one[i + 1], one[i], other[i], other[i], other[i], other[i]},
        {128, 128});
    AttentionShape shape = small_shape(mask, 2, 4, 2);
    shape.k_dtype = shape.v_dtype = DType::bfloat16;
    for (const ColumnMode mode : kColumnModes) {
      PlanOptions options;
      options.columns = mode;
      options.tile = {64, 128};
      EXPECT_EQ(testing::check_attention(mask, shape, {}, {}, options), "") << to_string(mode);
    }
  }
}

TEST(ScatteredAttention, HasTheSameBitsTwiceAndForAnyNumberOfThreads) {
  for (const MaskCase& mask : testing::scattered_cases(300, 500, 24)) {
    const AttentionShape shape = small_shape(mask, 1, 2, 2);
    for (const ColumnMode mode : kColumnModes) {
      PlanOptions options;
      options.columns = mode;
      AttentionCase attention(shape, {}, {});
      std::vector<unsigned char> bytes;
      for (const int num_threads : {1, 2, 1}) {
        const auto plan = make_plan(mask.mask, shape, {}, options);
        ASSERT_TRUE(plan);
        AttentionOptions run_options;
        run_options.num_threads = num_threads;
        ASSERT_TRUE(attention.run(*plan, run_options));
        if (bytes.empty()) bytes = attention.result_bytes();
        EXPECT_EQ(attention.result_bytes(), bytes) << mask.name << ", " << to_string(mode);
      }
    }
  }
}

}  // namespace
}  // namespace fdma
