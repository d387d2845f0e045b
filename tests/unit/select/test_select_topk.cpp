// Selection against its literal definition: for each query, sort the visible keys and take w.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/select/select_topk.hpp"

namespace fdma {
namespace {

using Cells = std::vector<std::vector<bool>>;  // [q][k]

Cells cells_of(const ColumnIntervals& mask) {
  Cells cells(static_cast<std::size_t>(mask.q_len),
              std::vector<bool>(static_cast<std::size_t>(mask.kv_len), false));
  for (std::size_t key = 0; key < static_cast<std::size_t>(mask.kv_len); ++key) {
    for (std::int64_t i = mask.offsets[key]; i < mask.offsets[key + 1]; ++i) {
      const Interval queries = mask.intervals[static_cast<std::size_t>(i)];
      for (std::int32_t q = queries.begin; q < queries.end; ++q) {
        cells[static_cast<std::size_t>(q)][key] = true;
      }
    }
  }
  return cells;
}

ColumnIntervals columns_of(const Cells& cells, std::int64_t kv_len) {
  ColumnIntervals mask{static_cast<std::int64_t>(cells.size()), kv_len, {0}, {}};
  for (std::size_t key = 0; key < static_cast<std::size_t>(kv_len); ++key) {
    for (std::size_t q = 0; q < cells.size(); ++q) {
      if (!cells[q][key]) continue;
      const auto at = static_cast<std::int32_t>(q);
      const bool is_new = q == 0 || !cells[q - 1][key];
      if (is_new) {
        mask.intervals.push_back({at, at + 1});
      } else {
        mask.intervals.back().end = at + 1;
      }
    }
    mask.offsets.push_back(static_cast<std::int64_t>(mask.intervals.size()));
  }
  return mask;
}

// By definition: among the visible keys of each query, the w first by (score descending, index).
Cells selected_by_sorting(const std::vector<float>& scores, std::int64_t w, const Cells& among) {
  Cells kept = among;
  for (std::size_t q = 0; q < among.size(); ++q) {
    std::vector<std::size_t> keys;
    for (std::size_t key = 0; key < scores.size(); ++key) {
      if (among[q][key]) keys.push_back(key);
    }
    std::stable_sort(keys.begin(), keys.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    for (std::size_t i = static_cast<std::size_t>(w); i < keys.size(); ++i)
      kept[q][keys[i]] = false;
  }
  return kept;
}

template <class Visible>
Cells cells_where(std::int64_t q_len, std::int64_t kv_len, Visible visible) {
  Cells cells(static_cast<std::size_t>(q_len));
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (std::int64_t k = 0; k < kv_len; ++k) {
      cells[static_cast<std::size_t>(q)].push_back(visible(q, k));
    }
  }
  return cells;
}

struct NamedCells {
  std::string name;
  Cells cells;
};

// Every kind of M: one interval a key in growing sets, and keys that come and go.
std::vector<NamedCells> all_among(std::int64_t q_len, std::int64_t kv_len, std::mt19937& random) {
  const std::int64_t shift = kv_len - q_len;
  const auto pos = [shift](std::int64_t q) { return q + shift; };
  std::vector<std::int64_t> end(static_cast<std::size_t>(kv_len)), id(end.size()),
      mixed(end.size());
  for (std::size_t k = 0; k < end.size(); ++k) {
    end[k] = static_cast<std::int64_t>(random() % static_cast<unsigned>(q_len + 1));
    id[k] = static_cast<std::int64_t>(k) / 13;
    mixed[k] = static_cast<std::int64_t>(random() % 3);
  }
  const auto at = [](const std::vector<std::int64_t>& table, std::int64_t i) {
    return i < 0 || i >= static_cast<std::int64_t>(table.size())
               ? -1
               : table[static_cast<std::size_t>(i)];
  };
  std::vector<NamedCells> all;
  const auto add = [&](std::string name, auto visible) {
    all.push_back({std::move(name), cells_where(q_len, kv_len, visible)});
  };
  add("full", [](auto, auto) { return true; });
  add("empty", [](auto, auto) { return false; });
  add("causal", [&](auto q, auto k) { return k <= pos(q); });
  add("padding", [&](auto, auto k) { return k < kv_len * 2 / 3; });
  add("prefix", [&](auto q, auto k) { return k <= pos(q) || k < 9; });
  add("documents",
      [&](auto q, auto k) { return at(id, pos(q)) == id[static_cast<std::size_t>(k)]; });
  add("causal documents", [&](auto q, auto k) {
    return k <= pos(q) && at(id, pos(q)) == id[static_cast<std::size_t>(k)];
  });
  add("window", [&](auto q, auto k) { return k <= pos(q) && pos(q) - k < 17; });
  add("sink and window", [&](auto q, auto k) { return k <= pos(q) && (pos(q) - k < 11 || k < 3); });
  add("eviction",
      [&](auto q, auto k) { return k <= pos(q) && q < end[static_cast<std::size_t>(k)]; });
  add("interleaved documents", [&](auto q, auto k) {
    return k <= pos(q) && at(mixed, pos(q)) == mixed[static_cast<std::size_t>(k)];
  });
  add("random cells", [&](auto, auto) { return random() % 3 == 0; });
  return all;
}

std::vector<std::pair<std::string, std::vector<float>>> all_scores(std::int64_t kv_len,
                                                                   std::mt19937& random) {
  const auto count = static_cast<std::size_t>(kv_len);
  std::normal_distribution<float> normal;
  std::vector<std::pair<std::string, std::vector<float>>> all;
  const auto add = [&](std::string name, auto score) {
    std::vector<float> scores(count);
    for (std::size_t k = 0; k < count; ++k) scores[k] = score(k);
    all.emplace_back(std::move(name), std::move(scores));
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  add("random", [&](std::size_t) { return normal(random); });
  add("tied", [&](std::size_t) { return static_cast<float>(random() % 3); });
  add("constant", [](std::size_t) { return 0.5F; });
  add("rising", [](std::size_t k) { return static_cast<float>(k); });
  add("falling", [](std::size_t k) { return -static_cast<float>(k); });
  add("alternating",
      [](std::size_t k) { return (k % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(k); });
  add("signed zeros", [](std::size_t k) { return k % 2 == 0 ? -0.0F : 0.0F; });
  add("infinite", [&](std::size_t) {
    const unsigned r = random() % 4;
    return r == 0 ? kInfinity : r == 1 ? -kInfinity : normal(random);
  });
  add("subnormal", [](std::size_t k) {
    return static_cast<float>(k % 7) * std::numeric_limits<float>::denorm_min();
  });
  return all;
}

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
  const Cells causal = cells_where(kLength, kLength, [](auto q, auto k) { return k <= q; });
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

// Intervals are at most the times that keys become visible plus the times they stop being so.
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
  EXPECT_THAT(nan.error().message, testing::HasSubstr("scores[1]"));
  const auto zero = select_topk(std::vector<float>{1, 2, 3}, 0, causal);
  ASSERT_FALSE(zero);
  EXPECT_EQ(zero.error().code, ErrorCode::invalid_argument);
  const auto shorter = select_topk(std::vector<float>{1, 2}, 1, causal);
  ASSERT_FALSE(shorter);
  EXPECT_EQ(shorter.error().code, ErrorCode::shape_mismatch);
}

}  // namespace
}  // namespace fdma
