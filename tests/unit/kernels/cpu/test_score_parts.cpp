// Tests the newer parts of a score on the CPU, forward and backward, against float64: each alone,
// each pair and all together, over masks, types, head sizes, groups of heads, tiles and plan forms.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "backend/backend_backward_case.hpp"
#include "backend/backend_cases.hpp"
#include "backend/closed_form_backward.hpp"
#include "backend/covering_array.hpp"
#include "backend/scattered_cases.hpp"

namespace fdma {
namespace {

using testing::BackendAttentionCase;
using testing::BackendBackwardCase;
using testing::BackwardChoice;
using testing::CaseChoice;
using testing::CpuFixture;
using testing::kNumPartChoices;
using testing::Layout;
using testing::MaskCase;
using testing::part_choice;
using testing::PartChoice;

constexpr DType kPartDTypes[] = {DType::float32, DType::bfloat16, DType::float16};
constexpr std::int32_t kPartHeadDims[] = {64, 24, 128, 7};
constexpr std::pair<std::int32_t, std::int32_t> kPartHeads[] = {{2, 2}, {6, 2}, {4, 1}};
constexpr BlockShape kPartTiles[] = {{0, 0}, {16, 16}, {64, 128}, {128, 32}};

CaseChoice choice_of_parts(int parts, DType dtype = DType::float32) {
  CaseChoice choice;
  choice.dtype = dtype;
  choice.head_dim = 16;
  choice.seed = static_cast<std::uint64_t>(parts) + 1;
  choice.parts = part_choice(parts);
  return choice;
}

// Runs one part of the covering array. Parts can run side by side.
class ScorePartsMaskSuite : public ::testing::TestWithParam<int> {
 public:
  static constexpr int kNumRuns = 8;
};

TEST_P(ScorePartsMaskSuite, IsAsAccurateAsAnExplicitProduct) {
  const auto rows = testing::covering_array(
      {kNumPartChoices, testing::kNumSuiteMasks, std::size(kPartDTypes), std::size(kPartHeadDims),
       std::size(kPartHeads), std::size(testing::kPairLengths), std::size(kPartTiles), 4, 2, 2},
      11);
  CpuFixture fixture;
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < rows.size(); i += kNumRuns) {
    const std::vector<int>& row = rows[i];
    const MaskCase mask = testing::suite_pair(row[1], testing::kPairLengths[row[5]], {64, 64});
    const auto [heads_q, heads_kv] = kPartHeads[row[4]];
    CaseChoice choice = choice_of_parts(row[0], kPartDTypes[row[2]]);
    choice.head_dim = kPartHeadDims[row[3]];
    choice.has_bias = row[7] % 2 == 1;
    choice.softcap = row[7] >= 2 ? 1.5F : 0;
    choice.seed = i + 1;
    choice.wants_out_low = i % 5 == 0;
    choice.layout = i % 3 == 0 ? Layout::padded : Layout::rows;
    choice.tile = kPartTiles[row[6]];
    BackwardChoice backward;
    backward.tile = kPartTiles[row[6]];
    backward.has_dlse = row[8] == 1;
    backward.are_gradients_float32 = row[9] == 1;
    backward.wants_part_gradients = i % 9 != 8;
    const testing::CaseHeads heads{2, heads_q, heads_kv};
    EXPECT_EQ(testing::check_case(fixture, mask, heads, choice), "") << i;
    EXPECT_EQ(testing::check_backward_case(fixture, mask, heads, choice, backward), "") << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, ScorePartsMaskSuite,
                         ::testing::Range(0, ScorePartsMaskSuite::kNumRuns));

TEST(ScoreParts, AreAccurateForEveryKindOfSegment) {
  CpuFixture fixture;
  std::mt19937 rng(3);
  PlanCounts counts;
  int parts = 0;
  for (const MaskCase& mask :
       {testing::tile_case(rng, 300, 700), testing::column_case(rng, 500, 300),
        testing::block_sparse_case(rng, 400, 400, 0.2, 0.3), testing::tile_case(rng, 260, 520)}) {
    for (int i = 0; i < 5; ++i, parts += 1) {
      const CaseChoice choice = choice_of_parts(parts % kNumPartChoices, kPartDTypes[parts % 3]);
      EXPECT_EQ(testing::check_case(fixture, mask, {2, 4, 2}, choice, &counts), "");
      EXPECT_EQ(testing::check_backward_case(fixture, mask, {2, 4, 2}, choice, {}, &counts), "");
    }
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.column_tiles + counts.gather_chunks, 0);
}

TEST(ScoreParts, AreAccurateWhereKeysAreScattered) {
  CpuFixture fixture;
  PlanCounts counts;
  int parts = 0;
  for (const MaskCase& mask : testing::scattered_cases(200, 500, 5)) {
    for (const ColumnMode mode : testing::kColumnModes) {
      CaseChoice choice = choice_of_parts(parts % kNumPartChoices, kPartDTypes[parts % 3]);
      ++parts;
      choice.columns = mode;
      EXPECT_EQ(testing::check_case(fixture, mask, {1, 2, 1}, choice, &counts), "");
      if (mode != ColumnMode::automatic) continue;  // of the backward plan
      EXPECT_EQ(testing::check_backward_case(fixture, mask, {1, 2, 1}, choice), "");
    }
  }
  EXPECT_GT(counts.gather_chunks, 0);
  EXPECT_GT(counts.moved_keys, 0);
}

TEST(ScoreParts, AreAccurateByClosedForms) {
  CpuFixture fixture;
  int parts = 0;
  for (int index : {0, 1, 2, 3, 4}) {
    for (const testing::PairLengths& lengths : testing::kPairLengths) {
      const MaskCase mask = testing::suite_pair(index, lengths, {64, 64});
      CaseChoice choice = choice_of_parts(parts % kNumPartChoices, kPartDTypes[parts % 3]);
      ++parts;
      choice.form = PlanForm::parametric;
      BackwardChoice backward;
      backward.form = PlanForm::parametric;
      EXPECT_EQ(testing::check_case(fixture, mask, {2, 4, 2}, choice), "");
      EXPECT_EQ(testing::check_backward_case(fixture, mask, {2, 4, 2}, choice, backward), "");
    }
  }
}

// Positions are those of the lengths of each call.
TEST(ScoreParts, FollowTheLengthsOfEachCall) {
  CpuFixture fixture;
  for (std::uint32_t seed = 0; seed < 2 * kNumPartChoices; ++seed) {
    CaseChoice choice =
        choice_of_parts(static_cast<int>(seed) % kNumPartChoices, kPartDTypes[seed % 3]);
    ASSERT_EQ(testing::random_calls_error(fixture, seed, 200, choice), "");
  }
}

// Two passes over all keys give the exact delta, also where weights of a row do not add up to 1.
TEST(ScoreParts, AreAccurateByEveryDeltaSource) {
  CpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "band", testing::make_cells(150, 170, [](auto q, auto k) { return q != 9 && k <= q + 20; }),
      {64, 64});
  for (int parts = 0; parts < kNumPartChoices; ++parts) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      CaseChoice choice = choice_of_parts(parts, dtype);
      choice.has_bias = parts % 2 == 0;
      BackendBackwardCase test_case(fixture, mask, {2, 4, 2}, choice);
      for (const DeltaSource source : {DeltaSource::output, DeltaSource::corrected}) {
        BackwardOptions options = test_case.options();
        options.delta_source = source;
        ASSERT_TRUE(test_case.run(options));
        EXPECT_EQ(test_case.check(), "") << parts;
      }
    }
  }
}

// Biases that differ by hundreds and more, and ones that hide pairs without being infinite. Gradients
// read lse, a float32, so they are not compared where that has few digits left.
TEST(ScoreParts, AreAccurateWhereBiasesAreFarApart) {
  CpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "all", testing::make_cells(70, 300, [](auto, auto) { return true; }), {64, 64});
  for (const double scale : {1e-3, 30.0, 300.0, 1e30}) {
    for (const int parts : {6, 7, 12, 19}) {
      CaseChoice choice = choice_of_parts(parts);
      choice.parts.bias_scale = scale;
      if (scale > 1) {
        choice.parts.hidden = -1e35;
        choice.parts.hides_row = false;
        choice.parts.has_sinks = parts != 19;  // all of its weights would be about 0
      }
      EXPECT_EQ(testing::check_case(fixture, mask, {1, 2, 2}, choice), "") << scale;
      if (scale > 100) continue;
      EXPECT_EQ(testing::check_backward_case(fixture, mask, {1, 2, 2}, choice), "") << scale;
    }
  }
}

// The largest logit of each head, for calls without parts and with all of them, by segments and closed
// forms, without a pair, and for any number of threads.
TEST(MaxLogit, IsTheLargestOfAllAttendedPairs) {
  for (const bool sees_any : {true, false}) {
    const MaskCase mask = testing::case_of(
        "causal", testing::make_cells(150, 170, [&](auto q, auto k) { return sees_any && k <= q; }),
        {64, 64});
    for (const PlanForm form : {PlanForm::segments, PlanForm::parametric}) {
      for (const int parts : {-1, 2, 6, 19}) {
        CpuFixture fixture;
        CaseChoice choice = choice_of_parts(std::max(parts, 0));
        if (parts < 0) choice.parts = {};
        choice.softcap = parts == 2 ? 3.0F : 0;
        choice.form = form;
        BackendAttentionCase test_case(fixture, mask, {2, 4, 2}, choice);
        std::vector<float> got(2 * 4, 7);
        const std::int64_t extents[] = {4};
        AttentionTensors tensors = test_case.tensors();
        tensors.max_logit = make_contiguous_mutable_view(got.data(), DType::float32, 1, extents);
        tensors.max_logit.strides[0] = 2;
        AttentionOptions options = test_case.options();
        options.num_threads = parts == 6 ? 2 : 1;
        ASSERT_TRUE(attention_forward(test_case.plan(), tensors, options));
        std::vector<double> wanted(4, -std::numeric_limits<double>::infinity());
        for (std::int32_t b = 0; b < 2; ++b) {
          for (std::int32_t h = 0; h < 4; ++h) {
            reference::HeadProblem head;
            head.q_len = 150;
            head.kv_len = 170;
            head.head_dim = head.head_dim_v = 16;
            head.softmax_scale = 0.25;
            head.softcap = static_cast<double>(choice.softcap);
            head.cells = mask.at(b, h).values.data();
            std::vector<std::int32_t> rows;
            for (std::int32_t q = 0; q < 150; ++q) rows.push_back(q);
            for (std::int64_t i = 0; i < 170; ++i) {
              for (std::int64_t d = 0; d < 16; ++d) {
                if (i < 150) head.q.push_back(test_case.q().get(b, i, h, d));
                head.k.push_back(test_case.k().get(b, i, h / 2, d));
                head.v.push_back(0);
              }
            }
            if (test_case.parts() != nullptr) test_case.parts()->add_to(head, b, h, rows);
            const double of_head = reference::attention_float64(head).max_logit;
            wanted[static_cast<std::size_t>(h)] =
                std::max(wanted[static_cast<std::size_t>(h)], of_head);
          }
        }
        for (std::size_t h = 0; h < 4; ++h) {
          const double value = got[2 * h];
          if (!sees_any) {
            EXPECT_EQ(value, wanted[h]) << parts;
          } else {
            EXPECT_NEAR(value, wanted[h], 1e-5 * std::fabs(wanted[h])) << parts;
          }
          EXPECT_EQ(got[2 * h + 1], 7) << "beside it";
        }
      }
    }
  }
}

TEST(MaxLogit, RejectsOtherShapesAndTypes) {
  CpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "all", testing::make_cells(20, 20, [](auto, auto) { return true; }), {16, 16});
  BackendAttentionCase test_case(fixture, mask, {1, 2, 1}, choice_of_parts(0));
  std::vector<float> values(4);
  AttentionTensors tensors = test_case.tensors();
  const std::int64_t wrong[] = {3}, right[] = {2};
  tensors.max_logit = make_contiguous_mutable_view(values.data(), DType::float32, 1, wrong);
  auto ran = attention_forward(test_case.plan(), tensors, test_case.options());
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::shape_mismatch);
  EXPECT_EQ(ran.error().message.substr(0, 9), "max_logit");
  tensors.max_logit = make_contiguous_mutable_view(values.data(), DType::float16, 1, right);
  EXPECT_FALSE(attention_forward(test_case.plan(), tensors, test_case.options()));
}

}  // namespace
}  // namespace fdma
