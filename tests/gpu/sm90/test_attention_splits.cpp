// Rows split over several work tiles, query heads packed into a tile, and both. Results are
// compared with float64 and with plans that do neither, whatever the workspace held before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "backend/backend_cases.hpp"
#include "cuda/partials.hpp"
#include "gpu_fixture.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;
using gpu_test::GpuFixture;
using gpu_test::OwnedPlan;
using gpu_test::OwnedStream;
using gpu_test::prepared;
using gpu_test::require;
using gpu_test::Workspace;
using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::Layout;
using testing::MaskCase;
using testing::segments_of;

constexpr BlockShape kTile{128, 128};

std::int32_t num_partials(const AttentionPlan& plan) {
  std::int32_t sum = 0;
  for (const SplitRow& row : segments_of(plan).split_rows) sum += row.num_partials;
  return sum;
}

// Every row sees keys up to its own, as decode does.
const MaskCase& causal_case(std::int64_t q_len, std::int64_t kv_len) {
  static std::map<std::pair<std::int64_t, std::int64_t>, MaskCase> cases;
  auto [place, is_new] = cases.try_emplace({q_len, kv_len});
  if (is_new) {
    suite::SuiteMask mask = suite::make_square("causal", "causal", kv_len);
    mask.shape.q_lens = {q_len};
    place->second = testing::compiled_case(mask, kTile);
  }
  return place->second;
}

// Runs the four ways to plan a case; all must be right.
void expect_all_ways(const MaskCase& mask, const CaseHeads& heads, CaseChoice choice,
                     bool is_split) {
  GpuFixture fixture;
  for (const SplitMode split : {SplitMode::automatic, SplitMode::never}) {
    for (const PackMode pack : {PackMode::automatic, PackMode::never}) {
      choice.split = split;
      choice.pack = pack;
      BackendAttentionCase test_case(fixture, mask, heads, choice);
      if (split == SplitMode::never) {
        EXPECT_TRUE(segments_of(test_case.plan()).split_rows.empty());
      } else if (is_split) {
        EXPECT_FALSE(segments_of(test_case.plan()).split_rows.empty());
      }
      const std::string where = fmt::format("{} heads {}/{}, {}", mask.name, heads.heads_q,
                                            heads.heads_kv, to_string(choice));
      const auto ran = test_case.run();
      ASSERT_TRUE(ran) << where << ": " << ran.error().message;
      ASSERT_EQ(test_case.check(), "") << where;
      const std::vector<unsigned char> bytes = test_case.result_bytes();
      ASSERT_TRUE(test_case.run(0x41));
      ASSERT_EQ(test_case.result_bytes(), bytes) << where << ": two runs differ";
    }
  }
}

class DecodeOnGpu : public ::testing::TestWithParam<std::tuple<std::int64_t, std::int32_t>> {};

TEST_P(DecodeOnGpu, IsAccurateForLongKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const auto& [q_len, group] = GetParam();
  GpuFixture fixture;
  CaseChoice choice;
  choice.rows_per_head = 3;
  choice.head_dim = group % 8 == 0 ? 128 : 64;
  choice.dtype = group % 2 == 0 ? DType::bfloat16 : DType::float16;
  BackendAttentionCase test_case(fixture, causal_case(q_len, 131071), {1, group, 1}, choice);
  EXPECT_FALSE(segments_of(test_case.plan()).split_rows.empty());
  EXPECT_EQ(test_case.plan().heads_per_tile == 1, group == 1);
  const auto ran = test_case.run();
  ASSERT_TRUE(ran) << ran.error().message;
  EXPECT_EQ(test_case.check(), "");
  const std::vector<unsigned char> bytes = test_case.result_bytes();
  ASSERT_TRUE(test_case.run(0x41));
  EXPECT_EQ(test_case.result_bytes(), bytes);
}

INSTANTIATE_TEST_SUITE_P(Lengths, DecodeOnGpu,
                         ::testing::Combine(::testing::Values<std::int64_t>(1, 3, 61),
                                            ::testing::Values(1, 4, 7, 8, 16)),
                         [](const auto& index) {
                           return fmt::format("Q{}Group{}", std::get<0>(index.param),
                                              std::get<1>(index.param));
                         });

TEST(AttentionSplits, AreAccurateForEveryGroupOfHeads) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::uint64_t seed = 0;
  for (const std::int64_t q_len : {1, 3, 61, 130}) {
    for (const std::int32_t group : {1, 2, 3, 4, 7, 8, 12, 16}) {
      CaseChoice choice;
      choice.seed = ++seed;
      choice.rows_per_head = 40;
      choice.head_dim = seed % 3 == 0 ? 64 : 128;
      choice.dtype = seed % 2 == 0 ? DType::bfloat16 : DType::float16;
      choice.layout = std::array{Layout::rows, Layout::head_major, Layout::padded}[seed % 3];
      choice.has_bias = seed % 4 == 1;
      choice.softmax_scale = seed % 5 == 2 ? -0.15F : 0;
      choice.wants_lse = seed % 7 != 3;
      choice.wants_out_low = seed % 3 < 2;
      expect_all_ways(causal_case(q_len, 3001), {1, 2 * group, 2}, choice, true);
    }
  }
}

TEST(AttentionSplits, AreAccurateForEveryKindOfSegment) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 rng(41);
  PlanCounts counts;
  for (int test_case = 0; test_case < 10; ++test_case) {
    const std::int64_t q_len = testing::pick(rng, 1, 150);
    std::vector<MaskCase> cases;
    for (int b = 0; b < 2; ++b) {
      const std::int64_t kv_len = testing::pick(rng, 1500, 4000);
      cases.push_back(test_case % 2 == 0 ? testing::tile_case(rng, q_len, kv_len)
                                         : testing::column_case(rng, q_len, kv_len));
    }
    const MaskCase mask = testing::combined(fmt::format("trial {}", test_case), 2, 1, cases, kTile);
    CaseChoice choice;
    choice.seed = static_cast<std::uint64_t>(test_case) + 1;
    choice.head_dim = test_case % 4 < 2 ? 128 : 64;
    choice.has_bias = test_case % 3 == 0;
    expect_all_ways(mask, {2, test_case % 2 == 0 ? 4 : 7, 1}, choice, true);
    GpuFixture fixture;
    const BackendAttentionCase planned(fixture, mask, {2, 4, 1}, choice);
    counts.full_tiles += planned.plan().counts.full_tiles;
    counts.bitmap_tiles += planned.plan().counts.bitmap_tiles;
    counts.row_tiles += planned.plan().counts.row_tiles;
    counts.column_tiles += planned.plan().counts.column_tiles;
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
}

// Rows see a few scattered keys or none, so that most of their partial results have no keys.
TEST(AttentionSplits, CombineRowsThatSeeFewKeysOrNone) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "few keys",
      testing::make_cells(100, 5000,
                          [](auto q, auto k) { return q % 5 != 0 && k / 10 == (q * 53) % 500; }),
      kTile);
  for (const bool has_bias : {false, true}) {
    CaseChoice choice;
    choice.has_bias = has_bias;
    expect_all_ways(mask, {2, 4, 1}, choice, true);
    expect_all_ways(mask, {1, 1, 1}, choice, true);
  }
}

// One tile row with all keys among many with one tile, so that one launch has work tiles of both
// kinds.
TEST(AttentionSplits, StandBesideWholeRows) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "one long row",
      testing::make_cells(1500, 6000,
                          [](auto q, auto k) { return q < 3 || (k / 128 == q / 128 && k <= q); }),
      kTile);
  GpuFixture fixture;
  CaseChoice choice;
  choice.rows_per_head = 150;
  BackendAttentionCase test_case(fixture, mask, {1, 2, 2}, choice);
  const AttentionPlan& plan = test_case.plan();
  EXPECT_EQ(segments_of(plan).split_rows.size(), 2U);
  EXPECT_TRUE(
      std::any_of(segments_of(plan).work_tiles.begin(), segments_of(plan).work_tiles.end(),
                  [](const WorkTile& work_tile) { return work_tile.partial == kWholeRow; }));
  expect_all_ways(mask, {1, 2, 2}, choice, true);
}

TEST(AttentionSplits, HoldWhereLogitsAreFarApart) {
  FDMA_SKIP_WITHOUT_HOPPER();
  for (const double scale : {1e-3, 30.0, 300.0}) {
    CaseChoice choice;
    choice.has_bias = true;
    choice.bias_scale = scale;
    expect_all_ways(causal_case(17, 4000), {1, 8, 1}, choice, true);
  }
}

// Partial results are behind the counter. The workspace may hold anything before, and nothing else
// is written.
TEST(AttentionSplits, UseTheWorkspaceThatTheirPlanAsksFor) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  BackendAttentionCase test_case(fixture, causal_case(3, 20000), {1, 8, 2}, {});
  ASSERT_FALSE(segments_of(test_case.plan()).split_rows.empty());
  const OwnedPlan plan = prepared(test_case.plan());
  const gpu::PartialLayout layout{128, num_partials(test_case.plan())};
  EXPECT_GE(plan->workspace_bytes(), 256 + layout.bytes());
  ASSERT_TRUE(test_case.run());
  const std::vector<unsigned char> wanted = test_case.result_bytes();
  for (const unsigned char byte : {0x00, 0x7f, 0x41, 0xff}) {
    const Workspace workspace(*plan);
    require(cudaMemset(workspace.data(), byte, static_cast<std::size_t>(plan->workspace_bytes())),
            "cudaMemset");
    test_case.poison(0xff);
    ASSERT_TRUE(plan->forward(test_case.tensors(), {workspace.data()}, test_case.options()));
    workspace.require_canaries();
    test_case.fetch();
    EXPECT_EQ(test_case.result_bytes(), wanted) << int{byte};
  }
}

TEST(AttentionSplits, GiveTheSameBitsInAGraphReplayedManyTimes) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  BackendAttentionCase test_case(fixture, causal_case(1, 20000), {4, 8, 1}, {});
  ASSERT_FALSE(segments_of(test_case.plan()).split_rows.empty());
  ASSERT_TRUE(test_case.run());
  ASSERT_EQ(test_case.check(), "");
  const std::vector<unsigned char> wanted = test_case.result_bytes();
  const OwnedPlan plan = prepared(test_case.plan());
  const Workspace workspace(*plan);
  const OwnedStream stream;
  require(cudaDeviceSynchronize(), "upload");
  const gpu_test::CapturedGraph graph(stream, [&] {
    return plan->forward(test_case.tensors(), {workspace.data(), stream.get()},
                         test_case.options());
  });
  test_case.poison(0xff);
  for (int replay = 0; replay < 200; ++replay) graph.launch();
  stream.wait();
  workspace.require_canaries();
  test_case.fetch();
  EXPECT_EQ(test_case.result_bytes(), wanted);
}

}  // namespace
}  // namespace fdma
