// Compares selection with its literal definition: each query sorts its visible keys and takes w.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/select/select_topk.hpp"
#include "selection_oracle.hpp"

namespace fdma {
namespace {

TEST(SelectTopk, IsTheLiteralDefinitionForEveryKindOfScoreAndMask) {
  std::mt19937 random(7);
  for (const auto& [q_len, kv_len] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {65, 65}, {40, 71}, {71, 40}, {1, 130}, {130, 1}}) {
    for (const NamedCells& among : all_among(q_len, kv_len, random)) {
      const ColumnIntervals columns = columns_of(among.cells, kv_len);
      for (const auto& [name, scores] : all_scores(kv_len, random)) {
        for (const std::int64_t w :
             {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, kv_len - 1, kv_len, kv_len + 5}) {
          if (w < 1) continue;
          const auto selected = select_topk(scores, w, columns);
          ASSERT_TRUE(selected) << selected.error().message;
          ASSERT_TRUE(validate(*selected, ValidationLevel::canonical))
              << validate(*selected, ValidationLevel::canonical).error().message;
          ASSERT_EQ(cells_of(*selected), selected_by_sorting(scores, w, among.cells))
              << q_len << " x " << kv_len << " " << among.name << ", scores " << name << ", w "
              << w;
        }
      }
    }
  }
}

TEST(SelectTopk, WindowsAroundTheSizeOfATile) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kLength = 300;
  std::vector<float> scores(kLength);
  for (float& score : scores) score = normal(random);
  const SelectedCells causal = cells_where(kLength, kLength, [](auto q, auto k) { return k <= q; });
  for (const std::int64_t w : {127, 128, 129, 299, 300}) {
    const auto selected = select_topk(scores, w, columns_of(causal, kLength));
    ASSERT_TRUE(selected);
    EXPECT_EQ(cells_of(*selected), selected_by_sorting(scores, w, causal)) << w;
  }
}

TEST(SelectTopk, KeepsOneIntervalAKeyWhereVisibleSetsOnlyGrow) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kLength = 2000;
  std::vector<float> scores(kLength);
  for (float& score : scores) score = normal(random);
  const auto selected = select_topk(
      scores, 50,
      columns_of(cells_where(kLength, kLength, [](auto q, auto k) { return k <= q; }), kLength));
  ASSERT_TRUE(selected);
  for (std::size_t key = 0; key < kLength; ++key) {
    EXPECT_LE(selected->offsets[key + 1] - selected->offsets[key], 1);
  }
}

// There are at most as many intervals as times at which keys become visible or invisible.
TEST(SelectTopk, HasNoMoreIntervalsThanChangesOfVisibility) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const NamedCells& among : all_among(120, 150, random)) {
    const ColumnIntervals columns = columns_of(among.cells, 150);
    std::vector<float> scores(150);
    for (float& score : scores) score = normal(random);
    for (const std::int64_t w : {1, 5, 40}) {
      const auto selected = select_topk(scores, w, columns);
      ASSERT_TRUE(selected);
      EXPECT_LE(selected->intervals.size(), 2 * columns.intervals.size()) << among.name;
    }
  }
}

TEST(SelectTopk, AMillionTokens) {
  constexpr std::int64_t kLength = 1 << 20, kWidth = 2048;
  std::mt19937 random(1);
  std::vector<float> scores(kLength);
  for (float& score : scores) score = static_cast<float>(random());
  ColumnIntervals causal{kLength, kLength, {0}, {}};
  for (std::int32_t k = 0; k < kLength; ++k) {
    causal.intervals.push_back({k, static_cast<std::int32_t>(kLength)});
    causal.offsets.push_back(k + 1);
  }
  const auto selected = select_topk(scores, kWidth, causal);
  ASSERT_TRUE(selected);
  // Every query q keeps min(q + 1, w) keys.
  std::int64_t pairs = 0;
  for (const Interval& queries : selected->intervals) pairs += queries.end - queries.begin;
  EXPECT_EQ(pairs, kWidth * (kWidth + 1) / 2 + (kLength - kWidth) * kWidth);
}

TEST(SelectTopk, RejectsWhatItCannotRank) {
  const ColumnIntervals causal =
      columns_of(cells_where(3, 3, [](auto q, auto k) { return k <= q; }), 3);
  const std::vector<float> scores{1, std::numeric_limits<float>::quiet_NaN(), 2};
  const auto nan = select_topk(scores, 1, causal);
  ASSERT_FALSE(nan);
  EXPECT_EQ(nan.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(nan.error().message, ::testing::HasSubstr("scores[1]"));
  const auto zero = select_topk(std::vector<float>{1, 2, 3}, 0, causal);
  ASSERT_FALSE(zero);
  EXPECT_EQ(zero.error().code, ErrorCode::invalid_argument);
  const auto shorter = select_topk(std::vector<float>{1, 2}, 1, causal);
  ASSERT_FALSE(shorter);
  EXPECT_EQ(shorter.error().code, ErrorCode::shape_mismatch);
}

}  // namespace
}  // namespace fdma
