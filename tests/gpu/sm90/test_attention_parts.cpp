// Tests terms of pairs and dropout on the GPU: biases, slopes of distances, tables of distances and
// pairs that are dropped, forward and backward, alone and together, by tiles and closed forms.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "backend/backend_cases.hpp"
#include "backend/closed_form_cases.hpp"
#include "gpu_fixture.hpp"
#include "sm90/parts_case.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using gpu_test::PartsCase;
using gpu_test::PartsChoice;
using testing::MaskCase;

constexpr std::int64_t kQLen = 290, kKvLen = 350;

// Ragged ends, a band, a row without keys and keys that no row sees.
MaskCase band_case(std::int64_t q_len = kQLen, std::int64_t kv_len = kKvLen) {
  return testing::case_of(
      "band",
      testing::make_cells(
          q_len, kv_len,
          [](auto q, auto k) { return q != 77 && k % 31 != 5 && k <= q + 60 && q - k < 150; }),
      {128, 128});
}
MaskCase full_case(std::int64_t q_len, std::int64_t kv_len) {
  return testing::case_of(
      "full", testing::make_cells(q_len, kv_len, [](auto, auto) { return true; }), {128, 128});
}

void expect_accurate(GpuFixture& fixture, const MaskCase& mask, const PartsChoice& choice) {
  PartsCase test_case(fixture, mask, choice);
  EXPECT_EQ(test_case.forward_error(), "");
  EXPECT_EQ(test_case.backward_error(), "");
}

PartsChoice choice_of(DType dtype, std::int32_t head_dim) {
  PartsChoice choice;
  choice.dtype = dtype;
  choice.head_dim = head_dim;
  return choice;
}

TEST(PairTerms, OfBiasesAreAccurateForEveryExtentAndType) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  int count = 0;
  for (const std::int64_t batch : {1, 2}) {
    for (const std::int64_t heads : {1, 2, 4}) {
      for (const std::int64_t rows : {std::int64_t{1}, kQLen}) {
        for (const bool is_float32 : {false, true}) {
          PartsChoice choice = choice_of(count % 3 == 0 ? DType::float16 : DType::bfloat16,
                                         count % 2 == 0 ? 128 : 64);
          choice.bias = {batch, heads, rows, kKvLen};
          choice.bias_dtype = is_float32 ? DType::float32 : choice.dtype;
          expect_accurate(fixture, mask, choice);
          ++count;
        }
      }
    }
  }
}

// Odd rows of a bias are not aligned to pairs.
TEST(PairTerms, OfBiasesAreAccurateForOddLengthsAndWholeTiles) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (const auto& [q_len, kv_len] : {std::pair{257, 333}, {256, 384}, {1, 129}, {130, 1}}) {
    for (const DType dtype : {DType::bfloat16, DType::float32}) {
      PartsChoice choice = choice_of(DType::bfloat16, 128);
      choice.bias = {2, 4, q_len, kv_len};
      choice.bias_dtype = dtype;
      expect_accurate(fixture, full_case(q_len, kv_len), choice);
    }
  }
}

TEST(PairTerms, OfSlopesAreAccurate) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const std::int32_t head_dim : {40, 64, 96, 128}) {
      for (const bool is_per_element : {false, true}) {
        PartsChoice choice = choice_of(dtype, head_dim);
        choice.alibi = {4};
        if (is_per_element) choice.alibi = {2, 4};
        expect_accurate(fixture, mask, choice);
      }
    }
  }
}

// Tables that end before the distances do, and tables that do not.
TEST(PairTerms, OfTablesAreAccurate) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase masks[] = {band_case(), full_case(300, 700), full_case(700, 300)};
  for (const MaskCase& mask : masks) {
    for (const auto& [left, right] : {std::pair{0, 0}, {16, 15}, {128, 0}, {200, 40}, {800, 800}}) {
      for (const std::int64_t heads : {1, 4}) {
        PartsChoice choice = choice_of(DType::bfloat16, heads == 1 ? 64 : 128);
        choice.relative = {heads, left + 1 + right};
        choice.relative_left = left;
        expect_accurate(fixture, mask, choice);
      }
    }
  }
}

TEST(PairTerms, AreAccurateTogether) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (int parts = 1; parts < 32; ++parts) {
    PartsChoice choice =
        choice_of(parts % 4 == 1 ? DType::float16 : DType::bfloat16, parts % 3 == 0 ? 64 : 128);
    if ((parts & 1) != 0) choice.bias = {2, 4, kQLen, kKvLen};
    if ((parts & 2) != 0) choice.alibi = {4};
    if ((parts & 4) != 0) choice.relative = {4, 65}, choice.relative_left = 40;
    if ((parts & 8) != 0) choice.sinks = {4};
    choice.has_key_bias = (parts & 16) != 0;
    choice.has_dlse = parts % 5 != 0;
    expect_accurate(fixture, mask, choice);
  }
}

// Scattered keys, which other scores gather, permute and list; splits; packed heads.
TEST(PairTerms, AreAccurateForEveryMask) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  std::mt19937 rng(5);
  const MaskCase masks[] = {
      testing::column_case(rng, 500, 900), testing::tile_case(rng, 300, 700),
      testing::case_of("few rows", testing::make_cells(3, 9000, [](auto, auto k) { return k % 7; }),
                       {128, 128})};
  for (const MaskCase& mask : masks) {
    const std::int64_t q_len = mask.mask.shape.q_lens[0], kv_len = mask.mask.shape.kv_lens[0];
    for (const std::int32_t heads_q : {4, 6}) {
      PartsChoice choice = choice_of(DType::bfloat16, 128);
      choice.batch = 1;
      choice.heads_q = heads_q;
      choice.bias = {1, heads_q, q_len, kv_len};
      choice.bias_dtype = DType::bfloat16;
      choice.alibi = {heads_q};
      choice.relative = {heads_q, 301};
      choice.relative_left = 200;
      expect_accurate(fixture, mask, choice);
    }
  }
}

TEST(PairTerms, AreAccurateByClosedForms) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  int count = 0;
  for (const ParametricMask& form : testing::plain_forms(300, 700)) {
    MaskCase mask = testing::case_at_call("form", form, {{300, 700}});
    mask.mask = testing::block_mask_of(form);
    PartsChoice choice = choice_of(DType::bfloat16, 128);
    choice.form = PlanForm::parametric;
    if (count % 3 == 0) choice.bias = {2, 4, 300, 700};
    if (count % 3 == 1) choice.alibi = {4};
    if (count % 3 == 2) choice.relative = {4, 81}, choice.relative_left = 50;
    choice.sinks = {4};
    expect_accurate(fixture, mask, choice);
    ++count;
  }
}

// Cells that are not attended may hold anything, and -inf in all that a row sees leaves it no keys.
TEST(PairTerms, OfBiasesMayBeInfiniteOrNan) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    PartsChoice choice = choice_of(DType::bfloat16, 128);
    choice.bias = {1, 4, kQLen, kKvLen};
    choice.bias_dtype = dtype;
    PartsCase test_case(fixture, mask, choice);
    for (std::int64_t q = 0; q < kQLen; ++q) {
      for (std::int64_t k = 0; k < kKvLen; ++k) {
        if (mask.at(0, 0).get(q, k) == 0) {
          test_case.bias().set({0, 0, q, k}, std::numeric_limits<double>::quiet_NaN());
          test_case.bias().set({0, 1, q, k}, std::numeric_limits<double>::infinity());
        }
        if (q % 50 == 3 || k % 7 == 2) {
          test_case.bias().set({0, 2, q, k}, -std::numeric_limits<double>::infinity());
        }
      }
    }
    test_case.bias().upload();
    EXPECT_EQ(test_case.forward_error(), "");
    EXPECT_EQ(test_case.backward_error(), "");
  }
}

TEST(PairTerms, HaveGradientsOfTheSameBitsOrSayThatTheyHaveNot) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  PartsChoice choice = choice_of(DType::bfloat16, 128);
  choice.bias = {2, 4, kQLen, kKvLen};
  choice.alibi = {4};
  choice.deterministic = true;
  PartsCase test_case(fixture, mask, choice);
  ASSERT_EQ(test_case.forward_error(), "");
  ASSERT_EQ(test_case.backward_error(), "");
  const auto bytes = test_case.gradient_bytes();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(test_case.backward_error(), "");
    EXPECT_EQ(test_case.gradient_bytes(), bytes);
  }
  choice.bias = {1, 4, kQLen, kKvLen};
  PartsCase shared(fixture, mask, choice);
  ASSERT_EQ(shared.forward_error(), "");
  EXPECT_THROW(static_cast<void>(shared.backward_error()), std::runtime_error);
  choice.bias = {};
  choice.relative = {4, 65};
  PartsCase table(fixture, mask, choice);
  ASSERT_EQ(table.forward_error(), "");
  EXPECT_THROW(static_cast<void>(table.backward_error()), std::runtime_error);
}

TEST(DropoutOnGpu, DropsThePairsOfItsDefinition) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase masks[] = {band_case(), full_case(257, 333), full_case(3, 1000)};
  int count = 0;
  for (const MaskCase& mask : masks) {
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const double rate : {0.1, 0.5, 0.9}) {
        PartsChoice choice = choice_of(dtype, count % 2 == 0 ? 128 : 64);
        choice.dropout = {rate, 0x123456789abcdefULL, 0x100000004ULL};
        choice.seeds_on_device = count % 3 == 0;
        choice.deterministic = count % 4 == 1;
        if (count % 2 == 1) choice.delta_source = DeltaSource::output;
        expect_accurate(fixture, mask, choice);
        ++count;
      }
    }
  }
}

TEST(DropoutOnGpu, JoinsOtherParts) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (int parts = 1; parts < 32; parts += 3) {
    PartsChoice choice = choice_of(DType::bfloat16, 128);
    choice.dropout = {0.2, 7, 12};
    if ((parts & 1) != 0) choice.bias = {2, 4, kQLen, kKvLen};
    if ((parts & 2) != 0) choice.alibi = {4};
    if ((parts & 4) != 0) choice.relative = {4, 65}, choice.relative_left = 40;
    if ((parts & 8) != 0) choice.sinks = {4};
    choice.has_key_bias = (parts & 16) != 0;
    expect_accurate(fixture, mask, choice);
  }
}

TEST(DropoutOnGpu, FollowsClosedForms) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (const ParametricMask& form : testing::plain_forms(300, 700)) {
    MaskCase mask = testing::case_at_call("form", form, {{300, 700}});
    mask.mask = testing::block_mask_of(form);
    PartsChoice choice = choice_of(DType::bfloat16, 128);
    choice.form = PlanForm::parametric;
    choice.dropout = {0.3, 1, 4};
    expect_accurate(fixture, mask, choice);
  }
}

}  // namespace
}  // namespace fdma
