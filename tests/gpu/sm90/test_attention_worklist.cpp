// Gradients by kv worklists on the GPU against float64. The masks are learned top-k with scores of
// all kinds, eviction, keys that become invisible and visible again, and keys that no query sees.
// The cases have tiles that are cut at query segments, tails, groups of heads, biases and every
// head size.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/backend_backward_case.hpp"
#include "backend/backend_cases.hpp"
#include "backend/scattered_cases.hpp"
#include "gpu_fixture.hpp"
#include "plan/plan_forms.hpp"

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
using testing::has_worklist;
using testing::MaskCase;
using testing::worklist_of;

BackwardChoice listed() {
  BackwardChoice choice;
  choice.columns = ColumnMode::reorder;
  return choice;
}

std::string listed_error(GpuFixture& fixture, const MaskCase& mask, const CaseHeads& heads,
                         const CaseChoice& choice, const BackwardChoice& backward = listed()) {
  BackendBackwardCase test_case(fixture, mask, heads, choice, backward);
  const AttentionPlan& plan = test_case.plan();
  if (!has_worklist(plan) && plan.counts.full_tiles + plan.counts.bitmap_tiles > 0) {
    return mask.name + ": is not listed";
  }
  const auto ran = test_case.run();
  return ran ? test_case.check() : mask.name + ": " + ran.error().message;
}

// Every mask of scattered keys with types, head sizes, groups of heads and layouts in turn.
TEST(BackwardOverKvWorklist, IsAsAccurateAsAnExplicitProduct) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  std::uint64_t seed = 1;
  for (const auto& [q_len, kv_len] :
       {std::pair{300, 500}, {257, 1003}, {640, 640}, {1, 900}, {129, 1}}) {
    for (const MaskCase& mask :
         testing::scattered_cases(q_len, kv_len, static_cast<std::uint32_t>(seed))) {
      constexpr std::int32_t kHeadDims[] = {128, 64, 96, 128, 40, 64, 256, 112};
      CaseChoice choice;
      choice.head_dim = kHeadDims[seed % std::size(kHeadDims)];
      choice.dtype = seed % 2 == 0 ? DType::bfloat16 : DType::float16;
      if (seed % 5 == 0) choice.head_dim_v = 80;
      choice.has_bias = seed % 3 == 0;
      choice.layout = seed % 4 == 0 ? testing::Layout::padded : testing::Layout::rows;
      choice.seed = seed;
      BackwardChoice backward = listed();
      backward.are_gradients_float32 = seed % 7 == 2;
      const CaseHeads heads[] = {{1, 2, 2}, {2, 4, 1}, {1, 6, 2}};
      EXPECT_EQ(listed_error(fixture, mask, heads[seed % std::size(heads)], choice, backward), "")
          << seed;
      ++seed;
    }
  }
}

// Tiles of keys that are live in several query segments. Their gradients are added in float32.
TEST(BackwardOverKvWorklist, AddsUpWhatSegmentsOfQueriesGive) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase masks[] = {
      testing::case_of(
          "live long",
          testing::make_cells(
              700, 160, [](auto q, auto k) { return q >= 2 * k && q < 350 + 2 * (k * 37 % 170); }),
          {128, 128}),
      testing::case_of(
          "come back",
          testing::make_cells(700, 160,
                              [](auto q, auto k) { return k % 3 != 1 && (q + 7 * k) % 300 < 150; }),
          {128, 128})};
  for (const MaskCase& mask : masks) {
    for (const std::int32_t head_dim : {64, 128, 256}) {
      CaseChoice choice;
      choice.head_dim = head_dim;
      choice.has_bias = head_dim == 128;
      BackendBackwardCase test_case(fixture, mask, {1, 16, 1}, choice, listed());
      EXPECT_FALSE(worklist_of(test_case.plan()).accum_keys.empty());
      const auto ran = test_case.run();
      ASSERT_TRUE(ran) << ran.error().message;
      EXPECT_EQ(test_case.check(), "") << head_dim;
    }
  }
}

// More tile groups than blocks.
TEST(BackwardOverKvWorklist, IsAccurateWithManyTileGroupsForEachBlock) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "many",
      testing::make_cells(400, 700,
                          [](auto q, auto k) { return k <= q + 300 && (k * k + q / 90) % 5 != 3; }),
      {128, 128});
  for (const std::int32_t head_dim : {64, 128}) {
    CaseChoice choice;
    choice.head_dim = head_dim;
    choice.layout = testing::Layout::padded;
    EXPECT_EQ(listed_error(fixture, mask, {8, 24, 12}, choice), "");
  }
}

TEST(BackwardOverKvWorklist, IsCapturedIntoAGraphAndReplayed) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "eviction",
      testing::make_cells(500, 400,
                          [](auto q, auto k) { return k <= q && q < k + 40 + k * 61 % 300; }),
      {128, 128});
  CaseChoice choice;
  choice.has_bias = true;
  BackendBackwardCase test_case(fixture, mask, {1, 4, 2}, choice, listed());
  ASSERT_TRUE(has_worklist(test_case.plan()));
  const OwnedStream stream;
  const OwnedPlan plan = prepared(test_case.plan(), stream.get());
  const Workspace workspace(*plan);
  stream.wait();
  const CapturedGraph graph(stream, [&] {
    return plan->backward(test_case.tensors(), {workspace.data(), stream.get()},
                          test_case.options());
  });
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

// The lists include those whose keys become visible again, which are added entry by entry. There
// are cases with a bias, whose gradient has its own fp32 accumulators, and with groups of heads.
TEST(BackwardOverKvWorklist, GivesTheSameBitsEveryRunWhereThatIsAskedFor) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  std::vector<MaskCase> masks;
  for (MaskCase& mask : testing::scattered_cases(300, 500, 11)) {
    if (masks.size() < 4) masks.push_back(std::move(mask));
  }
  masks.push_back(testing::case_of(
      "come back",
      testing::make_cells(700, 160,
                          [](auto q, auto k) { return k % 3 != 1 && (q + 7 * k) % 300 < 150; }),
      {128, 128}));
  masks.push_back(testing::case_of(
      "eviction",
      testing::make_cells(700, 600,
                          [](auto q, auto k) { return k <= q && q < k + 40 + k * 61 % 500; }),
      {128, 128}));
  int num_worklist_entries = 0;
  std::size_t num_accum_rows = 0;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    for (const std::int32_t head_dim : {64, 128, 256}) {
      CaseChoice choice;
      choice.head_dim = head_dim;
      choice.dtype = i % 2 == 0 ? DType::bfloat16 : DType::float16;
      choice.has_bias = (i + static_cast<std::size_t>(head_dim / 64)) % 3 == 0;
      BackwardChoice backward = listed();
      backward.deterministic = true;
      const CaseHeads heads[] = {{1, 12, 12}, {1, 16, 2}, {2, 6, 2}};
      BackendBackwardCase test_case(fixture, masks[i], heads[i % std::size(heads)], choice,
                                    backward);
      if (has_worklist(test_case.plan())) {
        ++num_worklist_entries;
        num_accum_rows += worklist_of(test_case.plan()).accum_keys.size();
      }
      std::vector<unsigned char> bytes;
      for (const unsigned char poison : {0xff, 0x00, 0x41}) {
        const auto ran = test_case.run(poison);
        ASSERT_TRUE(ran) << ran.error().message;
        if (bytes.empty()) bytes = test_case.result_bytes();
        EXPECT_TRUE(test_case.result_bytes() == bytes) << masks[i].name << " " << head_dim;
      }
      EXPECT_EQ(test_case.check(), "") << head_dim;
    }
  }
  EXPECT_GT(num_worklist_entries, 6);
  EXPECT_GT(num_accum_rows, 0U);
}

TEST(BackwardOverKvWorklist, WantsAnOrderForDeterministicCalls) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "even keys",
      testing::make_cells(200, 200, [](auto q, auto k) { return k <= q && k % 2 == 0; }),
      {128, 128});
  BackendBackwardCase test_case(fixture, mask, {1, 2, 1}, CaseChoice{}, listed());
  const OwnedPlan plan = prepared(test_case.plan());
  const Workspace workspace(*plan);
  BackwardOptions options = test_case.options();
  options.deterministic = true;
  const auto ran = plan->backward(test_case.tensors(), {workspace.data()}, options);
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().message,
            "deterministic: the plan was prepared without an order; set "
            "PrepareOptions::deterministic");
}

}  // namespace
}  // namespace fdma
