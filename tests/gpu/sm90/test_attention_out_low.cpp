// The low half of out, by every kernel that writes outputs. Queries are zero, so that all weights
// are 1 and are not rounded in the product with v. The sum of out and out_low is then as accurate
// as float32.
#include <gtest/gtest.h>

#include <tuple>
#include <utility>

#include "backend/backend_cases.hpp"
#include "backend/scattered_cases.hpp"
#include "gpu_fixture.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::Layout;
using testing::MaskCase;

CaseChoice even(std::int32_t head_dim, DType dtype) {
  CaseChoice choice;
  choice.head_dim = head_dim;
  choice.dtype = dtype;
  choice.wants_out_low = true;
  choice.q_scale = choice.bias_scale = 0;
  return choice;
}

void expect_exact(const MaskCase& mask, const CaseHeads& heads, const CaseChoice& choice) {
  GpuFixture fixture;
  BackendAttentionCase test_case(fixture, mask, heads, choice);
  const auto ran = test_case.run();
  ASSERT_TRUE(ran) << ran.error().message;
  EXPECT_EQ(test_case.check(), "") << to_string(choice);
  EXPECT_LT(test_case.error_with_out_low(), testing::kOutLowError) << to_string(choice);
}

MaskCase band(std::int64_t q_len, std::int64_t kv_len) {
  return testing::case_of(
      "band",
      testing::make_cells(q_len, kv_len,
                          [&](auto q, auto k) { return k <= q + kv_len - q_len && k % 29 != 3; }),
      {128, 128});
}

// Tiles that TMA stores and tiles that threads store, with rows past lengths and packed heads.
TEST(OutLowOnGpu, IsWhatRoundingTook) {
  FDMA_SKIP_WITHOUT_HOPPER();
  int i = 0;
  for (const std::int32_t head_dim : {64, 96, 128, 192, 256, 40, 8}) {
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const auto& [q_len, kv_len] : {std::pair{300, 450}, {128, 130}, {5, 600}}) {
        CaseChoice choice = even(head_dim, dtype);
        choice.head_dim_v = i % 3 == 0 && head_dim >= 128 ? 128 : 0;
        choice.has_bias = i % 2 == 0;
        choice.layout = i % 5 == 1   ? Layout::padded
                        : i % 5 == 3 ? Layout::head_major
                                     : Layout::rows;
        choice.seed = static_cast<std::uint64_t>(++i);
        expect_exact(band(q_len, kv_len), {2, 6, 2}, choice);
      }
    }
  }
}

TEST(OutLowOnGpu, IsThatOfSplitRows) {
  FDMA_SKIP_WITHOUT_HOPPER();
  for (const std::int32_t head_dim : {64, 128, 256}) {
    // Many partials of few rows, few partials of many rows, and a case between. Each of the three
    // is combined in another way.
    for (const auto& [q_len, kv_len, heads] :
         {std::tuple{1, 40000, 1}, {130, 2000, 8}, {130, 20000, 2}}) {
      const CaseChoice choice = even(head_dim, head_dim == 128 ? DType::float16 : DType::bfloat16);
      GpuFixture fixture;
      const MaskCase mask = band(q_len, kv_len);
      const CaseHeads case_heads{1, heads, heads};
      const BackendAttentionCase test_case(fixture, mask, case_heads, choice);
      EXPECT_FALSE(testing::segments_of(test_case.plan()).split_rows.empty());
      expect_exact(mask, case_heads, choice);
    }
  }
}

TEST(OutLowOnGpu, IsThatOfGatheredKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  int i = 0;
  for (const std::int32_t head_dim : {64, 96, 128}) {
    for (const MaskCase& mask : testing::scattered_cases(257, 1003, 3)) {
      CaseChoice choice = even(head_dim, ++i % 2 == 0 ? DType::bfloat16 : DType::float16);
      choice.columns = ColumnMode::gather;
      choice.has_bias = i % 3 == 0;
      choice.seed = static_cast<std::uint64_t>(i);
      expect_exact(mask, {1, 4, 2}, choice);
    }
  }
}

}  // namespace
}  // namespace fdma
