// Attention with kv permutations, which order keys by their live ranges, against float64. A
// permutation covers all keys, or stands beside kv index lists and tiles in the order of the
// tensors. The cases have packed heads, tails, biases, split rows, and heads and batch elements
// with their own permutation or with none.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "backend/backend_cases.hpp"
#include "backend/scattered_cases.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::MaskCase;

CaseChoice reordering(std::int32_t head_dim, DType dtype) {
  CaseChoice choice;
  choice.columns = ColumnMode::reorder;
  choice.head_dim = head_dim;
  choice.dtype = dtype;
  return choice;
}

// Random eviction of half of the keys, as in the mask suite.
MaskCase eviction(std::int64_t len, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::int64_t> end(static_cast<std::size_t>(len), len);
  std::vector<std::int64_t> alive;
  for (std::int64_t q = 0; q < len; ++q) {
    if (q >= len / 2) {
      const auto victim = static_cast<std::size_t>(rng() % alive.size());
      end[static_cast<std::size_t>(alive[victim])] = q;
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    alive.push_back(q);
  }
  return testing::case_of(
      "eviction",
      testing::make_cells(
          len, len, [&](auto q, auto k) { return k <= q && q < end[static_cast<std::size_t>(k)]; }),
      {128, 128});
}

// Every mask of scattered keys with types, head sizes, groups of heads and layouts in turn.
TEST(KvPermutationOnGpu, IsAsAccurateAsAnExplicitProduct) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  PlanCounts counts;
  std::uint64_t seed = 1;
  const std::pair<int, int> lengths[] = {{300, 500}, {257, 1003}, {640, 640}, {1, 900}, {129, 1}};
  for (const auto& [q_len, kv_len] : lengths) {
    for (const MaskCase& mask :
         testing::scattered_cases(q_len, kv_len, static_cast<std::uint32_t>(seed))) {
      constexpr std::int32_t kHeadDims[] = {128, 64, 96, 128, 40, 64, 256, 192};
      CaseChoice choice = reordering(kHeadDims[seed % std::size(kHeadDims)],
                                     seed % 2 == 0 ? DType::bfloat16 : DType::float16);
      if (choice.head_dim == 192) choice.head_dim_v = 128;
      if (seed % 5 == 0) choice.head_dim_v = 80;
      choice.has_bias = seed % 3 == 0;
      choice.wants_lse = seed % 7 != 0;
      choice.layout = seed % 4 == 0 ? testing::Layout::padded : testing::Layout::rows;
      choice.seed = seed;
      choice.rows_per_head = 160;
      const CaseHeads heads[] = {{1, 2, 2}, {2, 4, 1}, {1, 6, 2}};
      ASSERT_EQ(testing::check_case(fixture, mask, heads[seed % std::size(heads)], choice, &counts),
                "")
          << seed;
      ++seed;
    }
  }
  EXPECT_GT(counts.moved_keys, 0);
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
  EXPECT_GT(counts.gather_chunks, 0);
}

// Permutations that end anywhere in a tile. Their last tile has keys that all rows see, and other
// keys are never seen.
TEST(KvPermutationOnGpu, IsAccurateForEveryNumberOfKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (const std::int64_t num_keys : {1, 127, 128, 129, 200, 256, 257}) {
    for (const bool are_all : {true, false}) {
      const std::int64_t stride = are_all ? 1 : 3;
      const MaskCase mask = testing::case_of(
          "order",
          testing::make_cells(
              200, num_keys * stride,
              [&](auto q, auto k) { return k % stride == 0 && (k % 7 != 3 || q % 128 > 60); }),
          {128, 128});
      for (const std::int32_t head_dim : {64, 128, 256}) {
        CaseChoice choice = reordering(head_dim, DType::bfloat16);
        choice.rows_per_head = 64;
        choice.seed = static_cast<std::uint64_t>(num_keys);
        choice.has_bias = num_keys % 2 == 1;
        choice.split = SplitMode::never;
        ASSERT_EQ(testing::check_case(fixture, mask, {2, 2, 2}, choice), "")
            << num_keys << " keys, head_dim " << head_dim;
      }
    }
  }
}

// Early rows read keys in the order of the tensors, and later rows in the permuted order, as the
// plan of `automatic` does.
TEST(KvPermutationOnGpu, IsAccurateBesideTilesInTheOrderOfTheTensors) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = eviction(2048, 7);
  for (const std::int32_t head_dim : {64, 128, 256}) {
    for (const bool has_bias : {false, true}) {
      CaseChoice choice = reordering(head_dim, DType::bfloat16);
      choice.rows_per_head = 64;
      choice.has_bias = has_bias;
      BackendAttentionCase test_case(fixture, mask, {2, 16, 8}, choice);
      EXPECT_GT(test_case.plan().counts.moved_keys, 0);
      const auto ran = test_case.run();
      ASSERT_TRUE(ran) << ran.error().message;
      EXPECT_EQ(test_case.check(), "");
      choice.columns = ColumnMode::automatic;
      EXPECT_EQ(testing::check_case(fixture, mask, {2, 16, 8}, choice), "");
    }
  }
}

TEST(KvPermutationOnGpu, IsAccurateForHeadsAndElementsOfTheirOwn) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const std::vector<MaskCase> one = testing::scattered_cases(150, 700, 22);
  const std::vector<MaskCase> other = testing::scattered_cases(261, 390, 23);
  for (std::size_t i = 0; i + 1 < one.size(); i += 2) {
    // In the first batch element the query heads of each KV head have the same mask. In the second
    // only those of one KV head do.
    const MaskCase mask = testing::combined(
        "heads", 2, 4,
        {one[i], one[i], one[i + 1], one[i + 1], other[i], other[i], other[i], other[i + 1]},
        {128, 128});
    CaseChoice choice = reordering(i % 4 == 0 ? 64 : 128, DType::bfloat16);
    choice.has_bias = i % 4 == 2;
    choice.seed = i + 1;
    EXPECT_EQ(testing::check_case(fixture, mask, {2, 4, 2}, choice), "");
  }
}

// A long row whose keys several work tiles share, and heads that share a tile.
TEST(KvPermutationOnGpu, IsAccurateWhereRowsAreSplit) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const auto cells = [](auto q, auto k) { return k % 3 == 0 && (k < 9000 || q % 16 > k % 13); };
  for (const std::int64_t q_len : {16, 128}) {
    const MaskCase mask =
        testing::case_of("long", testing::make_cells(q_len, 12000, cells), {128, 128});
    for (const std::int32_t heads_q : {2, 8}) {
      CaseChoice choice = reordering(128, DType::bfloat16);
      choice.rows_per_head = 16;
      BackendAttentionCase test_case(fixture, mask, {1, heads_q, 2}, choice);
      const auto ran = test_case.run();
      ASSERT_TRUE(ran) << ran.error().message;
      EXPECT_EQ(test_case.check(), "");
    }
  }
}

TEST(KvPermutationOnGpu, HasTheSameBitsTwice) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (const MaskCase& mask : testing::scattered_cases(300, 900, 31)) {
    BackendAttentionCase test_case(fixture, mask, {1, 4, 2}, reordering(128, DType::bfloat16));
    ASSERT_TRUE(test_case.run(0xff));
    const std::vector<unsigned char> first = test_case.result_bytes();
    ASSERT_TRUE(test_case.run(0x11));
    EXPECT_EQ(test_case.result_bytes(), first) << mask.name;
  }
}

}  // namespace
}  // namespace fdma
