// Tests gradients on the CPU against float64. The masks of the mask suite run with every pair of
// choices of types, head sizes, groups of heads, lengths, tiles and layouts; further masks test the
// bookkeeping of the walk.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <limits>
#include <utility>

#include "backend/backend_backward_case.hpp"
#include "backend/backend_cases.hpp"
#include "backend/closed_form_backward.hpp"
#include "backend/covering_array.hpp"
#include "mask_suite.hpp"
#include "named_masks.hpp"

namespace fdma {
namespace {

using testing::BackendBackwardCase;
using testing::BackwardChoice;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::Cells;
using testing::CpuFixture;
using testing::kPairLengths;
using testing::Layout;
using testing::MaskCase;
using testing::PairLengths;
using testing::suite_pair;

constexpr DType kDTypes[] = {DType::float32, DType::bfloat16, DType::float16};
constexpr std::int32_t kHeadDims[] = {64, 128, 256, 80, 8};
// Query heads and KV heads: groups of 1, 3, 4 and all heads.
constexpr std::pair<std::int32_t, std::int32_t> kHeads[] = {{2, 2}, {6, 2}, {8, 2}, {4, 1}};
constexpr BlockShape kTiles[] = {{0, 0}, {16, 16}, {64, 128}, {128, 64}, {16, 256}};
constexpr Layout kLayouts[] = {Layout::rows, Layout::head_major, Layout::padded};

std::string case_error(const MaskCase& mask, const CaseHeads& heads, const CaseChoice& choice,
                       const BackwardChoice& backward = {}) {
  CpuFixture fixture;
  return testing::check_backward_case(fixture, mask, heads, choice, backward);
}

CaseChoice small_choice(DType dtype = DType::float32) {
  CaseChoice choice;
  choice.dtype = dtype;
  choice.head_dim = 16;
  return choice;
}

// Runs one part of the covering array. Parts can run side by side.
class BackwardMaskSuite : public ::testing::TestWithParam<int> {
 public:
  static constexpr int kNumParts = 6;
};

TEST_P(BackwardMaskSuite, IsAsAccurateAsAnExplicitProduct) {
  const auto rows = testing::covering_array(
      {testing::kNumSuiteMasks, std::size(kDTypes), std::size(kHeadDims), std::size(kHeadDims),
       std::size(kHeads), std::size(kPairLengths), std::size(kTiles), std::size(kLayouts), 4, 2, 2},
      4);
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < rows.size(); i += kNumParts) {
    const std::vector<int>& row = rows[i];
    const MaskCase mask = suite_pair(row[0], kPairLengths[row[5]], {64, 64});
    const auto [heads_q, heads_kv] = kHeads[row[4]];
    CaseChoice choice;
    choice.dtype = kDTypes[row[1]];
    choice.head_dim = kHeadDims[row[2]];
    choice.head_dim_v = kHeadDims[row[3]];
    choice.layout = kLayouts[row[7]];
    choice.has_bias = row[8] % 2 == 1;
    choice.softcap = row[8] >= 2 ? 1.5F : 0;
    choice.seed = i + 1;
    choice.wants_out_low = i % 2 == 0;
    choice.softmax_scale = i % 7 == 3 ? 0.21F : i % 13 == 6 ? -0.15F : 0;
    BackwardChoice backward;
    backward.tile = kTiles[row[6]];
    backward.has_dlse = row[9] == 1;
    backward.are_gradients_float32 = row[10] == 1;
    backward.wants_dbias = i % 5 != 4;
    EXPECT_EQ(case_error(mask, {2, heads_q, heads_kv}, choice, backward), "") << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, BackwardMaskSuite,
                         ::testing::Range(0, BackwardMaskSuite::kNumParts));

TEST(AttentionBackward, IsAccurateForEveryNameOfTheLanguage) {
  std::uint64_t seed = 1;
  for (const suite::SuiteMask& mask : suite::every_name(1024, 5)) {
    CaseChoice choice = small_choice();
    choice.head_dim = 8;
    choice.seed = ++seed;
    EXPECT_EQ(case_error(testing::suite_case(mask, {128, 128}), {1, 1, 1}, choice), "");
  }
}

TEST(AttentionBackward, IsAccurateForMasksPerHead) {
  for (const suite::SuiteMask& mask : suite::predicates(1024)) {
    if (mask.shape.num_heads == 1) continue;
    EXPECT_EQ(case_error(testing::suite_case(mask, {128, 128}), {1, 8, 2}, small_choice()), "");
  }
}

TEST(AttentionBackward, IsAccurateWhereKeysDieAndComeBackOrComeLate) {
  for (const MaskCase& mask : testing::walk_cases()) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      CaseChoice choice = small_choice(dtype);
      choice.has_bias = dtype == DType::float32;
      EXPECT_EQ(case_error(mask, {1, 4, 2}, choice), "");
    }
  }
}

TEST(AttentionBackward, IsAccurateForRandomMasksOfEveryKindOfSegment) {
  PlanCounts counts;
  CpuFixture fixture;
  std::uint64_t number = 0;
  for (const testing::BackendCase& test_case : testing::small_cases()) {
    BackwardChoice backward;
    backward.are_gradients_float32 = ++number % 2 == 0;
    EXPECT_EQ(testing::check_backward_case(fixture, *test_case.mask, test_case.heads,
                                           test_case.choice, backward, &counts),
              "");
  }
  std::mt19937 rng(3);
  for (const MaskCase& mask :
       {testing::tile_case(rng, 500, 900), testing::column_case(rng, 900, 500),
        testing::block_sparse_case(rng, 700, 700, 0.2, 0.2)}) {
    EXPECT_EQ(testing::check_backward_case(fixture, mask, {1, 2, 1}, small_choice(), {}, &counts),
              "");
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.empty_items, 0);
}

// The masks of the mask suite that have a closed form run by it in place of segments.
TEST(AttentionBackward, IsAccurateForEveryCap) {
  const MaskCase mask = testing::case_of(
      "band", testing::make_cells(150, 130, [](auto q, auto k) { return q != 9 && k <= q; }),
      {64, 64});
  for (const float cap : {1e-3F, 0.5F, 13.0F, 50.0F, 1e6F}) {
    for (const bool has_bias : {false, true}) {
      CaseChoice choice = small_choice(has_bias ? DType::bfloat16 : DType::float32);
      choice.has_bias = has_bias;
      choice.softcap = cap;
      choice.q_scale = 4;
      EXPECT_EQ(case_error(mask, {1, 4, 2}, choice), "") << cap;
    }
  }
}

TEST(AttentionBackward, IsAccurateByClosedForms) {
  std::size_t number = 0;
  for (int index : {0, 1, 2, 3, 4}) {
    for (const PairLengths& lengths : kPairLengths) {
      const MaskCase mask = suite_pair(index, lengths, {64, 64});
      CaseChoice choice = small_choice(kDTypes[number % 3]);
      choice.has_bias = number % 2 == 0;
      choice.softcap = number % 4 < 2 ? 2.0F : 0;
      choice.seed = ++number;
      BackwardChoice backward;
      backward.form = PlanForm::parametric;
      if (number % 3 == 0) backward.tile = {64, 32};
      EXPECT_EQ(case_error(mask, {2, 4, 2}, choice, backward), "");
    }
  }
}

TEST(AttentionBackward, FollowsTheLengthsAndDocumentsOfEachCall) {
  CpuFixture fixture;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    CaseChoice choice = small_choice(kDTypes[seed % 3]);
    choice.head_dim = 24;
    choice.has_bias = seed % 4 == 1;
    choice.softcap = seed % 8 < 3 ? 2.0F : 0;
    ASSERT_EQ(testing::random_calls_error(fixture, seed, 200, choice), "");
  }
}

TEST(AttentionBackward, GivesTheSameBitsForAnyNumberOfThreads) {
  const tbb::global_control more_than_cores(tbb::global_control::max_allowed_parallelism, 8);
  std::mt19937 rng(9);
  CpuFixture fixture;
  const MaskCase masks[] = {
      testing::case_of("causal",
                       testing::make_cells(700, 700, [](auto q, auto k) { return k <= q; }),
                       {128, 128}),
      testing::case_of("full", testing::make_cells(520, 640, [](auto, auto) { return true; }),
                       {128, 128}),
      testing::block_sparse_case(rng, 900, 700, 0.2, 0.3)};
  for (const MaskCase& mask : masks) {
    for (const bool is_float32 : {true, false}) {
      CaseChoice choice = small_choice(is_float32 ? DType::float32 : DType::bfloat16);
      choice.has_bias = true;
      BackwardChoice backward;
      backward.tile = {64, 32};
      BackendBackwardCase test_case(fixture, mask, {1, 4, 2}, choice, backward);
      std::vector<unsigned char> bytes;
      for (const int num_threads : {1, 2, 3, 8, 1}) {
        BackwardOptions options = test_case.options();
        options.num_threads = num_threads;
        ASSERT_TRUE(test_case.run(options));
        if (bytes.empty()) bytes = test_case.result_bytes();
        EXPECT_EQ(test_case.result_bytes(), bytes) << num_threads;
      }
      EXPECT_EQ(test_case.check(), "");
    }
  }
}

TEST(AttentionBackward, GivesTheSameBitsOfEveryPartForAnyNumberOfThreads) {
  const tbb::global_control more_than_cores(tbb::global_control::max_allowed_parallelism, 8);
  CpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(500, 600, [](auto q, auto k) { return k <= q + 100; }),
      {64, 64});
  for (int parts = 0; parts < testing::kNumPartChoices; ++parts) {
    BackwardChoice backward;
    backward.tile = {64, 32};
    CaseChoice choice = small_choice(kDTypes[parts % 2]);
    choice.parts = testing::part_choice(parts);
    BackendBackwardCase test_case(fixture, mask, {3, 4, 2}, choice, backward);
    std::vector<unsigned char> bytes;
    for (const int num_threads : {1, 2, 8}) {
      BackwardOptions options = test_case.options();
      options.num_threads = num_threads;
      ASSERT_TRUE(test_case.run(options));
      if (bytes.empty()) bytes = test_case.result_bytes();
      EXPECT_EQ(test_case.result_bytes(), bytes) << parts << ", " << num_threads << " threads";
    }
  }
}

TEST(AttentionBackward, RowsAddUpWhereDIsFoundFromKeys) {
  CpuFixture fixture;
  EXPECT_EQ(testing::delta_error(fixture, small_choice(DType::bfloat16)), "");
}

TEST(AttentionBackward, LayoutsGiveTheSameBits) {
  CpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(150, 170, [](auto q, auto k) { return k <= q + 20; }),
      {128, 128});
  std::vector<unsigned char> bytes;
  for (const Layout layout : {Layout::rows, Layout::head_major, Layout::padded}) {
    CaseChoice choice = small_choice(DType::float16);
    choice.layout = layout;
    choice.has_bias = true;
    BackendBackwardCase test_case(fixture, mask, {2, 2, 1}, choice);
    ASSERT_TRUE(test_case.run());
    if (bytes.empty()) bytes = test_case.result_bytes();
    EXPECT_EQ(test_case.result_bytes(), bytes);
  }
}

// NaN and infinity in a row or key reach the gradients of the keys or rows that it meets, and no
// others.
TEST(AttentionBackward, KeepsNanWhereItIsSeen) {
  const Cells cells = testing::make_cells(
      200, 260, [](auto q, auto k) { return k <= q + 60 && k != 7 && (q % 3 != 0 || k % 2 == 0); });
  const MaskCase mask = testing::case_of("striped", cells, {128, 128});
  CpuFixture fixture;
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    // No row sees key 7, and row 3 sees even keys only.
    BackendBackwardCase test_case(fixture, mask, {1, 1, 1}, small_choice());
    test_case.forward().k().set(0, 7, 0, 2, value);
    test_case.forward().v().set(0, 7, 0, 3, value);
    test_case.forward().k().upload();
    test_case.forward().v().upload();
    ASSERT_TRUE(test_case.run());
    EXPECT_EQ(test_case.check(), "") << value;

    test_case.dout().set(0, 3, 0, 5, value);
    test_case.dout().upload();
    ASSERT_TRUE(test_case.run());
    for (std::int64_t q = 0; q < 200; ++q) {
      EXPECT_EQ(std::isfinite(test_case.dq().get(0, q, 0, 1)), q != 3) << q;
    }
    for (std::int64_t k = 0; k < 260; ++k) {
      EXPECT_EQ(std::isfinite(test_case.dk().get(0, k, 0, 1)), !cells.get(3, k)) << k;
      EXPECT_EQ(std::isfinite(test_case.dv().get(0, k, 0, 5)), !cells.get(3, k)) << k;
    }
  }
}

// A key with a bias of -inf has weight 0. Rows that see only such keys have no gradient.
TEST(AttentionBackward, TakesABiasOfMinusInfinityForAMask) {
  const MaskCase mask = testing::case_of(
      "halves", testing::make_cells(140, 500, [](auto q, auto k) { return (k < 250) == (q < 70); }),
      {128, 128});
  CpuFixture fixture;
  CaseChoice choice = small_choice();
  choice.has_bias = true;
  BackendBackwardCase test_case(fixture, mask, {1, 2, 1}, choice);
  for (std::int64_t k = 0; k < 350; ++k) {
    if (k < 250 || k % 2 == 0) test_case.forward().bias().set(0, k, 0, 0, -INFINITY);
  }
  test_case.forward().bias().upload();
  test_case.run_forward();
  ASSERT_TRUE(test_case.run());
  for (std::int64_t q = 0; q < 140; ++q) {
    EXPECT_EQ(test_case.dq().get(0, q, 0, 3) == 0, q < 70) << q;
  }
  for (std::int64_t k = 0; k < 500; ++k) {
    const bool is_masked = k < 350 && (k < 250 || k % 2 == 0);
    EXPECT_EQ(test_case.dk().get(0, k, 0, 3) == 0, is_masked) << k;
    EXPECT_EQ(test_case.dbias().get(0, k, 0) == 0, is_masked) << k;
    EXPECT_TRUE(std::isfinite(test_case.dv().get(0, k, 0, 3))) << k;
  }
}

TEST(AttentionBackward, CountsWorkTilesAndStopsWhenCancelled) {
  CpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(400, 400, [](auto q, auto k) { return k <= q; }), {128, 128});
  BackendBackwardCase test_case(fixture, mask, {1, 4, 2}, small_choice());
  std::atomic<std::int64_t> num_done{0};
  std::atomic<bool> is_cancelled{false};
  BackwardOptions options;
  options.num_work_tiles_done = &num_done;
  options.is_cancelled = &is_cancelled;
  ASSERT_TRUE(test_case.run(options));
  EXPECT_EQ(num_done, test_case.plan().num_work_tiles());
  is_cancelled = true;
  const auto ran = test_case.run(options);
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().message, "attention_backward: interrupted");
}

class BackwardErrors : public ::testing::Test {
 protected:
  // Returns the error of the call after `change`.
  std::string error(void (*change)(AttentionPlan&, BackwardTensors&)) {
    const MaskCase mask = testing::case_of(
        "full", testing::make_cells(20, 30, [](auto, auto) { return true; }), {16, 16});
    CaseChoice choice = small_choice(DType::bfloat16);
    choice.has_bias = choice.wants_out_low = true;
    BackendBackwardCase test_case(fixture_, mask, {1, 2, 1}, choice);
    AttentionPlan plan = test_case.plan();
    BackwardTensors tensors = test_case.tensors();
    change(plan, tensors);
    const auto ran = attention_backward(plan, tensors);
    return ran ? "" : ran.error().message;
  }
  CpuFixture fixture_;
};

TEST_F(BackwardErrors, NameWhatIsWrong) {
  EXPECT_EQ(error([](auto& plan, auto&) { plan.direction = Direction::forward; }),
            "direction: attention_backward takes a plan of direction backward, got one of forward");
  EXPECT_EQ(error([](auto& plan, auto&) { plan.backend = Backend::sm90; }),
            "backend: expected a plan for cpu, got one for sm90: prepare it");
  EXPECT_EQ(error([](auto&, auto& tensors) { tensors.lse = {}; }),
            "lse: is missing; the forward call that gave out returns it");
  EXPECT_EQ(error([](auto&, auto& tensors) { tensors.dq.dtype = DType::float16; }),
            "dq: expected bfloat16 or float32, got float16");
  EXPECT_EQ(error([](auto&, auto& tensors) { tensors.dk.extents[3] = 8; }),
            "dk: expected [batch, kv_len, heads_kv, head_dim] = [1, 30, 1, 16] (or longer along "
            "axis 1), got [1, 30, 1, 8]");
  EXPECT_EQ(error([](auto&, auto& tensors) { tensors.dv.strides[1] = 0; }),
            "dv: strides put several elements at one address");
  EXPECT_EQ(error([](auto&, auto& tensors) { tensors.dout.data = nullptr; }), "dout: data is null");
  EXPECT_EQ(error([](auto& plan, auto& tensors) {
              plan.score.key_bias = false;
              tensors.key_bias = {};
            }),
            "dkey_bias: is given, but the plan's score has no bias");
  EXPECT_EQ(error([](auto& plan, auto&) { plan.score.softcap = true; }),
            "softcap: is missing, but the plan's score is softcap+key_bias");
  EXPECT_EQ(error([](auto&, auto& tensors) { tensors.out_low.dtype = DType::float16; }),
            "out_low: expected bfloat16 as the plan says, got float16");
  EXPECT_EQ(error([](auto&, auto& tensors) { tensors.out_low.extents[1] = 19; }),
            "out_low: expected [batch, q_len, heads_q, head_dim_v] = [1, 20, 2, 16] (or "
            "longer along axis 1), got [1, 19, 2, 16]");
  EXPECT_EQ(error([](auto&, auto& tensors) { tensors.dlse.rank = 2; }),
            "dlse: expected [batch, heads_q, q_len] = [1, 2, 20] (or longer along axis 2), got "
            "[1, 2]");
}

TEST_F(BackwardErrors, ForwardCallsRefuseBackwardPlans) {
  const MaskCase mask = testing::case_of(
      "full", testing::make_cells(20, 30, [](auto, auto) { return true; }), {16, 16});
  BackendBackwardCase test_case(fixture_, mask, {1, 2, 1}, small_choice());
  const auto ran = attention_forward(test_case.plan(), test_case.forward().tensors());
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().message,
            "direction: attention_forward takes a plan of direction forward, got one of backward");
}

}  // namespace
}  // namespace fdma
