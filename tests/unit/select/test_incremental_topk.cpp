// Compares a selection that follows a growing sequence, after every append, with selection from
// scratch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fdma/formats/validate.hpp"
#include "fdma/select/incremental_topk.hpp"
#include "fdma/select/select_topk.hpp"
#include "selection_oracle.hpp"

namespace fdma {
namespace {

using testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsEmpty;

// The first `q_len` queries and `kv_len` keys.
ColumnIntervals cut_off(const ColumnIntervals& mask, std::int64_t q_len, std::int64_t kv_len) {
  ColumnIntervals result{q_len, kv_len, {0}, {}};
  for (std::size_t key = 0; key < static_cast<std::size_t>(kv_len); ++key) {
    for (std::int64_t i = mask.offsets[key]; i < mask.offsets[key + 1]; ++i) {
      Interval queries = mask.intervals[static_cast<std::size_t>(i)];
      queries.end = std::min(queries.end, static_cast<std::int32_t>(q_len));
      if (queries.begin < queries.end) result.intervals.push_back(queries);
    }
    result.offsets.push_back(static_cast<std::int64_t>(result.intervals.size()));
  }
  return result;
}

// The keys that queries from `q` on keep, whatever comes: by the definition on the final selection.
std::set<std::int32_t> kept_from(const ColumnIntervals& selected, std::int64_t q) {
  std::set<std::int32_t> keys;
  for (std::size_t key = 0; key < static_cast<std::size_t>(selected.kv_len); ++key) {
    for (std::int64_t i = selected.offsets[key]; i < selected.offsets[key + 1]; ++i) {
      if (selected.intervals[static_cast<std::size_t>(i)].end > q) {
        keys.insert(static_cast<std::int32_t>(key));
      }
    }
  }
  return keys;
}

/// Appends `among` in chunks: `chunk()` queries at a time, before them every key that one of them
/// sees. After each append everything is compared with selection from scratch.
template <class Chunk>
void follow(const std::vector<float>& scores, std::int64_t w, const ColumnIntervals& among,
            Chunk chunk) {
  const auto visible = one_interval_per_key(among);
  ASSERT_TRUE(visible) << visible.error().message;
  const auto whole = select_topk(scores, w, among);
  ASSERT_TRUE(whole);
  auto made = IncrementalTopk::make(w);
  ASSERT_TRUE(made);
  IncrementalTopk topk = *std::move(made);
  std::set<std::int32_t> live;
  while (topk.q_len() < among.q_len || topk.kv_len() < among.kv_len) {
    const std::int64_t num_queries = std::min<std::int64_t>(chunk(), among.q_len - topk.q_len());
    const std::int64_t q_end = topk.q_len() + num_queries;
    const std::int64_t first = topk.kv_len();
    // Keys up to the last one that these queries see; at the end all that is left.
    std::int64_t kv_end = q_end == among.q_len ? among.kv_len : first;
    for (std::int64_t key = first; key < among.kv_len; ++key) {
      const Interval& queries = (*visible)[static_cast<std::size_t>(key)];
      if (queries.begin < queries.end && queries.begin < q_end) kv_end = std::max(kv_end, key + 1);
    }
    const auto count = static_cast<std::size_t>(kv_end - first);
    const auto from = static_cast<std::size_t>(first);
    // One that was stored and restored goes on as if nothing had happened.
    auto restored = IncrementalTopk::restore(topk.state());
    ASSERT_TRUE(restored) << restored.error().message;
    topk = *std::move(restored);
    const Result<void> appended =
        topk.append(std::span(scores).subspan(from, count),
                    std::span(*visible).subspan(from, count), num_queries);
    ASSERT_TRUE(appended) << appended.error().message;
    ASSERT_EQ(topk.q_len(), q_end);
    ASSERT_EQ(topk.kv_len(), kv_end);
    const auto expected = select_topk(std::span(scores).first(static_cast<std::size_t>(kv_end)), w,
                                      cut_off(among, q_end, kv_end));
    ASSERT_TRUE(expected);
    ASSERT_EQ(topk.intervals(), *expected);
    // Dropped keys leave the live set and no others do.
    for (std::int64_t key = first; key < kv_end; ++key) live.insert(static_cast<std::int32_t>(key));
    for (const std::int32_t key : topk.dropped_keys()) ASSERT_EQ(live.erase(key), 1U) << key;
    const std::vector<std::int32_t> keys = topk.live_keys();
    ASSERT_EQ(keys, std::vector<std::int32_t>(live.begin(), live.end()));
    ASSERT_EQ(topk.num_live_keys(), static_cast<std::int64_t>(keys.size()));
    // No key that is needed later is dead.
    for (const std::int32_t key : kept_from(*whole, q_end)) {
      ASSERT_TRUE(key >= kv_end || live.count(key) == 1) << key;
    }
  }
  ASSERT_EQ(topk.intervals(), *whole);
}

TEST(IncrementalTopk, EqualsSelectionFromScratchAfterEveryAppend) {
  std::mt19937 random(3);
  for (const auto& [q_len, kv_len] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {40, 40}, {27, 53}, {53, 27}, {1, 60}, {60, 1}}) {
    for (const NamedCells& among : all_among(q_len, kv_len, random)) {
      if (!among.is_one_interval) continue;
      const ColumnIntervals columns = columns_of(among.cells, kv_len);
      for (const auto& [name, scores] : all_scores(kv_len, random)) {
        for (const std::int64_t w :
             {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, kv_len, kv_len + 5}) {
          SCOPED_TRACE(::testing::Message() << q_len << " x " << kv_len << " " << among.name
                                            << ", scores " << name << ", w " << w);
          follow(scores, w, columns, [] { return 1; });
          follow(scores, w, columns, [&] { return static_cast<std::int64_t>(random() % 9); });
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(IncrementalTopk, WidthsAroundTheSizeOfATile) {
  std::mt19937 random(4);
  constexpr std::int64_t kLength = 300;
  const ColumnIntervals causal =
      columns_of(cells_where(kLength, kLength, [](auto q, auto k) { return k <= q; }), kLength);
  for (const auto& [name, scores] : all_scores(kLength, random)) {
    for (const std::int64_t w : {127, 128, 129, 299, 300, 400}) {
      SCOPED_TRACE(::testing::Message() << name << ", w " << w);
      follow(scores, w, causal, [] { return 37; });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Groups of rows with keys that wait, come at once or one by one, or are never seen.
TEST(IncrementalTopk, RandomMasksOfTheClass) {
  rc::check("equal to from scratch", [] {
    std::vector<Interval> queries;
    std::int32_t begin = *rc::gen::inRange(0, 4), end = begin;
    const int num_keys = *rc::gen::inRange(1, 60);
    for (int key = 0; key < num_keys; ++key) {
      if (*rc::gen::inRange(0, 6) == 0) {
        queries.push_back({0, 0});
        continue;
      }
      begin += *rc::gen::elementOf(std::vector<std::int32_t>{0, 0, 1, 1, 3, 8});
      if (begin >= end) end = begin + *rc::gen::inRange(1, 30);
      queries.push_back({begin, end});
    }
    const std::int64_t q_len = end + *rc::gen::inRange(0, 5);
    ColumnIntervals among{q_len, num_keys, {0}, {}};
    for (const Interval& interval : queries) {
      if (interval.begin < interval.end) among.intervals.push_back(interval);
      among.offsets.push_back(static_cast<std::int64_t>(among.intervals.size()));
    }
    const auto scores = *rc::gen::container<std::vector<float>>(
        static_cast<std::size_t>(num_keys), rc::gen::map(rc::gen::inRange(-3, 4), [](int i) {
          constexpr float kInfinity = std::numeric_limits<float>::infinity();
          return i == 3 ? kInfinity : i == -3 ? -kInfinity : i == 0 ? -0.0F : static_cast<float>(i);
        }));
    const std::int64_t w = *rc::gen::inRange(1, 12);
    const std::vector<int> chunks =
        *rc::gen::container<std::vector<int>>(7, rc::gen::inRange(0, 6));
    std::size_t next = 0;
    follow(scores, w, among, [&] {
      ++next;
      return next % 7 == 0 ? 1 : chunks[next % 7];
    });
    const auto literal = select_topk(scores, w, among);
    RC_ASSERT(literal);
    RC_ASSERT(cells_of(*literal) == selected_by_sorting(scores, w, cells_of(among)));
    RC_ASSERT(!::testing::Test::HasFatalFailure());
  });
}

TEST(IncrementalTopk, ExampleOfTheHeader) {
  IncrementalTopk topk = *IncrementalTopk::make(1);
  ASSERT_TRUE(topk.append_causal(std::vector<float>{3, 1}));
  EXPECT_EQ(topk.intervals(), (ColumnIntervals{2, 2, {0, 1, 1}, {{0, 2}}}));
  EXPECT_THAT(topk.live_keys(), ElementsAre(0));
  EXPECT_THAT(topk.dropped_keys(), ElementsAre(1));
  ASSERT_TRUE(topk.append_causal(std::vector<float>{5}));
  EXPECT_EQ(topk.intervals(), (ColumnIntervals{3, 3, {0, 1, 1, 2}, {{0, 2}, {2, 3}}}));
  EXPECT_THAT(topk.live_keys(), ElementsAre(2));
  EXPECT_THAT(topk.dropped_keys(), ElementsAre(0));
  EXPECT_EQ(topk.interval_of(0), (Interval{0, 2}));
  EXPECT_EQ(topk.interval_of(1), (Interval{0, 0}));
}

// A stream does not know where a document ends until it has ended.
TEST(IncrementalTopk, DocumentsThatEndWhenTheyEnd) {
  std::mt19937 random(6);
  const std::vector<std::int64_t> lengths{5, 1, 30, 12, 2};
  constexpr std::int64_t kLength = 50;
  std::vector<std::int64_t> id;
  for (std::size_t d = 0; d < lengths.size(); ++d)
    id.insert(id.end(), static_cast<std::size_t>(lengths[d]), static_cast<std::int64_t>(d));
  const SelectedCells among = cells_where(kLength, kLength, [&](auto q, auto k) {
    return k <= q && id[static_cast<std::size_t>(q)] == id[static_cast<std::size_t>(k)];
  });
  for (const auto& [name, scores] : all_scores(kLength, random)) {
    for (const std::int64_t w : {1, 3, 8, 64}) {
      IncrementalTopk topk = *IncrementalTopk::make(w);
      std::size_t at = 0;
      for (const std::int64_t length : lengths) {
        for (std::int64_t i = 0; i < length;) {  // prefill half, then one by one
          const std::int64_t count = i == 0 ? (length + 1) / 2 : 1;
          ASSERT_TRUE(
              topk.append_causal(std::span(scores).subspan(at, static_cast<std::size_t>(count))));
          at += static_cast<std::size_t>(count);
          i += count;
          ASSERT_EQ(topk.num_live_keys(), std::min(i, w));
        }
        topk.end_group();
        EXPECT_THAT(topk.live_keys(), IsEmpty());
      }
      EXPECT_EQ(cells_of(topk.intervals()), selected_by_sorting(scores, w, among))
          << name << " w " << w;
    }
  }
}

// Keys that wait for their first query are live. The end of the group ends their waiting.
TEST(IncrementalTopk, KeysWaitForTheirFirstQuery) {
  IncrementalTopk topk = *IncrementalTopk::make(1);
  const std::vector<float> scores{1, 2, 3};
  const std::vector<Interval> among{{0, kOpenEnd}, {4, kOpenEnd}, {6, kOpenEnd}};
  ASSERT_TRUE(topk.append(scores, among, 2));
  EXPECT_THAT(topk.live_keys(), ElementsAre(0, 1, 2));
  ASSERT_TRUE(topk.append({}, {}, 3));
  EXPECT_THAT(topk.live_keys(), ElementsAre(1, 2));
  EXPECT_EQ(topk.interval_of(0), (Interval{0, 4}));
  EXPECT_EQ(topk.interval_of(1), (Interval{4, 5}));
  topk.end_group();
  EXPECT_THAT(topk.live_keys(), IsEmpty());
  EXPECT_THAT(topk.dropped_keys(), ElementsAre(1, 2));
  ASSERT_TRUE(topk.append_causal(std::vector<float>{-5}));
  EXPECT_EQ(topk.intervals(), (ColumnIntervals{6, 4, {0, 1, 2, 2, 3}, {{0, 4}, {4, 5}, {5, 6}}}));
}

TEST(IncrementalTopk, TheCacheStaysAtWKeys) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  IncrementalTopk topk = *IncrementalTopk::make(64);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(topk.append_causal(std::vector<float>{normal(random)}));
    ASSERT_EQ(topk.num_live_keys(), std::min(i + 1, 64));
    ASSERT_LE(topk.dropped_keys().size(), 1U);
  }
  EXPECT_LT(topk.size_bytes(), 5000 * 16 + 64 * 16 + 1024);
}

TEST(IncrementalTopk, RejectsAndStaysAsItWas) {
  EXPECT_EQ(IncrementalTopk::make(0).error().code, ErrorCode::invalid_argument);
  IncrementalTopk topk = *IncrementalTopk::make(2);
  ASSERT_TRUE(topk.append_causal(std::vector<float>{1, 2, 3}));
  const ColumnIntervals before = topk.intervals();
  const auto fails = [&](const std::vector<float>& scores, const std::vector<Interval>& among,
                         std::int64_t num_queries, ErrorCode code, const std::string& text) {
    const Result<void> result = topk.append(scores, among, num_queries);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, code);
    EXPECT_THAT(result.error().message, HasSubstr(text));
    EXPECT_EQ(topk.intervals(), before);
    EXPECT_THAT(topk.live_keys(), ElementsAre(1, 2));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  fails({1, nan}, {{3, kOpenEnd}, {3, kOpenEnd}}, 1, ErrorCode::invalid_argument,
        "scores[1]: is NaN");
  fails({1}, {}, 1, ErrorCode::shape_mismatch, "among: expected 1 intervals");
  fails({1}, {{2, kOpenEnd}}, 1, ErrorCode::invalid_argument, "queries up to 3 have been decided");
  fails({1}, {{5, 4}}, 1, ErrorCode::invalid_argument, "0 <= begin <= end");
  fails({1}, {{3, kOpenEnd}}, -1, ErrorCode::invalid_argument, "num_queries");
  fails({1}, {{3, kOpenEnd}}, kOpenEnd, ErrorCode::invalid_argument, "num_queries");
  // In a window the keys so far have no end, and this key has one.
  fails({1}, {{3, 7}}, 1, ErrorCode::unsupported, "ends apart from key 2");
  fails({1, 1}, {{5, kOpenEnd}, {4, kOpenEnd}}, 1, ErrorCode::unsupported, "from before key 3");
}

TEST(OneIntervalPerKey, TakesTheClassAndNamesWhatIsBeyondIt) {
  std::mt19937 random(8);
  for (const NamedCells& among : all_among(70, 90, random)) {
    const auto visible = one_interval_per_key(columns_of(among.cells, 90));
    EXPECT_EQ(visible.has_value(), among.is_one_interval) << among.name;
    if (visible) continue;
    EXPECT_EQ(visible.error().code, ErrorCode::unsupported);
    EXPECT_THAT(visible.error().message, HasSubstr("use select_topk")) << among.name;
  }
}

TEST(IncrementalTopk, RestoresWhatWaits) {
  auto made = IncrementalTopk::make(1);
  ASSERT_TRUE(made);
  const std::vector<float> scores{1, 2};
  const std::vector<Interval> among{{0, kOpenEnd}, {3, kOpenEnd}};
  ASSERT_TRUE(made->append(scores, among, 2));
  auto restored = IncrementalTopk::restore(made->state());
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_THAT(restored->live_keys(), ElementsAre(0, 1));
  EXPECT_EQ(restored->num_live_keys(), 2);
  ASSERT_TRUE(restored->append({}, {}, 3));
  EXPECT_THAT(restored->live_keys(), ElementsAre(1));
  EXPECT_THAT(restored->dropped_keys(), ElementsAre(0));
}

TEST(IncrementalTopk, RejectsStatesThatCannotBe) {
  auto made = IncrementalTopk::make(2);
  ASSERT_TRUE(made);
  ASSERT_TRUE(made->append_causal(std::vector<float>{3, 1, 2}));
  const IncrementalTopk::State good = made->state();
  ASSERT_TRUE(IncrementalTopk::restore(good));
  const auto refuses = [&](const char* part, auto damage) {
    IncrementalTopk::State state = good;
    damage(state);
    const auto restored = IncrementalTopk::restore(std::move(state));
    ASSERT_FALSE(restored) << part;
    EXPECT_EQ(restored.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(restored.error().message, HasSubstr(part));
  };
  refuses("w", [](auto& state) { state.w = 0; });
  refuses("lengths", [](auto& state) { state.q_len = -1; });
  refuses("intervals", [](auto& state) { state.kept[1] = {2, 9}; });
  refuses("intervals", [](auto& state) { state.q_len = 2; });
  refuses("live keys", [](auto& state) { state.heap.pop_back(); });
  refuses("live keys", [](auto& state) { state.heap[1] = state.heap[0]; });
  refuses("live keys", [](auto& state) { state.w = 1; });
  refuses("live keys", [](auto& state) { state.heap[0] = 0; });
  refuses("waiting keys", [](auto& state) { state.waiting = {{state.heap[0], {9, 10}}}; });
  refuses("groups", [](auto& state) { state.group_end = 3; });
  refuses("groups", [](auto& state) { state.dropped = {3}; });
}

}  // namespace
}  // namespace fdma
