// Runs the selection on the GPU step by step on the host, with the same functions: ranks, key
// segments, samples, windows, the tree of insertions, places of evicted keys. Loops stand for
// thread blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "fdma/select/select_topk.hpp"
#include "selection/topk/topk_rows.hpp"
#include "selection_oracle.hpp"

namespace fdma::zoh {
namespace {

using ::testing::HasSubstr;

struct Tree {
  std::vector<InsertionTree::Word> words;
  std::vector<std::uint32_t> leaves;
  InsertionTree insertions;
};

Tree tree_of(std::vector<int> insertions) {
  const std::size_t count = insertions.size();
  Tree tree{std::vector<InsertionTree::Word>(InsertionTree::kLevels * InsertionTree::kWords),
            std::vector<std::uint32_t>(kKeySegmentSize, 0),
            {}};
  tree.insertions = {tree.words.data(), tree.leaves.data()};
  for (int level = 0; level < InsertionTree::kLevels; ++level) {
    InsertionTree::Word* const words = tree.words.data() + level * InsertionTree::kWords;
    const std::size_t node_words = level == 0 ? InsertionTree::kWords : 8;
    std::vector<int> next(count, -1);
    int before[InsertionTree::kDigits] = {};  // with each digit, of the node
    for (std::size_t word = 0; word * 32 < count; ++word) {
      if (word % node_words == 0) std::fill(std::begin(before), std::end(before), 0);
      int at_least = 0;
      for (int digit = InsertionTree::kDigits - 1; digit >= 0; --digit) {
        at_least += before[digit];
        const int slot = InsertionTree::slot_of(digit);
        EXPECT_EQ(InsertionTree::digit_of_slot(slot), digit);
        words[word].sums[slot] = static_cast<std::uint16_t>(at_least);
      }
      const std::size_t end = std::min(count, word * 32 + 32);
      for (std::size_t i = word * 32; i < end; ++i) {
        const int digit = InsertionTree::digit_of(insertions[i], level);
        for (int bit = 0; bit < 3; ++bit) {
          words[word].planes[bit] |= static_cast<std::uint32_t>(digit >> bit & 1) << (i % 32);
        }
      }
      int here[InsertionTree::kDigits] = {};
      for (std::size_t i = word * 32; i < end; ++i) {
        const int digit = InsertionTree::digit_of(insertions[i], level);
        const int to = InsertionTree::next_position(
            level, static_cast<int>(i), digit, InsertionTree::equal_to(words[word].planes, digit),
            before[digit]);
        EXPECT_EQ(next[static_cast<std::size_t>(to)], -1);
        next[static_cast<std::size_t>(to)] = insertions[i];
        ++here[digit];
      }
      for (int digit = 0; digit < InsertionTree::kDigits; ++digit) before[digit] += here[digit];
    }
    insertions = next;
  }
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(insertions[i] / 32, static_cast<int>(i) / 32);
    tree.leaves[i] = (i % 32 == 0 ? 0 : tree.leaves[i - 1]) | 1u << (insertions[i] % 32);
  }
  return tree;
}

TEST(InsertionTree, LargestOfEveryPrefix) {
  std::mt19937 random(1);
  for (const int count : {1, 2, 3, 4, 5, 31, 32, 33, 100, 127, 128, 129, 1000, 2047, 2048}) {
    std::vector<int> insertions(static_cast<std::size_t>(count));
    std::iota(insertions.begin(), insertions.end(), 0);
    std::shuffle(insertions.begin(), insertions.end(), random);
    const Tree tree = tree_of(insertions);
    const int step = count < 200 ? 1 : 37;
    for (int prefix = 1; prefix <= count; prefix += prefix + step > count ? 1 : step) {
      std::vector<int> sorted(insertions.begin(), insertions.begin() + prefix);
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (int j = 1; j <= prefix; ++j) {
        ASSERT_EQ(tree.insertions.largest(prefix, j), sorted[static_cast<std::size_t>(j - 1)])
            << count << " " << prefix << " " << j;
      }
    }
  }
}

/// Runs the kernels of select_topk.cu, one row after the other.
class Emulation {
 public:
  Emulation(const CutRows& cut, std::int64_t kv_len, std::int64_t w)
      : cut_(cut),
        kv_len_(kv_len),
        w_(w),
        runs_(cut.key_segments.size() * kKeySegmentSize, 77),
        worst_(cut.key_segments.size(), 77) {}

  std::vector<Interval> select(const std::vector<float>& scores, std::size_t num_rows) {
    kept_.assign(num_rows * static_cast<std::size_t>(kv_len_), Interval{-7, -7});
    const auto sorted = static_cast<std::size_t>(cut_.num_sorted);
    for (std::size_t i = 0; i < cut_.key_segments.size(); ++i) sort_key_segment(i, scores);
    for (std::size_t i = 0; i < sorted; ++i) find_worst(i);
    for (std::size_t i = 0; i < sorted; ++i) find_evictions(i);
    return kept_;
  }

 private:
  const Interval* queries_of(const KeySegment& key_segment) const {
    return cut_.queries.data() + key_segment.mask * kv_len_ + key_segment.first_key;
  }
  // Each key is written once, because a second write would be a race on the device.
  void write(const KeySegment& key_segment, int local, Interval interval) {
    Interval& to =
        kept_[static_cast<std::size_t>(key_segment.row * kv_len_ + key_segment.first_key + local)];
    EXPECT_EQ(to, (Interval{-7, -7})) << "key " << key_segment.first_key + local;
    to = interval;
  }
  static int local_of(const KeySegment& key_segment, std::uint64_t rank) {
    return key_segment.kind == KeySegmentKind::packed ? local_of_packed_rank(rank)
                                                      : key_of_rank(rank) - key_segment.first_key;
  }

  void sort_key_segment(std::size_t at, const std::vector<float>& scores) {
    const KeySegment& key_segment = cut_.key_segments[at];
    std::uint64_t* const run = runs_.data() + at * kKeySegmentSize;
    for (int i = 0; i < key_segment.num_keys; ++i) {
      const Interval seen = queries_of(key_segment)[i];
      run[i] = 0;
      if (seen.begin >= seen.end) {
        write(key_segment, i, {0, 0});
        continue;
      }
      const auto key = static_cast<std::size_t>(key_segment.first_key + i);
      const float score = scores[static_cast<std::size_t>(key_segment.row * kv_len_) + key];
      run[i] = key_segment.kind == KeySegmentKind::packed
                   ? packed_rank_of_ascending(
                         cut_.ordinals[static_cast<std::size_t>(key_segment.mask * kv_len_) + key],
                         ascending_score(score), i)
                   : rank_of_key(score, key_segment.first_key + i);
      if (key_segment.kind == KeySegmentKind::all_kept) write(key_segment, i, seen);
    }
    std::sort(run, run + key_segment.num_keys, std::greater<>());
  }

  const std::uint64_t* run_of(std::size_t at, const KeySegment& key_segment, int i) const {
    return runs_.data() +
           (at - static_cast<std::size_t>(key_segment.num_before) + static_cast<std::size_t>(i)) *
               kKeySegmentSize;
  }
  static int size_of(const KeySegment& key_segment, int i) {
    return i == key_segment.num_before ? key_segment.num_keys : kKeySegmentSize;
  }

  // Searches as searched_thresholds.cuh does, bit by bit.
  void find_worst(std::size_t at) {
    const KeySegment& key_segment = cut_.key_segments[at];
    worst_[at] = 0;
    if (key_segment.num_seen < w_) return;
    std::vector<Interval> windows;
    std::int64_t total = 0;
    for (int i = 0; i <= key_segment.num_before; ++i) {
      windows.push_back({0, size_of(key_segment, i)});
      total += size_of(key_segment, i);
    }
    std::int64_t wanted = w_;
    std::uint64_t worst = 0;
    for (int bit = 63; bit >= 0 && total > 1; --bit) {
      const std::uint64_t middle = worst | std::uint64_t{1} << bit;
      std::vector<int> splits;
      std::int64_t above = 0;
      for (int i = 0; i <= key_segment.num_before; ++i) {
        const Interval& window = windows[static_cast<std::size_t>(i)];
        splits.push_back(
            split_window(run_of(at, key_segment, i), window.begin, window.end, middle));
        above += splits.back() - window.begin;
      }
      const bool is_above = wanted <= above;
      if (is_above) worst = middle;
      if (!is_above) wanted -= above;
      total = is_above ? above : total - above;
      for (std::size_t i = 0; i < windows.size(); ++i) {
        (is_above ? windows[i].end : windows[i].begin) = splits[i];
      }
    }
    ASSERT_EQ(total, 1);
    for (int i = 0; i <= key_segment.num_before; ++i) {
      const Interval& window = windows[static_cast<std::size_t>(i)];
      if (window.begin < window.end) worst_[at] = run_of(at, key_segment, i)[window.begin];
    }
    if (key_segment.num_before > 0) expect_known_from_samples(at, key_segment);
  }

  // Checks what thresholds.cuh takes from samples: the two samples between which the threshold
  // lies, and the number of ranks that are as good, to a 16th of w.
  void expect_known_from_samples(std::size_t at, const KeySegment& key_segment) const {
    const auto w = static_cast<int>(w_);
    const std::uint64_t worst = worst_[at];
    const auto sample = [&](int i, int number) {
      const int place = sample_place(number);
      return place < size_of(key_segment, i) ? run_of(at, key_segment, i)[place] : 0;
    };
    const int enough = sample_from((w - 1) / key_segment.num_before);
    const int few = std::min(sample_up_to((w - 1) / (key_segment.num_before + 1)), kSamples - 1);
    std::uint64_t low = enough < kSamples ? ~std::uint64_t{0} : 0, high = 0;
    int least = 0, most = 0;
    for (int i = 0; i <= key_segment.num_before; ++i) {
      if (enough < kSamples && i < key_segment.num_before) low = std::min(low, sample(i, enough));
      high = std::max(high, sample(i, few));
      int count = 0;
      while (count < kSamples && sample(i, count) >= worst) ++count;
      if (count > 0) least += sample_place(count - 1) + 1;
      most += std::min(sample_place(count), size_of(key_segment, i));
    }
    EXPECT_LE(low, worst);
    EXPECT_GE(high, worst);
    EXPECT_LE(least, w);
    EXPECT_GE(most, w);
    EXPECT_LE(most - least, w / 16);
  }

  void find_evictions(std::size_t at) {
    const KeySegment& key_segment = cut_.key_segments[at];
    const std::uint64_t before = key_segment.num_before == 0 ? 0 : worst_[at - 1];
    const std::uint64_t after = worst_[at];
    const std::uint64_t in_the_end = worst_[at + static_cast<std::size_t>(key_segment.num_after)];
    const std::uint64_t* run = run_of(at, key_segment, key_segment.num_before);
    for (int i = 0; i < key_segment.num_keys && run[i] != 0; ++i) {
      const int local = local_of(key_segment, run[i]);
      if (run[i] < before) {
        write(key_segment, local, {0, 0});
      } else if (run[i] >= in_the_end) {
        write(key_segment, local, queries_of(key_segment)[local]);
      }
    }
    if (after == 0) return;
    const std::uint64_t lowest = std::max(before, std::uint64_t{1});
    const int num_inserted = end_of_at_least(run, 0, key_segment.num_keys, lowest);
    std::vector<std::uint64_t> evicted;
    for (int i = 0; i <= key_segment.num_before; ++i) {
      const std::uint64_t* from = run_of(at, key_segment, i);
      const int begin = end_of_at_least(from, 0, size_of(key_segment, i), after);
      evicted.insert(evicted.end(), from + begin,
                     from + end_of_at_least(from, begin, size_of(key_segment, i), lowest));
    }
    ASSERT_LE(evicted.size(), static_cast<std::size_t>(num_inserted));
    std::sort(evicted.begin(), evicted.end(), std::greater<>());
    std::vector<int>
        insertions;  // indices in the key segment of the inserted keys that are accepted
    for (int i = 0; i < num_inserted; ++i) insertions.push_back(local_of(key_segment, run[i]));
    std::sort(insertions.begin(), insertions.end());
    // The best keys come first, and rejected keys leave both rows (accepted_insertions.cuh).
    std::vector<int> locals;
    for (const std::uint64_t rank : evicted) locals.push_back(local_of(key_segment, rank));
    for (int round = 1;; ++round) {
      ASSERT_LE(round, 16);  // of key segments that were tried 12 take most
      std::vector<int> staying, rejected;
      for (std::size_t i = 0; i < locals.size(); ++i) {
        const int last = insertions[insertions.size() - 1 - i];
        (last <= locals[i] ? rejected : staying).push_back(locals[i]);
      }
      if (rejected.empty()) break;
      for (const int local : rejected) {
        std::erase(insertions, local);
        write(key_segment, local, {0, 0});
      }
      locals = staying;
    }
    for (std::size_t i = 0; i < locals.size(); ++i) {
      const int last = insertions[insertions.size() - 1 - i];
      Interval interval = queries_of(key_segment)[locals[i]];
      interval.end = std::min(interval.end, queries_of(key_segment)[last].begin);
      write(key_segment, locals[i], interval.begin < interval.end ? interval : Interval{0, 0});
    }
  }

  const CutRows& cut_;
  std::int64_t kv_len_;
  std::int64_t w_;
  std::vector<std::uint64_t> runs_;
  std::vector<std::uint64_t> worst_;
  std::vector<Interval> kept_;
};

void expect_selection(const ColumnIntervals& among, const std::vector<float>& scores,
                      std::int64_t w) {
  const TopkRows rows{1, 1, among.kv_len, {among}, {0}};
  const auto cut = cut_rows(rows, w);
  ASSERT_TRUE(cut) << cut.error().message;
  std::int32_t next = 0, covered = 0;
  for (const KeySegment& key_segment : cut->key_segments) {
    covered += key_segment.num_keys;
    next = std::max(next, key_segment.first_key + key_segment.num_keys);
    ASSERT_LE(key_segment.num_keys, kKeySegmentSize);
  }
  ASSERT_EQ(covered, among.kv_len);
  ASSERT_EQ(next, among.kv_len);
  const std::vector<Interval> kept = Emulation(*cut, among.kv_len, w).select(scores, 1);
  const std::vector<ColumnIntervals> got =
      columns_of_rows(kept, among.kv_len, std::vector{among.q_len}, std::vector{among.kv_len});
  const auto expected = select_topk(scores, w, among);
  ASSERT_TRUE(expected);
  ASSERT_EQ(got.at(0), *expected);
}

TEST(TopkSegments, EqualSelectionOnTheHost) {
  std::mt19937 random(2);
  for (const auto& [q_len, kv_len] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {60, 60}, {37, 83}, {83, 37}, {1, 60}, {60, 1}}) {
    for (const NamedCells& among : all_among(q_len, kv_len, random)) {
      if (!among.is_one_interval) continue;
      const ColumnIntervals columns = columns_of(among.cells, kv_len);
      for (const auto& [name, scores] : all_scores(kv_len, random)) {
        for (const std::int64_t w :
             {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, kv_len - 1, kv_len, kv_len + 5}) {
          if (w < 1) continue;
          SCOPED_TRACE(::testing::Message() << q_len << " x " << kv_len << " " << among.name
                                            << ", scores " << name << ", w " << w);
          expect_selection(columns, scores, w);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(TopkSegments, LongGroupsAndMany) {
  std::mt19937 random(3);
  std::vector<std::int32_t> many(900);
  for (std::int32_t& length : many) length = 1 + static_cast<std::int32_t>(random() % 20);
  const std::vector<std::vector<std::int32_t>> lists{
      {2048}, {2049}, {6000}, {9137}, {1, 2048, 1, 5000, 3}, {700, 700, 700, 4500, 2048, 1}, many};
  for (const std::vector<std::int32_t>& lengths : lists) {
    for (const bool causal : {true, false}) {
      for (const int hidden : {0, 3}) {
        const ColumnIntervals among = groups(lengths, causal, hidden);
        for (const auto& [name, scores] : all_scores(among.kv_len, random)) {
          for (const std::int64_t w : {1, 5, 127, 128, 129, 2047, 2048, 2049, 5000}) {
            SCOPED_TRACE(::testing::Message()
                         << lengths.size() << " groups, " << among.kv_len << " keys, causal "
                         << causal << ", hidden " << hidden << ", scores " << name << ", w " << w);
            expect_selection(among, scores, w);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(TopkSegments, RanksOfSpecialScores) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ascending_score(-0.0F), ascending_score(0.0F));
  EXPECT_LT(ascending_score(nan), ascending_score(-kInfinity));
  EXPECT_EQ(ascending_score(-nan), ascending_score(nan));
  for (const float score : {-kInfinity, -3.5F, 0.0F, 1e-40F, 7.0F, kInfinity}) {
    EXPECT_EQ(score_of_ascending(ascending_score(score)), score);
  }
  EXPECT_LT(ascending_score(-kInfinity), ascending_score(-1));
  EXPECT_LT(ascending_score(-1), ascending_score(-std::numeric_limits<float>::denorm_min()));
  EXPECT_LT(ascending_score(-std::numeric_limits<float>::denorm_min()), ascending_score(0));
  EXPECT_LT(ascending_score(3), ascending_score(kInfinity));
  EXPECT_GT(rank_of_key(1, 3), rank_of_key(1, 4));
  EXPECT_EQ(key_of_rank(rank_of_key(-2, 123456)), 123456);
  EXPECT_GT(rank_of_key(nan, 2147483646), 0U);
  const auto packed = [](std::uint32_t ordinal, float score, int local) {
    return packed_rank_of_ascending(ordinal, ascending_score(score), local);
  };
  EXPECT_GT(packed(1, nan, kKeySegmentSize - 1), 0U);
  EXPECT_GT(packed(2, nan, 5), packed(1, kInfinity, 4));
  EXPECT_EQ(local_of_packed_rank(packed(2048, 7, 2047)), 2047);
}

// Samples tell a place to within a 16th of it.
TEST(Samples, AreDenserWhereFewRanksAreBetter) {
  EXPECT_EQ(sample_place(kSamples), kKeySegmentSize);
  for (int place = 0; place < 2 * kKeySegmentSize; ++place) {
    int from = 0;
    while (from < kSamples && sample_place(from) < place) ++from;
    EXPECT_EQ(sample_from(place), from) << place;
    int up_to = kSamples - 1;
    while (sample_place(up_to) > place) --up_to;
    EXPECT_EQ(sample_up_to(place), up_to) << place;
  }
  for (int i = 0; i < kSamples; ++i) {
    EXPECT_LT(sample_place(i), sample_place(i + 1));
    EXPECT_LE(sample_place(i + 1) - sample_place(i), std::max(1, sample_place(i) / 16)) << i;
  }
}

TEST(CutRows, KeySegmentsThatAreReadWithoutTheirMask) {
  const auto key_segments_of = [](const ColumnIntervals& among) {
    const auto cut = cut_mask(among, 5);
    EXPECT_TRUE(cut);
    return cut->key_segments;
  };
  for (const KeySegment& key_segment : key_segments_of(groups({5000}, true, 0))) {
    EXPECT_EQ(key_segment.is_seen_whole, 1);
    EXPECT_EQ(key_segment.num_groups, 1);
  }
  // Keys 0, 4500, .. are hidden.
  const std::vector<KeySegment> hidden = key_segments_of(groups({5000}, true, 4500));
  ASSERT_EQ(hidden.size(), 3U);
  EXPECT_EQ(hidden[0].is_seen_whole, 0);
  EXPECT_EQ(hidden[1].is_seen_whole, 1);
  EXPECT_EQ(hidden[2].is_seen_whole, 0);
  const std::vector<KeySegment> packed = key_segments_of(groups({10, 20, 2000}, true, 0));
  ASSERT_EQ(packed.size(), 1U);
  EXPECT_EQ(packed[0].num_groups, 3);
}

TEST(CutRows, RowsWithMasksOfTheirOwn) {
  const ColumnIntervals causal = groups({3000}, true, 0);
  const ColumnIntervals shorter = groups({10, 2500}, true, 0);
  const TopkRows rows{2, 2, 3000, {causal, shorter}, {0, 0, 1, 0}};
  const auto cut = cut_rows(rows, 20);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->num_sorted, 8);             // two parts of each row
  EXPECT_EQ(cut->key_segments.size(), 10U);  // ten keys, and those past the mask's end, of row 2
  EXPECT_EQ(cut->most_parts, 2);
  std::mt19937 random(5);
  std::vector<float> scores(4 * 3000);
  std::normal_distribution<float> normal;
  for (float& score : scores) score = normal(random);
  const std::vector<std::int64_t> lengths{3000, 3000, 2510, 3000};
  const auto got =
      columns_of_rows(Emulation(*cut, 3000, 20).select(scores, 4), 3000, lengths, lengths);
  for (std::size_t row = 0; row < 4; ++row) {
    const auto expected =
        select_topk(std::span(scores).subspan(row * 3000, static_cast<std::size_t>(lengths[row])),
                    20, row == 2 ? shorter : causal);
    ASSERT_TRUE(expected);
    EXPECT_EQ(got[row], *expected) << row;
  }
}

TEST(CutRows, RejectsWhatDoesNotFit) {
  const ColumnIntervals causal = groups({30}, true, 0);
  const auto fails = [](const TopkRows& rows, std::int64_t w, ErrorCode code, const char* text) {
    const auto cut = cut_rows(rows, w);
    ASSERT_FALSE(cut) << text;
    EXPECT_EQ(cut.error().code, code);
    EXPECT_THAT(cut.error().message, HasSubstr(text));
  };
  fails({1, 1, 30, {causal}, {0}}, 0, ErrorCode::invalid_argument, "w: expected at least 1");
  fails({1, 2, 30, {causal}, {0}}, 1, ErrorCode::shape_mismatch, "mask_of: expected 2");
  fails({1, 1, 30, {causal}, {1}}, 1, ErrorCode::invalid_argument, "mask_of[0]");
  fails({1, 1, 29, {causal}, {0}}, 1, ErrorCode::shape_mismatch, "masks[0]: expected at most 29");
  const ColumnIntervals window{3, 2, {0, 1, 2}, {{0, 2}, {1, 3}}};
  fails({1, 1, 2, {window}, {0}}, 1, ErrorCode::unsupported, "use select_topk");
}

TEST(CheckTopkScores, NamesWhatIsWrong) {
  const std::int64_t extents[] = {2, 3, 5};
  const float data[30] = {};
  TensorView view = make_contiguous_view(data, DType::float32, 3, extents);
  EXPECT_THAT(check_topk_scores(view, 2, 3, 5).error().message, HasSubstr("on the host"));
  view.device = Device::cuda;
  EXPECT_TRUE(check_topk_scores(view, 2, 3, 5));
  EXPECT_THAT(check_topk_scores(view, 2, 3, 6).error().message, HasSubstr("got [2, 3, 5]"));
  view.dtype = DType::float16;
  EXPECT_THAT(check_topk_scores(view, 2, 3, 5).error().message, HasSubstr("expected float32"));
  view.dtype = DType::float32;
  view.data = nullptr;
  EXPECT_THAT(check_topk_scores(view, 2, 3, 5).error().message, HasSubstr("multiple of 4"));
}

}  // namespace
}  // namespace fdma::zoh
