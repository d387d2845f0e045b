// Tests attention on the CPU against dense attention in float64. The masks of the mask suite run
// with every pair of choices of types, head sizes, groups of heads, lengths, tiles, layouts and
// biases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "backend/attention_case.hpp"
#include "backend/covering_array.hpp"
#include "mask_suite.hpp"
#include "named_masks.hpp"

namespace fdma {
namespace {

using testing::MaskCase;
using testing::Order;
using testing::TensorChoice;

constexpr int kNumSuiteMasks = 13;
constexpr DType kDTypes[] = {DType::float32, DType::bfloat16, DType::float16};
constexpr std::int32_t kHeadDims[] = {8, 64, 80, 128, 256};
// Query heads and KV heads: groups of 1, 3, 8 and all heads.
constexpr std::pair<std::int32_t, std::int32_t> kHeads[] = {{2, 2}, {6, 2}, {16, 2}, {4, 1}};
// q_len and kv_len of two batch elements. Equal entries are given as uniform lengths.
struct Lengths {
  std::int64_t q[2];
  std::int64_t kv[2];
};
constexpr Lengths kLengths[] = {
    {{193, 193}, {193, 193}},  // odd
    {{61, 61}, {257, 257}},    // more keys than queries
    {{257, 257},
     {130, 130}},            // more queries than keys: with alignment at the end, rows without keys
    {{200, 31}, {37, 211}},  // per element
    {{1, 140}, {129, 1}},    // one row, one key
};
constexpr BlockShape kTiles[] = {{0, 0}, {16, 16}, {64, 128}, {128, 64}, {16, 256}};
constexpr Order kOrders[] = {Order::rows, Order::head_major, Order::gaps, Order::reversed};

// Returns mask `index` of the mask suite for both elements, or for the first one if lengths are
// uniform.
MaskCase suite_mask(int index, const Lengths& lengths) {
  std::vector<MaskCase> cases;
  const bool is_uniform = lengths.q[0] == lengths.q[1] && lengths.kv[0] == lengths.kv[1];
  std::string name;
  for (std::size_t b = 0; b < (is_uniform ? 1U : 2U); ++b) {
    suite::SuiteMask mask = suite::mask_suite(lengths.kv[b])[static_cast<std::size_t>(index)];
    mask.shape.q_lens = {lengths.q[b]};
    cases.push_back(testing::suite_case(mask, {64, 64}));
    name = mask.name;
  }
  const auto num_batches = static_cast<std::int64_t>(cases.size());
  return testing::combined(name, num_batches, 1, cases, {64, 64});
}

TEST(CoveringArray, MeetsEveryPair) {
  const std::vector<int> sizes{12, 3, 5, 5, 4};
  const auto rows = testing::covering_array(sizes, 1);
  EXPECT_LT(rows.size(), 110U);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t j = i + 1; j < sizes.size(); ++j) {
      std::set<std::pair<int, int>> met;
      for (const auto& row : rows) met.insert({row[i], row[j]});
      EXPECT_EQ(met.size(), static_cast<std::size_t>(sizes[i] * sizes[j]));
    }
  }
}

// Runs one part of the covering array. Parts can run side by side.
class AttentionMaskSuite : public ::testing::TestWithParam<int> {
 public:
  static constexpr int kNumParts = 6;
};

TEST_P(AttentionMaskSuite, IsAsAccurateAsAnExplicitProduct) {
  const auto rows = testing::covering_array(
      {kNumSuiteMasks, std::size(kDTypes), std::size(kHeadDims), std::size(kHeadDims),
       std::size(kHeads), std::size(kLengths), std::size(kTiles), std::size(kOrders), 4, 2},
      4);
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < rows.size(); i += kNumParts) {
    const std::vector<int>& row = rows[i];
    const MaskCase mask = suite_mask(row[0], kLengths[row[5]]);
    const auto [heads_q, heads_kv] = kHeads[row[4]];
    AttentionShape shape = testing::shape_for(mask.mask, 2, heads_q, heads_kv);
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = kDTypes[row[1]];
    shape.head_dim = kHeadDims[row[2]];
    shape.head_dim_v = kHeadDims[row[3]];
    PlanOptions options;
    options.tile = kTiles[row[6]];
    TensorChoice choice;
    choice.order = kOrders[row[7]];
    choice.side = row[9] == 0 ? testing::GuardSide::end : testing::GuardSide::begin;
    choice.seed = i + 1;
    const ScoreSpec score{.softcap = row[8] >= 2, .key_bias = row[8] % 2 == 1};
    EXPECT_EQ(testing::check_attention(mask, shape, score, choice, options), "")
        << fmt::format("case {}: {} head_dim {} / {} heads {} / {} lengths {} tile {} order {}", i,
                       to_string(shape.q_dtype), shape.head_dim, shape.head_dim_v, heads_q,
                       heads_kv, row[5], row[6], row[7]);
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, AttentionMaskSuite,
                         ::testing::Range(0, AttentionMaskSuite::kNumParts));

// Every name of the mask language runs at 1,024 tokens with small heads. All kinds of segments and
// many tiles occur.
TEST(AttentionForward, IsAccurateForEveryNameOfTheLanguage) {
  std::uint64_t seed = 1;
  for (const suite::SuiteMask& mask : suite::every_name(1024, 5)) {
    const MaskCase each = testing::suite_case(mask, {128, 128});
    AttentionShape shape = testing::shape_for(each.mask, 1, 1, 1);
    shape.head_dim = 8;
    shape.head_dim_v = 8;
    TensorChoice choice;
    choice.seed = ++seed;
    EXPECT_EQ(testing::check_attention(each, shape, {}, choice), "");
  }
}

}  // namespace
}  // namespace fdma
