// Gradients on the GPU against those in float64. The cases are the masks of the mask suite with
// every pair of choices of types, head sizes, groups of heads, lengths and layouts, masks that test
// the bookkeeping of a walk, and streams and graphs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>

#include "backend/backend_backward_case.hpp"
#include "backend/backend_cases.hpp"
#include "backend/closed_form_backward.hpp"
#include "backend/covering_array.hpp"
#include "gpu_fixture.hpp"
#include "mask_suite.hpp"

namespace fdma {
namespace {

using gpu_test::CapturedGraph;
using gpu_test::GpuFixture;
using gpu_test::OwnedPlan;
using gpu_test::OwnedStream;
using gpu_test::prepared;
using gpu_test::Workspace;
using testing::BackendBackwardCase;
using testing::BackwardChoice;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::kPairLengths;
using testing::Layout;
using testing::MaskCase;
using testing::suite_pair;

constexpr DType kDTypes[] = {DType::bfloat16, DType::float16};
constexpr std::int32_t kHeadDims[] = {64, 128, 80, 8, 256, 192};
// Query heads and KV heads: groups of 1, 3, 4 and all.
constexpr std::pair<std::int32_t, std::int32_t> kHeads[] = {{2, 2}, {6, 2}, {8, 2}, {4, 1}};
constexpr Layout kLayouts[] = {Layout::rows, Layout::head_major, Layout::padded};

std::string case_error(const MaskCase& mask, const CaseHeads& heads, const CaseChoice& choice,
                       const BackwardChoice& backward = {}, PlanCounts* counts = nullptr) {
  GpuFixture fixture;
  return testing::check_backward_case(fixture, mask, heads, choice, backward, counts);
}

CaseChoice choice_of(DType dtype, std::int32_t head_dim, std::uint64_t seed = 1) {
  CaseChoice choice;
  choice.dtype = dtype;
  choice.head_dim = head_dim;
  choice.seed = seed;
  return choice;
}

class BackwardMaskSuiteOnGpu : public ::testing::TestWithParam<int> {
 public:
  static constexpr int kNumParts = 4;
};

TEST_P(BackwardMaskSuiteOnGpu, IsAsAccurateAsAnExplicitProduct) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const auto rows = testing::covering_array(
      {testing::kNumSuiteMasks, std::size(kDTypes), std::size(kHeadDims), std::size(kHeadDims),
       std::size(kHeads), std::size(kPairLengths), std::size(kLayouts), 2, 2, 2},
      4);
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < rows.size(); i += kNumParts) {
    const std::vector<int>& row = rows[i];
    const MaskCase mask = suite_pair(row[0], kPairLengths[row[5]], {128, 128});
    const auto [heads_q, heads_kv] = kHeads[row[4]];
    CaseChoice choice = choice_of(kDTypes[row[1]], kHeadDims[row[2]], i + 1);
    choice.head_dim_v = kHeadDims[row[3]];
    choice.layout = kLayouts[row[6]];
    choice.has_bias = row[7] == 1;
    choice.wants_out_low = i % 2 == 0;
    choice.softmax_scale = i % 7 == 3 ? 0.21F : i % 13 == 6 ? -0.15F : 0;
    BackwardChoice backward;
    backward.has_dlse = row[8] == 1;
    backward.are_gradients_float32 = row[9] == 1;
    backward.wants_dbias = i % 5 != 4;
    EXPECT_EQ(case_error(mask, {2, heads_q, heads_kv}, choice, backward), "") << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, BackwardMaskSuiteOnGpu,
                         ::testing::Range(0, BackwardMaskSuiteOnGpu::kNumParts));

TEST(AttentionBackwardOnGpu, IsAccurateWhereKeysDieAndComeBackOrComeLate) {
  FDMA_SKIP_WITHOUT_HOPPER();
  for (const MaskCase& mask : testing::walk_cases()) {
    for (const std::int32_t head_dim : {64, 128}) {
      EXPECT_EQ(case_error(mask, {1, 2, 1}, choice_of(DType::bfloat16, head_dim)), "") << head_dim;
    }
  }
}

TEST(AttentionBackwardOnGpu, IsAccurateForRandomMasksOfEveryKindOfSegment) {
  FDMA_SKIP_WITHOUT_HOPPER();
  PlanCounts counts;
  std::mt19937 rng(5);
  for (int test_case = 0; test_case < 12; ++test_case) {
    const std::int64_t q_len = testing::pick(rng, 100, 700), kv_len = testing::pick(rng, 100, 700);
    std::vector<MaskCase> masks;
    for (int h = 0; h < (test_case % 3 == 0 ? 4 : 1); ++h) {
      masks.push_back(test_case % 2 == 0 ? testing::tile_case(rng, q_len, kv_len)
                                         : testing::column_case(rng, q_len, kv_len));
    }
    const MaskCase mask =
        testing::combined(fmt::format("random {}", test_case), 1,
                          static_cast<std::int64_t>(masks.size()), masks, {128, 128});
    CaseChoice choice = choice_of(kDTypes[test_case % 2], test_case % 4 < 2 ? 128 : 64,
                                  static_cast<std::uint64_t>(test_case) + 1);
    choice.has_bias = test_case % 3 == 1;
    EXPECT_EQ(case_error(mask, {2, 4, 2}, choice, {}, &counts), "");
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
}

// More tile groups than multiprocessors, of one step to several. The bookkeeping of buffers
// continues from tile group to tile group.
TEST(AttentionBackwardOnGpu, IsAccurateWithManyTileGroupsForEachBlock) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(300, 300, [](auto q, auto k) { return k <= q; }), {128, 128});
  for (const std::int32_t head_dim : {64, 128}) {
    CaseChoice choice = choice_of(DType::float16, head_dim);
    choice.layout = Layout::padded;
    EXPECT_EQ(case_error(mask, {16, 12, 12}, choice), "") << head_dim;
  }
}

// The plans are closed-form plans, so that key tiles are ordered and masked on the device.
TEST(AttentionBackwardOnGpu, FollowsTheLengthsAndDocumentsOfEachCall) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    CaseChoice choice = choice_of(kDTypes[seed % 2], kHeadDims[seed % 3]);
    choice.has_bias = seed % 4 == 1;
    choice.layout = kLayouts[seed / 2 % 3];
    ASSERT_EQ(testing::random_calls_error(fixture, seed, 400, choice), "");
  }
}

// The accumulation order follows from the closed form, lengths and documents of each call.
TEST(AttentionBackwardOnGpu, GivesTheSameBitsEveryRunByClosedForms) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  BackwardChoice backward;
  backward.deterministic = true;
  for (std::uint32_t seed = 100; seed < 124; ++seed) {
    CaseChoice choice = choice_of(kDTypes[seed % 2], kHeadDims[seed % 5]);
    choice.has_bias = seed % 4 == 1;
    choice.layout = kLayouts[seed / 2 % 3];
    ASSERT_EQ(
        testing::random_calls_error(fixture, seed, seed % 6 == 0 ? 1000 : 400, choice, backward),
        "");
  }
}

TEST(AttentionBackwardOnGpu, RowsAddUpWhereDIsFoundFromKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (const std::int32_t head_dim : {64, 128, 256}) {
    for (const bool is_deterministic : {false, true}) {
      BackwardChoice backward;
      backward.deterministic = is_deterministic;
      const CaseChoice choice = choice_of(kDTypes[head_dim / 128 % 2], head_dim);
      EXPECT_EQ(testing::delta_error(fixture, choice, backward), "") << head_dim;
    }
  }
}

TEST(AttentionBackwardOnGpu, GivesZerosWhereThereIsNothing) {
  FDMA_SKIP_WITHOUT_HOPPER();
  for (const auto& [q_len, kv_len] : {std::pair{0, 200}, {200, 0}, {0, 0}}) {
    const MaskCase mask = testing::case_of(
        "no rows", testing::make_cells(q_len, kv_len, [](auto, auto) { return true; }), {128, 128});
    EXPECT_EQ(case_error(mask, {2, 4, 2}, choice_of(DType::bfloat16, 128)), "")
        << q_len << " " << kv_len;
  }
}

// The sums of exponentials are far from 1. Keys past the end must not overflow.
TEST(AttentionBackwardOnGpu, IsAccurateForVerySmallAndVeryLargeLogits) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(200, 200, [](auto q, auto k) { return k <= q; }), {128, 128});
  GpuFixture fixture;
  for (const double shift : {-200.0, 200.0}) {
    CaseChoice choice = choice_of(DType::float16, 128);
    choice.has_bias = true;
    choice.layout = Layout::padded;
    BackendBackwardCase test_case(fixture, mask, {1, 2, 1}, choice);
    for (std::int64_t k = 0; k < 200; ++k)
      test_case.forward().bias().set(0, k, 0, 0, shift + k % 3);
    test_case.forward().bias().upload();
    test_case.run_forward();
    const auto ran = test_case.run();
    ASSERT_TRUE(ran) << ran.error().message;
    EXPECT_EQ(test_case.check(), "") << shift;
  }
}

TEST(AttentionBackwardOnGpu, IsAccurateWhateverOutputsHeld) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 rng(3);
  const MaskCase mask = testing::tile_case(rng, 500, 700);
  GpuFixture fixture;
  BackendBackwardCase test_case(fixture, mask, {1, 4, 2}, choice_of(DType::bfloat16, 128));
  for (const unsigned char poison : {0xff, 0x00, 0x7f, 0x41}) {
    const auto ran = test_case.run(poison);
    ASSERT_TRUE(ran) << ran.error().message;
    EXPECT_EQ(test_case.check(), "") << int{poison};
  }
}

// Many tile groups that wait for each other, with every kind of segment and none.
TEST(AttentionBackwardOnGpu, GivesTheSameBitsEveryRunWhereThatIsAskedFor) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 rng(6);
  const MaskCase masks[] = {
      testing::tile_case(rng, 700, 900), testing::column_case(rng, 600, 500),
      testing::case_of("causal",
                       testing::make_cells(900, 900, [](auto q, auto k) { return k <= q; }),
                       {128, 128}),
      // Halves of query tiles without a step, inside and at the ends of tile groups.
      testing::case_of(
          "halves of tiles in turn",
          testing::make_cells(700, 500, [](auto q, auto k) { return (q / 64 + k / 128) % 2 == 0; }),
          {128, 128}),
      testing::case_of("a few that see all and are seen by all, and a window",
                       testing::make_cells(900, 900,
                                           [](auto q, auto k) {
                                             return k < 16 || q < 16 || (q - k < 90 && k - q < 90);
                                           }),
                       {128, 128}),
      // Plans walk this mask downwards.
      testing::case_of(
          "the last document sees everything",
          testing::make_cells(
              900, 516, [](auto q, auto k) { return q >= 516 || (k <= q && q / 256 == k / 256); }),
          {128, 128})};
  GpuFixture fixture;
  BackwardChoice backward;
  backward.deterministic = true;
  for (const MaskCase& mask : masks) {
    for (const std::int32_t head_dim : {64, 128, 256}) {
      CaseChoice choice = choice_of(DType::bfloat16, head_dim);
      choice.has_bias = head_dim == 128;
      BackendBackwardCase test_case(fixture, mask, {8, 8, 4}, choice, backward);
      std::vector<unsigned char> bytes;
      for (const unsigned char poison : {0xff, 0x00, 0x41, 0xff}) {
        const auto ran = test_case.run(poison);
        ASSERT_TRUE(ran) << ran.error().message;
        if (bytes.empty()) bytes = test_case.result_bytes();
        EXPECT_TRUE(test_case.result_bytes() == bytes) << mask.name << " " << head_dim;
      }
      EXPECT_EQ(test_case.check(), "") << head_dim;
    }
  }
}

// Half tiles without a step, several in a row, from one query tile to the next, at both ends of
// tile groups and beside halves with a step. The dQ semaphore must advance for them too. There are
// more tile groups than multiprocessors, for one query head or for two of a KV head.
TEST(AttentionBackwardOnGpu, GivesTheSameBitsEveryRunWhereHalvesOfTilesAreEmptyOnEitherSide) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 rng(7);
  const std::uint64_t random_halves = std::uint64_t{rng()} << 32 | rng();
  const MaskCase masks[] = {
      testing::case_of(
          "tiles of halves of two tiles",
          testing::make_cells(440, 600,
                              [](auto q, auto k) { return ((q + 64) / 128 + k / 128) % 2 == 0; }),
          {128, 128}),
      testing::case_of("random halves",
                       testing::make_cells(440, 600,
                                           [&](auto q, auto k) {
                                             return (random_halves >> (q / 64 * 5 + k / 128) & 1) ==
                                                    1;
                                           }),
                       {128, 128})};
  GpuFixture fixture;
  BackwardChoice backward;
  backward.deterministic = true;
  for (const MaskCase& mask : masks) {
    for (const CaseHeads& heads : {CaseHeads{7, 8, 4}, CaseHeads{14, 2, 2}}) {
      for (const std::int32_t head_dim : {64, 128}) {
        BackendBackwardCase test_case(fixture, mask, heads, choice_of(DType::bfloat16, head_dim),
                                      backward);
        std::vector<unsigned char> bytes;
        for (const unsigned char poison : {0xff, 0x00, 0x41}) {
          const auto ran = test_case.run(poison);
          ASSERT_TRUE(ran) << ran.error().message;
          if (bytes.empty()) bytes = test_case.result_bytes();
          EXPECT_TRUE(test_case.result_bytes() == bytes) << mask.name << " " << head_dim;
        }
        EXPECT_EQ(test_case.check(), "") << head_dim << " " << heads.heads_q << " heads";
      }
    }
  }
}

TEST(AttentionBackwardOnGpu, IsCapturedIntoAGraphAndReplayed) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 rng(4);
  const MaskCase mask = testing::tile_case(rng, 500, 700);
  GpuFixture fixture;
  CaseChoice choice = choice_of(DType::bfloat16, 64);
  choice.has_bias = true;
  BackendBackwardCase test_case(fixture, mask, {1, 4, 2}, choice);
  ASSERT_TRUE(test_case.run());
  ASSERT_EQ(test_case.check(), "");
  const OwnedStream stream;
  const OwnedPlan plan = prepared(test_case.plan(), stream.get());
  const Workspace workspace(*plan);
  stream.wait();
  const auto call = [&] {
    return plan->backward(test_case.tensors(), {workspace.data(), stream.get()},
                          test_case.options());
  };
  const CapturedGraph graph(stream, call, 2);
  for (int replay = 0; replay < 3; ++replay) {
    for (auto* tensor : {&test_case.dq(), &test_case.dk(), &test_case.dv(), &test_case.dbias()}) {
      tensor->poison(0xff);
    }
    graph.replay();
    workspace.require_canaries();
    for (auto* tensor : {&test_case.dq(), &test_case.dk(), &test_case.dv(), &test_case.dbias()})
      tensor->fetch();
    EXPECT_EQ(test_case.check(), "") << replay;
  }
}

TEST(AttentionBackwardOnGpu, RejectsWhatItDoesNotTake) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(100, 100, [](auto q, auto k) { return k <= q; }), {128, 128});
  GpuFixture fixture;
  BackendBackwardCase test_case(fixture, mask, {1, 2, 1}, choice_of(DType::bfloat16, 64));
  const OwnedPlan plan = prepared(test_case.plan()), forward = prepared(test_case.forward().plan());
  const Workspace workspace(*plan);
  EXPECT_EQ(forward->backward(test_case.tensors(), {workspace.data()}).error().code,
            ErrorCode::unsupported);
  EXPECT_EQ(plan->forward(test_case.forward().tensors(), {workspace.data()}).error().code,
            ErrorCode::unsupported);
  EXPECT_EQ(plan->backward(test_case.tensors(), {nullptr}).error().code,
            ErrorCode::invalid_argument);
  BackwardTensors tensors = test_case.tensors();
  tensors.dk.data = static_cast<char*>(tensors.dk.data) + 2;
  const auto unaligned = plan->backward(tensors, {workspace.data()});
  ASSERT_FALSE(unaligned);
  EXPECT_EQ(unaligned.error().message, "dk: expected an address that is a multiple of 16 bytes");
  BackwardOptions deterministic;
  deterministic.deterministic = true;
  EXPECT_EQ(plan->backward(test_case.tensors(), {workspace.data()}, deterministic).error().message,
            "deterministic: the plan was prepared without an order; set "
            "PrepareOptions::deterministic");
}

}  // namespace
}  // namespace fdma
