// Selection on the GPU. It must equal select_topk on the host bit for bit.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fdma/kernels/device_topk.hpp"
#include "fdma/select/select_topk.hpp"
#include "selection/guarded_array.hpp"
#include "selection_oracle.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;
using gpu_test::GuardedBytes;
using gpu_test::require;
using testing::HasSubstr;

TensorView device_scores(const DeviceArray<float>& scores, std::int64_t batches, std::int64_t heads,
                         std::int64_t kv_len) {
  const std::int64_t extents[] = {batches, heads, kv_len};
  TensorView view = make_contiguous_view(scores.data(), DType::float32, 3, extents);
  view.device = Device::cuda;
  return view;
}

struct Selected {
  std::vector<ColumnIntervals> masks;
  std::vector<std::uint8_t> bytes;  ///< bytes of the intervals
  std::uint32_t status = 0;
};

Selected select_on_gpu(const TopkRows& rows, const std::vector<float>& scores, std::int64_t w) {
  Selected result;
  const Result<DeviceTopk> made = DeviceTopk::make(rows, w);
  EXPECT_TRUE(made) << made.error().message;
  if (!made) return result;
  const DeviceArray<float> device(scores);
  const GuardedBytes kept(scores.size() * sizeof(Interval));
  const GuardedBytes workspace(static_cast<std::size_t>(made->workspace_bytes()));
  const DeviceArray<std::uint32_t> status(std::vector<std::uint32_t>{0});
  const Result<void> done =
      made->select(device_scores(device, rows.num_batches, rows.num_heads_kv, rows.kv_len),
                   kept.as<Interval>(), workspace.as<void>(), status.data());
  EXPECT_TRUE(done) << done.error().message;
  result.bytes = kept.to_host();
  workspace.to_host();
  result.status = status.to_host().front();
  const auto masks = made->to_host(kept.as<Interval>());
  EXPECT_TRUE(masks) << masks.error().message;
  if (masks) result.masks = *masks;
  return result;
}

// Tests all kinds of scores at once, one kind in each head, with one mask for all.
void expect_like_the_host(const ColumnIntervals& among,
                          const std::vector<std::pair<std::string, std::vector<float>>>& kinds,
                          std::int64_t w) {
  TopkRows rows{1, static_cast<std::int64_t>(kinds.size()), among.kv_len, {among}, {}};
  rows.mask_of.assign(kinds.size(), 0);
  std::vector<float> scores;
  for (const auto& [name, one] : kinds) scores.insert(scores.end(), one.begin(), one.end());
  const Selected got = select_on_gpu(rows, scores, w);
  ASSERT_EQ(got.masks.size(), kinds.size());
  EXPECT_EQ(got.status, 0U);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto expected = select_topk(kinds[i].second, w, among);
    ASSERT_TRUE(expected) << expected.error().message;
    ASSERT_EQ(got.masks[i], *expected) << "scores " << kinds[i].first << ", w " << w;
  }
}

TEST(DeviceTopk, EqualsTheHostForEveryMaskOfTheClass) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(1);
  for (const auto& [q_len, kv_len] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {300, 300}, {61, 60}, {37, 83}, {83, 37}, {1, 60}, {60, 1}}) {
    for (const NamedCells& among : all_among(q_len, kv_len, random)) {
      if (!among.is_one_interval) continue;
      const ColumnIntervals columns = columns_of(among.cells, kv_len);
      for (const std::int64_t w : {std::int64_t{1}, std::int64_t{2}, std::int64_t{127},
                                   std::int64_t{128}, std::int64_t{129}, kv_len, kv_len + 5}) {
        SCOPED_TRACE(testing::Message() << q_len << " x " << kv_len << " " << among.name);
        expect_like_the_host(columns, all_scores(kv_len, random), w);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceTopk, GroupsLongerAndShorterThanAKeySegment) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(2);
  std::vector<std::int32_t> many(900);
  for (std::int32_t& length : many) length = 1 + static_cast<std::int32_t>(random() % 20);
  const std::vector<std::vector<std::int32_t>> lists{
      {2048}, {2049}, {9137}, {1, 2048, 1, 5000, 3}, {700, 700, 700, 4500, 2048, 1}, many};
  for (const std::vector<std::int32_t>& lengths : lists) {
    for (const bool causal : {true, false}) {
      for (const int hidden : {0, 3}) {
        const ColumnIntervals among = groups(lengths, causal, hidden);
        for (const std::int64_t w : {1, 5, 128, 2047, 2048, 2049, 5000}) {
          SCOPED_TRACE(testing::Message() << lengths.size() << " groups, " << among.kv_len
                                          << " keys, causal " << causal << ", hidden " << hidden);
          expect_like_the_host(among, all_scores(among.kv_len, random), w);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DeviceTopk, ManyTokens) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(3);
  // 33 key segments, then 64, the most whose thresholds are found by samples, then 65.
  for (const std::int32_t length : {64 * 1024 + 1, 131072, 131072 + 77}) {
    const ColumnIntervals causal = groups({length}, true, 0);
    for (const std::int64_t w : {64, 2048, 26214}) {
      expect_like_the_host(causal, all_scores(causal.kv_len, random), w);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// So many rows that launches overlap. Groups begin anywhere in the key segments of a block.
TEST(DeviceTopk, ManyRowsOfKeySegments) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(6);
  for (const ColumnIntervals& among : {groups({131072}, true, 0), groups({131072 + 77}, true, 0),
                                       groups({50, 60000, 4096, 20000, 7, 30000}, true, 5)}) {
    const auto kinds = all_scores(among.kv_len, random);
    auto many = kinds;
    const std::int64_t num_key_segments = (among.kv_len + 2047) / 2048;
    while (static_cast<std::int64_t>(many.size()) * num_key_segments <
           1056 + 2 * num_key_segments) {
      many.push_back(kinds[many.size() % kinds.size()]);
    }
    for (const std::int64_t w : {100, 2048}) {
      expect_like_the_host(among, many, w);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// The same with one key segment in each row, for which no thresholds are computed.
TEST(DeviceTopk, ManyRowsOfOneKeySegment) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(8);
  for (const ColumnIntervals& among :
       {groups({1000}, true, 0), groups({2048}, true, 7), groups({300, 900, 1, 700}, true, 0)}) {
    const auto kinds = all_scores(among.kv_len, random);
    auto many = kinds;
    while (many.size() < 300) many.push_back(kinds[many.size() % kinds.size()]);
    for (const std::int64_t w : {1, 205}) {
      expect_like_the_host(among, many, w);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Scores of very different size or nearly equal ones, so that key segments are sorted by different
// bits.
TEST(DeviceTopk, ScoresOfEveryScale) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const std::int32_t length : {2048, 7003}) {
    const ColumnIntervals causal = groups({length}, true, 0);
    std::vector<std::pair<std::string, std::vector<float>>> kinds;
    const auto add = [&](const char* name, auto score_of) {
      std::vector<float> scores;
      for (std::int32_t key = 0; key < length; ++key) scores.push_back(score_of(key));
      kinds.emplace_back(name, std::move(scores));
    };
    constexpr float kMost = std::numeric_limits<float>::max();
    add("one far away", [&](int key) { return key % 1000 == 3 ? -1e9F : normal(random); });
    add("some infinite", [&](int key) {
      return key % 50 == 3 ? -std::numeric_limits<float>::infinity() : normal(random);
    });
    add("exponential", [&](int) { return std::exp(20 * normal(random)); });
    add("from end to end", [&](int key) { return key % 2 == 0 ? kMost : -kMost * normal(random); });
    add("denormal", [&](int) { return 1e-40F * normal(random); });
    add("two and noise", [&](int key) { return key % 2 == 0 ? 1e4F : 1e-4F * normal(random); });
    add("of 8 bits", [&](int) { return std::round(normal(random) * 64) / 64; });
    add("runs of equal ones", [&](int key) { return std::sin(static_cast<float>(key / 20)); });
    add("pairs", [&](int key) { return 1e3F + 1e-4F * static_cast<float>(key * 31 % length / 2); });
    add("close", [&](int) { return 1 + 1e-7F * std::abs(normal(random)); });
    for (const std::int64_t w : {1, 100, 2048}) {
      expect_like_the_host(causal, kinds, w);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// The faster scores drift, the fewer key segments contain the keys that are evicted in one key
// segment.
TEST(DeviceTopk, DriftingAtEverySpeed) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(10);
  std::normal_distribution<float> normal;
  const ColumnIntervals causal = groups({60001}, true, 0);
  std::vector<std::pair<std::string, std::vector<float>>> kinds;
  for (float step = 1e-5F; step < 1; step *= 1.7F) {
    std::vector<float> scores;
    for (int key = 0; key < 60001; ++key) {
      scores.push_back(normal(random) + step * static_cast<float>(key));
    }
    kinds.emplace_back("step " + std::to_string(step), std::move(scores));
  }
  for (const std::int64_t w : {300, 2048, 9000}) {
    expect_like_the_host(causal, kinds, w);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// More runs than a block has samples of, and fewer than it has threads to find thresholds.
TEST(DeviceTopk, ManyParts) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(7);
  for (const std::int32_t length : {200 * 1024 + 1, 600 * 1024 + 3}) {
    const ColumnIntervals causal = groups({length}, true, 0);
    auto kinds = all_scores(causal.kv_len, random);
    kinds.resize(4);
    expect_like_the_host(causal, kinds, 2048);
  }
}

// More runs than the threads of a block.
TEST(DeviceTopk, AMillionTokens) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(4);
  const ColumnIntervals causal = groups({(1 << 20) + 1}, true, 0);
  auto kinds = all_scores(causal.kv_len, random);
  kinds.resize(4);  // random, tied, constant, rising
  expect_like_the_host(causal, kinds, 2048);
}

TEST(DeviceTopk, BatchElementsWithMasksAndLengthsOfTheirOwn) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(5);
  const std::vector<ColumnIntervals> masks{groups({3000}, true, 0), groups({10, 2500}, false, 4),
                                           groups({}, true, 0)};
  const TopkRows rows{3, 2, 3000, masks, {0, 0, 1, 0, 2, 1}};
  std::vector<float> scores(6 * 3000);
  std::normal_distribution<float> normal;
  for (float& score : scores) score = normal(random);
  const Selected got = select_on_gpu(rows, scores, 100);
  ASSERT_EQ(got.masks.size(), 6U);
  for (std::size_t row = 0; row < 6; ++row) {
    const ColumnIntervals& among = masks[static_cast<std::size_t>(rows.mask_of[row])];
    const auto expected = select_topk(
        std::span(scores).subspan(row * 3000, static_cast<std::size_t>(among.kv_len)), 100, among);
    ASSERT_TRUE(expected);
    EXPECT_EQ(got.masks[row], *expected) << row;
    // No key past those of a mask is kept.
    for (std::size_t key = static_cast<std::size_t>(among.kv_len); key < 3000; ++key) {
      Interval interval;
      std::memcpy(&interval, got.bytes.data() + (row * 3000 + key) * sizeof interval,
                  sizeof interval);
      ASSERT_EQ(interval, (Interval{0, 0}));
    }
  }
}

// NaN ranks below every number, and ties go to the lower key. If a query sees the key, a bit of the
// status word is set.
TEST(DeviceTopk, NanRanksLowestAndIsReported) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(6);
  const ColumnIntervals causal = groups({5000}, true, 7);
  std::vector<float> scores(5000), without(5000);
  std::normal_distribution<float> normal;
  for (std::size_t key = 0; key < scores.size(); ++key) {
    const bool is_nan = random() % 3 == 0;
    scores[key] = is_nan ? std::numeric_limits<float>::quiet_NaN() : normal(random);
    without[key] = is_nan ? -std::numeric_limits<float>::infinity() : scores[key];
  }
  for (const std::int64_t w : {1, 300, 4000, 5000}) {
    const Selected got = select_on_gpu({1, 1, 5000, {causal}, {0}}, scores, w);
    const auto expected = select_topk(without, w, causal);
    ASSERT_TRUE(expected);
    ASSERT_EQ(got.masks.size(), 1U);
    EXPECT_EQ(got.masks[0], *expected);
    EXPECT_EQ(got.status, kTopkSawNan);
  }
  std::fill(scores.begin(), scores.end(), 1.0F);
  scores[7] = std::numeric_limits<float>::quiet_NaN();  // hidden
  EXPECT_EQ(select_on_gpu({1, 1, 5000, {causal}, {0}}, scores, 9).status, 0U);
}

TEST(DeviceTopk, AnyStridesOfScores) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(7);
  constexpr std::int64_t kLength = 2500, kHeads = 3, kBatches = 2;
  const ColumnIntervals causal = groups({kLength}, true, 0);
  std::vector<float> scores(kBatches * kLength * kHeads);  // [batch, kv_len, heads]
  std::normal_distribution<float> normal;
  for (float& score : scores) score = normal(random);
  const auto made =
      DeviceTopk::make({kBatches, kHeads, kLength, {causal}, std::vector<std::int32_t>(6, 0)}, 50);
  ASSERT_TRUE(made);
  const DeviceArray<float> device(scores);
  TensorView view = device_scores(device, kBatches, kHeads, kLength);
  view.strides = {kLength * kHeads, 1, kHeads, 0};
  const GuardedBytes kept(scores.size() * sizeof(Interval));
  const GuardedBytes workspace(static_cast<std::size_t>(made->workspace_bytes()));
  ASSERT_TRUE(made->select(view, kept.as<Interval>(), workspace.as<void>()));
  const auto got = made->to_host(kept.as<Interval>());
  ASSERT_TRUE(got);
  for (std::int64_t row = 0; row < kBatches * kHeads; ++row) {
    std::vector<float> one;
    for (std::int64_t key = 0; key < kLength; ++key) {
      one.push_back(
          scores[static_cast<std::size_t>((row / kHeads * kLength + key) * kHeads + row % kHeads)]);
    }
    const auto expected = select_topk(one, 50, causal);
    ASSERT_TRUE(expected);
    EXPECT_EQ((*got)[static_cast<std::size_t>(row)], *expected) << row;
  }
}

TEST(DeviceTopk, CapturedInAGraphAndTheSameEveryRun) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(8);
  constexpr std::int64_t kLength = 20000;
  const ColumnIntervals causal = groups({kLength}, true, 0);
  const auto made = DeviceTopk::make({1, 2, kLength, {causal}, {0, 0}}, 1000);
  ASSERT_TRUE(made);
  std::normal_distribution<float> normal;
  const auto drawn = [&] {
    std::vector<float> scores(2 * kLength);
    for (float& score : scores) score = normal(random);
    return scores;
  };
  const DeviceArray<float> device(drawn());
  const GuardedBytes kept(2 * kLength * sizeof(Interval));
  const GuardedBytes workspace(static_cast<std::size_t>(made->workspace_bytes()));
  const DeviceArray<std::uint32_t> status(std::vector<std::uint32_t>{0});
  cudaStream_t stream;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const Result<void> captured =
      made->select(device_scores(device, 1, 2, kLength), kept.as<Interval>(), workspace.as<void>(),
                   status.data(), stream);
  require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  ASSERT_TRUE(captured) << captured.error().message;
  require(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  for (int run = 0; run < 3; ++run) {
    const std::vector<float> scores = drawn();
    require(cudaMemcpy(device.data(), scores.data(), scores.size() * sizeof(float),
                       cudaMemcpyHostToDevice),
            "cudaMemcpy");
    std::vector<std::uint8_t> first;
    for (int again = 0; again < 3; ++again) {
      require(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
      const std::vector<std::uint8_t> bytes = kept.to_host();
      if (again == 0) first = bytes;
      EXPECT_TRUE(bytes == first);
    }
    const auto got = made->to_host(kept.as<Interval>(), stream);
    ASSERT_TRUE(got);
    for (std::size_t row = 0; row < 2; ++row) {
      const auto expected =
          select_topk(std::span(scores).subspan(row * kLength, kLength), 1000, causal);
      ASSERT_TRUE(expected);
      EXPECT_EQ((*got)[row], *expected);
    }
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(DeviceTopk, RejectsWhatItCannotDo) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const ColumnIntervals window{3, 2, {0, 1, 2}, {{0, 2}, {1, 3}}};
  const auto beyond = DeviceTopk::make({1, 1, 2, {window}, {0}}, 1);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::unsupported);
  EXPECT_THAT(beyond.error().message, HasSubstr("select_topk"));
  const auto made = DeviceTopk::make({1, 1, 3000, {groups({3000}, true, 0)}, {0}}, 1);
  ASSERT_TRUE(made);
  const DeviceArray<float> scores(std::vector<float>(3000, 0));
  const DeviceArray<Interval> kept(std::vector<Interval>(3000));
  TensorView view = device_scores(scores, 1, 1, 3000);
  EXPECT_THAT(made->select(view, kept.data(), nullptr).error().message, HasSubstr("workspace"));
  EXPECT_THAT(made->select(view, nullptr, kept.data()).error().message, HasSubstr("kept"));
  view.device = Device::cpu;
  EXPECT_THAT(made->select(view, kept.data(), kept.data()).error().message,
              HasSubstr("on the host"));
}

TEST(DeviceTopk, NothingToSelectFrom) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const auto made = DeviceTopk::make({1, 1, 0, {groups({}, true, 0)}, {0}}, 3);
  ASSERT_TRUE(made) << made.error().message;
  const std::int64_t extents[] = {1, 1, 0};
  TensorView view = make_contiguous_view(nullptr, DType::float32, 3, extents);
  view.device = Device::cuda;
  EXPECT_TRUE(made->select(view, nullptr, nullptr));
  const auto got = made->to_host(nullptr);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->at(0), (ColumnIntervals{0, 0, {0}, {}}));
}

}  // namespace
}  // namespace fdma
