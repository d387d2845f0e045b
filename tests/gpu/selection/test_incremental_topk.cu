// Incremental selection on the GPU. After every append it must have the result of IncrementalTopk
// on the host.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fdma/kernels/device_incremental_topk.hpp"
#include "fdma/select/incremental_topk.hpp"
#include "fdma/select/select_topk.hpp"
#include "selection/guarded_array.hpp"
#include "selection_oracle.hpp"

namespace fdma {
namespace {

using gpu_test::DeviceArray;
using gpu_test::GuardedBytes;
using gpu_test::require;
using testing::HasSubstr;

/// Rows of scores on the device, with one kind of scores in each head, and the selections among
/// them on the device and on the host.
class Follower {
 public:
  Follower(const std::vector<std::vector<float>>& rows, std::int64_t w, bool keys_may_wait)
      : rows_(rows),
        kv_len_(static_cast<std::int64_t>(rows.front().size())),
        scores_(flat(rows)),
        live_(rows.size() * rows.front().size() * sizeof(std::int32_t)),
        counts_(std::vector<std::int32_t>(rows.size(), -1)) {
    auto made = DeviceIncrementalTopk::make(
        {1, static_cast<std::int64_t>(rows.size()), kv_len_, w, keys_may_wait});
    if (!made) throw std::runtime_error(made.error().message);
    device_ = std::make_unique<DeviceIncrementalTopk>(*std::move(made));
    for (std::size_t i = 0; i < rows.size(); ++i) host_.push_back(*IncrementalTopk::make(w));
  }

  DeviceIncrementalTopk& device() { return *device_; }

  TensorView scores(std::int64_t first, std::int64_t count) const {
    TensorView view;
    view.data = scores_.data() + first;
    view.dtype = DType::float32;
    view.device = Device::cuda;
    view.rank = 3;
    view.extents = {1, static_cast<std::int64_t>(rows_.size()), count, 1};
    view.strides = {0, kv_len_, 1, 0};
    return view;
  }

  void append_causal(std::int64_t count) {
    const std::int64_t first = device_->kv_len();
    const Result<void> done = device_->append_causal(scores(first, count));
    ASSERT_TRUE(done) << done.error().message;
    append_causal_on_host(first, count);
    compare();
  }
  void append_causal_on_host(std::int64_t first, std::int64_t count) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      ASSERT_TRUE(host_[i].append_causal(part(i, first, count)));
    }
  }

  void append(std::span<const Interval> among, std::int64_t num_queries) {
    const std::int64_t first = device_->kv_len();
    const auto count = static_cast<std::int64_t>(among.size());
    const Result<void> done = device_->append(scores(first, count), among, num_queries);
    ASSERT_TRUE(done) << done.error().message;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      ASSERT_TRUE(host_[i].append(part(i, first, count), among, num_queries));
    }
    compare();
  }

  void end_group() {
    ASSERT_TRUE(device_->end_group());
    for (IncrementalTopk& topk : host_) topk.end_group();
    compare();
  }

  void compare() {
    ASSERT_TRUE(device_->live_keys(live_.as<std::int32_t>(), kv_len_, counts_.data()));
    const auto got = device_->intervals();
    ASSERT_TRUE(got) << got.error().message;
    const std::vector<std::uint8_t> bytes = live_.to_host();
    const std::vector<std::int32_t> counts = counts_.to_host();
    ASSERT_EQ(device_->q_len(), host_[0].q_len());
    ASSERT_EQ(device_->kv_len(), host_[0].kv_len());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      ASSERT_EQ((*got)[i], host_[i].intervals()) << "row " << i;
      ASSERT_EQ(counts[i], host_[i].num_live_keys()) << "row " << i;
      std::vector<std::int32_t> keys(static_cast<std::size_t>(counts[i]));
      std::memcpy(keys.data(), bytes.data() + i * static_cast<std::size_t>(kv_len_) * 4,
                  keys.size() * 4);
      ASSERT_EQ(keys, host_[i].live_keys()) << "row " << i;
    }
  }

 private:
  static std::vector<float> flat(const std::vector<std::vector<float>>& rows) {
    std::vector<float> all;
    for (const std::vector<float>& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
  }
  std::span<const float> part(std::size_t row, std::int64_t first, std::int64_t count) const {
    return std::span(rows_[row])
        .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }

  std::vector<std::vector<float>> rows_;
  std::int64_t kv_len_;
  DeviceArray<float> scores_;
  GuardedBytes live_;
  DeviceArray<std::int32_t> counts_;
  std::unique_ptr<DeviceIncrementalTopk> device_;
  std::vector<IncrementalTopk> host_;
};

std::vector<std::vector<float>> rows_of_all_kinds(std::int64_t kv_len, std::mt19937& random) {
  std::vector<std::vector<float>> rows;
  for (auto& [name, scores] : all_scores(kv_len, random)) rows.push_back(std::move(scores));
  return rows;
}

TEST(DeviceIncrementalTopk, CausalInChunksOfAnySize) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(1);
  for (const std::int64_t w : {1, 2, 127, 128, 129, 700, 5000}) {
    for (const std::int64_t most : {1, 9, 300, 2048, 5000}) {
      const std::int64_t kv_len = most == 1 ? 150 : most == 9 ? 400 : 9000;
      Follower follower(rows_of_all_kinds(kv_len, random), w, false);
      SCOPED_TRACE(testing::Message() << "w " << w << ", chunks up to " << most);
      while (follower.device().kv_len() < kv_len) {
        const auto count = static_cast<std::int64_t>(1 + random() % static_cast<unsigned>(most));
        follower.append_causal(std::min(count, kv_len - follower.device().kv_len()));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceIncrementalTopk, DocumentsThatEndWhenTheyEnd) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(2);
  for (const std::int64_t w : {1, 3, 40}) {
    Follower follower(rows_of_all_kinds(200, random), w, false);
    for (const std::int64_t length : {5, 1, 60, 100, 34}) {
      follower.append_causal((length + 1) / 2);
      if (length > 1) follower.append_causal(length / 2);
      follower.end_group();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Every mask M of the class, including masks with keys that no query sees at first. Before each
// chunk of queries, all keys that one of them sees are appended.
TEST(DeviceIncrementalTopk, EveryMaskOfTheClass) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(3);
  for (const auto& [q_len, kv_len] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {40, 40}, {27, 53}, {53, 27}, {1, 60}, {60, 1}}) {
    for (const NamedCells& among : all_among(q_len, kv_len, random)) {
      if (!among.is_one_interval) continue;
      const auto visible = one_interval_per_key(columns_of(among.cells, kv_len));
      ASSERT_TRUE(visible);
      for (const std::int64_t w : {std::int64_t{1}, std::int64_t{2}, std::int64_t{7}, kv_len + 5}) {
        SCOPED_TRACE(testing::Message()
                     << q_len << " x " << kv_len << " " << among.name << ", w " << w);
        Follower follower(rows_of_all_kinds(kv_len, random), w, true);
        while (follower.device().q_len() < q_len || follower.device().kv_len() < kv_len) {
          const std::int64_t num_queries = std::min<std::int64_t>(
              static_cast<std::int64_t>(random() % 9), q_len - follower.device().q_len());
          const std::int64_t q_end = follower.device().q_len() + num_queries;
          const std::int64_t first = follower.device().kv_len();
          std::int64_t end = q_end == q_len ? kv_len : first;
          for (std::int64_t key = first; key < kv_len; ++key) {
            const Interval& queries = (*visible)[static_cast<std::size_t>(key)];
            if (queries.begin < queries.end && queries.begin < q_end) end = key + 1;
          }
          follower.append(std::span(*visible).subspan(static_cast<std::size_t>(first),
                                                      static_cast<std::size_t>(end - first)),
                          num_queries);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DeviceIncrementalTopk, AllKeysAtOnceThenCausalAndTheEndOfAGroup) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(4);
  Follower follower(rows_of_all_kinds(60, random), 3, true);
  const std::vector<Interval> among{{0, kOpenEnd}, {4, kOpenEnd}, {6, kOpenEnd}};
  follower.append(among, 2);
  follower.append({}, 3);
  follower.append({}, 2);
  follower.append_causal(5);
  follower.end_group();
  follower.append_causal(7);
  follower.end_group();
  ASSERT_EQ(follower.device().q_len(), 19);
  const std::vector<Interval> all(10, Interval{21, 40});
  follower.append(all, 4);
  follower.append({}, 20);
  follower.append_causal(8);
}

// Decoding by replays of one graph.
TEST(DeviceIncrementalTopk, ReplaysOfAGraphAppend) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(5);
  const std::vector<std::vector<float>> rows = rows_of_all_kinds(300, random);
  Follower follower(rows, 20, false);
  follower.append_causal(100);
  const DeviceArray<float> token(std::vector<float>(rows.size(), 0));
  const std::int64_t extents[] = {1, static_cast<std::int64_t>(rows.size()), 1};
  TensorView view = make_contiguous_view(token.data(), DType::float32, 3, extents);
  view.device = Device::cuda;
  cudaStream_t stream;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const Result<void> captured = follower.device().append_causal(view, stream);
  require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  ASSERT_TRUE(captured) << captured.error().message;
  require(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  for (std::int64_t key = 100; key < 300; ++key) {
    std::vector<float> scores;
    for (const std::vector<float>& row : rows) scores.push_back(row[static_cast<std::size_t>(key)]);
    require(cudaMemcpy(token.data(), scores.data(), scores.size() * sizeof(float),
                       cudaMemcpyHostToDevice),
            "cudaMemcpy");
    require(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    follower.append_causal_on_host(key, 1);
    follower.compare();
    if (testing::Test::HasFatalFailure()) return;
  }
  // There is no room left. Nothing is appended, and the status word says so.
  require(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  follower.compare();
  std::uint32_t status = 0;
  require(cudaMemcpy(&status, follower.device().status(), sizeof status, cudaMemcpyDeviceToHost),
          "cudaMemcpy");
  EXPECT_EQ(status, kTopkOverCapacity);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(DeviceIncrementalTopk, EqualsSelectionInOneGo) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(6);
  constexpr std::int64_t kLength = 30000;
  std::vector<std::vector<float>> rows = rows_of_all_kinds(kLength, random);
  Follower follower(rows, 2048, false);
  ColumnIntervals causal{kLength, kLength, {0}, {}};
  for (std::int32_t key = 0; key < kLength; ++key) {
    causal.intervals.push_back({key, static_cast<std::int32_t>(kLength)});
    causal.offsets.push_back(key + 1);
  }
  ASSERT_TRUE(follower.device().append_causal(follower.scores(0, 20001)));
  ASSERT_TRUE(follower.device().append_causal(follower.scores(20001, kLength - 20001)));
  const auto got = follower.device().intervals();
  ASSERT_TRUE(got);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto expected = select_topk(rows[i], 2048, causal);
    ASSERT_TRUE(expected);
    EXPECT_EQ((*got)[i], *expected) << i;
  }
}

TEST(DeviceIncrementalTopk, RejectsAndStaysAsItWas) {
  FDMA_SKIP_WITHOUT_HOPPER();
  EXPECT_EQ(DeviceIncrementalTopk::make({1, 1, 10, 0, false}).error().code,
            ErrorCode::invalid_argument);
  std::mt19937 random(7);
  Follower follower(rows_of_all_kinds(8, random), 2, false);
  follower.append_causal(3);
  DeviceIncrementalTopk& topk = follower.device();
  const auto message = [&](const std::vector<Interval>& among, std::int64_t num_queries) {
    const Result<void> result = topk.append(
        follower.scores(3, static_cast<std::int64_t>(among.size())), among, num_queries);
    return result ? std::string("none") : result.error().message;
  };
  EXPECT_THAT(message({{2, kOpenEnd}}, 1), HasSubstr("queries up to 3 have been decided"));
  EXPECT_THAT(message({{5, 4}}, 1), HasSubstr("0 <= begin <= end"));
  EXPECT_THAT(message({{3, kOpenEnd}}, -1), HasSubstr("num_queries"));
  EXPECT_THAT(message({{3, 7}}, 1), HasSubstr("ends apart from key 2"));
  EXPECT_THAT(message({{4, kOpenEnd}}, 1), HasSubstr("keys_may_wait"));
  EXPECT_THAT(message({{3, kOpenEnd}, {3, 4}}, 1), HasSubstr("ends apart"));
  EXPECT_THAT(topk.append_causal(follower.scores(2, 6)).error().message,
              HasSubstr("capacity is 8"));
  follower.compare();
}

}  // namespace
}  // namespace fdma
