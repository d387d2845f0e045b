// KV worklists made on the GPU. They must equal those of the host bit by bit, with and without an
// accumulation order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <tuple>

#include "device_array.hpp"
#include "dynamic_mask/device_kv_worklist.hpp"
#include "fdma/select/select_topk.hpp"
#include "plan/entry_accumulators.hpp"
#include "plan/kv_worklist.hpp"
#include "selection/guarded_array.hpp"
#include "selection/random_rows.hpp"

namespace fdma::dynamic_mask {
namespace {

using gpu_test::DeviceArray;
using gpu_test::GuardedBytes;

struct Case {
  std::int64_t kv_len = 0;
  std::vector<std::int32_t> q_lens;  ///< length of each row
  std::vector<Interval> kept;        ///< [rows, kv_len]
  std::int32_t heads_kv = 1;
  std::int32_t segment = 8;
  std::int64_t w = -1;  ///< -1: the most keys that a query of some row keeps
  bool has_order = false;

  std::int64_t num_rows() const { return static_cast<std::int64_t>(q_lens.size()); }
  std::int64_t most_kept() const {
    std::int64_t most = 0;
    for (std::int64_t row = 0; row < num_rows(); ++row) {
      const auto of_row = std::span(kept).subspan(static_cast<std::size_t>(row * kv_len),
                                                  static_cast<std::size_t>(kv_len));
      most = std::max(most, most_seen(of_row, q_lens[static_cast<std::size_t>(row)]));
    }
    return most;
  }
  KvWorklistRoom room() const {
    KvWorklistRoom room;
    room.num_rows = num_rows();
    room.kv_len = kv_len;
    room.q_len = *std::max_element(q_lens.begin(), q_lens.end());
    room.segment_tiles = segment;
    room.w = w >= 0 ? w : most_kept();
    room.has_order = has_order;
    return room;
  }
};

HeadWorklist expected_row(const Case& c, std::int64_t row) {
  std::vector<std::int64_t> offsets{0};
  std::vector<Interval> intervals;
  for (std::int64_t key = 0; key < c.kv_len; ++key) {
    const Interval queries = c.kept[static_cast<std::size_t>(row * c.kv_len + key)];
    if (queries.begin < queries.end) intervals.push_back(queries);
    offsets.push_back(static_cast<std::int64_t>(intervals.size()));
  }
  return make_head_worklist(offsets, intervals, c.q_lens[static_cast<std::size_t>(row)], c.segment,
                            c.room().w);
}

template <class T>
std::vector<T> elements_of(const std::vector<std::uint8_t>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// The worklist that the device makes.
struct Made {
  explicit Made(const Case& c) {
    const KvWorklistRoom room = c.room();
    const DeviceArray<Interval> d_kept(c.kept);
    const DeviceArray<std::int32_t> d_q_lens(c.q_lens);
    const auto size = [](std::int64_t count, std::size_t each) {
      return static_cast<std::size_t>(count) * each;
    };
    const GuardedBytes workspace(size(room.workspace_bytes(), 1));
    const GuardedBytes d_keys(size(room.keys_capacity(), sizeof(WorklistEntry)));
    const GuardedBytes d_work_tiles(size(room.work_tiles_capacity(), sizeof(KvWorkTile)));
    const GuardedBytes d_sum_keys(size(room.accum_capacity(), sizeof(AccumKey)));
    const GuardedBytes d_num_work_tiles(4), d_num_sums(size(room.num_rows, 4));
    const GuardedBytes d_first_positions(size(room.has_order ? room.work_tiles_capacity() : 0, 4));
    const GuardedBytes d_ranks(size(room.positions_capacity(), 4));
    KvWorklistCall call;
    call.room = room;
    call.kept = d_kept.data();
    call.q_lens = d_q_lens.data();
    call.heads_kv = c.heads_kv;
    call.workspace = workspace.as<void>();
    call.keys = d_keys.as<WorklistEntry>();
    call.work_tiles = d_work_tiles.as<KvWorkTile>();
    call.num_work_tiles = d_num_work_tiles.as<std::int32_t>();
    call.accum_keys = d_sum_keys.as<AccumKey>();
    call.num_accum_rows = d_num_sums.as<std::int32_t>();
    if (room.has_order) {
      call.first_positions = d_first_positions.as<std::int32_t>();
      call.positions = d_ranks.as<std::int32_t>();
    }
    const Result<void> done = make_kv_worklist_on_device(call, nullptr);
    EXPECT_TRUE(done) << done.error().message;
    workspace.to_host();
    keys = elements_of<WorklistEntry>(d_keys.to_host());
    work_tiles = elements_of<KvWorkTile>(d_work_tiles.to_host());
    accum_keys = elements_of<AccumKey>(d_sum_keys.to_host());
    num_accum_rows = elements_of<std::int32_t>(d_num_sums.to_host());
    num_work_tiles = elements_of<std::int32_t>(d_num_work_tiles.to_host()).front();
    first_positions = elements_of<std::int32_t>(d_first_positions.to_host());
    positions = elements_of<std::int32_t>(d_ranks.to_host());
  }
  std::vector<WorklistEntry> keys;
  std::vector<KvWorkTile> work_tiles;
  std::vector<AccumKey> accum_keys;
  std::vector<std::int32_t> num_accum_rows, first_positions, positions;
  std::int32_t num_work_tiles = 0;
};

// The worklist with one row of fp32 accumulators for every two entries of a key.
HeadWorklist with_pairs(const HeadWorklist& lists) {
  KvWorklist of_head;
  append_work_tiles(lists, append_keys(lists, of_head), 0, 0, 1, of_head);
  of_head = with_accum_of_pairs(of_head);
  HeadWorklist pairs{of_head.keys, lists.work_tiles, {}};
  for (const AccumKey& each : of_head.accum_keys) pairs.accum_keys.push_back(each.key);
  return pairs;
}

// Sorts the work tiles into the accumulation order of dQ. Groups of kRowsTogether rows come one
// after the other, and in each group the segments. In a segment, the work tiles of a row that begin
// last come first, and among these those that end last. The rows of a group take turns: the first
// work tile of each row, then the second of each row, and so on.
void put_in_dq_order(const Case& c, std::vector<KvWorkTile>& work_tiles) {
  const auto row_of = [&](const KvWorkTile& work_tile) {
    return work_tile.batch * c.heads_kv + work_tile.kv_head;
  };
  std::sort(work_tiles.begin(), work_tiles.end(), [&](const KvWorkTile& a, const KvWorkTile& b) {
    const auto key_of = [&](const KvWorkTile& work_tile) {
      return std::tuple(row_of(work_tile), work_tile.begin_tile / c.segment, -work_tile.begin_tile,
                        -work_tile.end_tile, work_tile.key_tile);
    };
    return key_of(a) < key_of(b);
  });
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> num_before;
  std::vector<
      std::pair<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>, KvWorkTile>>
      placed;
  for (const KvWorkTile& work_tile : work_tiles) {
    const std::int32_t row = row_of(work_tile), segment = work_tile.begin_tile / c.segment;
    const std::int32_t place = num_before[{row, segment}]++;
    placed.push_back({{row / kRowsTogether, segment, place, row}, work_tile});
  }
  std::sort(placed.begin(), placed.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::transform(placed.begin(), placed.end(), work_tiles.begin(),
                 [](const auto& each) { return each.second; });
}

void expect_ranks(const Made& made) {
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::int32_t> num_before;
  for (std::size_t i = 0; i < static_cast<std::size_t>(made.num_work_tiles); ++i) {
    const KvWorkTile& work_tile = made.work_tiles[i];
    for (std::int32_t tile = work_tile.begin_tile; tile < work_tile.end_tile; ++tile) {
      const std::int32_t expected = num_before[{work_tile.batch, work_tile.kv_head, tile}]++;
      const auto visit =
          static_cast<std::size_t>(made.first_positions[i] + tile - work_tile.begin_tile);
      ASSERT_LT(visit, made.positions.size());
      ASSERT_EQ(made.positions[visit], expected) << "work tile " << i << " at tile " << tile;
    }
  }
}

void expect_lists_as_asked(const Case& c) {
  const KvWorklistRoom room = c.room();
  const Made made(c);
  std::vector<KvWorkTile> expected_work_tiles;
  for (std::int64_t row = 0; row < c.num_rows(); ++row) {
    const HeadWorklist plain = expected_row(c, row);
    const HeadWorklist expected = c.has_order ? with_pairs(plain) : plain;
    const auto first = static_cast<std::size_t>(row * room.tiles_of_row()) * kWorklistTile;
    for (std::size_t i = 0; i < expected.keys.size(); ++i) {
      const WorklistEntry &got = made.keys[first + i], &want = expected.keys[i];
      ASSERT_EQ(got, want) << "row " << row << ", listed key " << i << ": " << got.key << " ["
                           << got.q_begin << ", " << got.q_end << "), expected " << want.key << " ["
                           << want.q_begin << ", " << want.q_end << ")";
    }
    for (KvWorkTile work_tile : expected.work_tiles) {
      work_tile.batch = static_cast<std::int32_t>(row) / c.heads_kv;
      work_tile.kv_head = static_cast<std::int32_t>(row) % c.heads_kv;
      work_tile.key_tile += static_cast<std::int32_t>(row * room.tiles_of_row());
      work_tile.first_accum_row += static_cast<std::int32_t>(row * room.sum_rows());
      expected_work_tiles.push_back(work_tile);
    }
    ASSERT_EQ(made.num_accum_rows[static_cast<std::size_t>(row)],
              static_cast<std::int32_t>(expected.accum_keys.size()))
        << "row " << row;
    for (std::size_t i = 0; i < expected.accum_keys.size(); ++i) {
      const AccumKey want{static_cast<std::int32_t>(row), expected.accum_keys[i]};
      ASSERT_EQ(made.accum_keys[static_cast<std::size_t>(row * room.sum_rows()) + i], want)
          << "row " << row << ", row of sums " << i;
    }
  }
  ASSERT_EQ(made.num_work_tiles, static_cast<std::int32_t>(expected_work_tiles.size()));
  if (c.has_order) put_in_dq_order(c, expected_work_tiles);
  for (std::size_t i = 0; i < expected_work_tiles.size(); ++i) {
    const KvWorkTile &got = made.work_tiles[i], &want = expected_work_tiles[i];
    ASSERT_EQ(got, want) << "work tile " << i << ": key tile " << got.key_tile << " tiles ["
                         << got.begin_tile << ", " << got.end_tile << ") full [" << got.full_begin
                         << ", " << got.full_end << ") sums " << got.first_accum_row
                         << ", expected key tile " << want.key_tile << " [" << want.begin_tile
                         << ", " << want.end_tile << ") full [" << want.full_begin << ", "
                         << want.full_end << ") sums " << want.first_accum_row;
  }
  if (c.has_order) expect_ranks(made);
}

void expect_lists(Case c) {
  for (const bool has_order : {false, true}) {
    SCOPED_TRACE(has_order ? "with an order" : "without an order");
    c.has_order = has_order;
    expect_lists_as_asked(c);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(DeviceKvWorklist, EqualThoseOfTheHost) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(1);
  for (const auto& [kv_len, q_len] : std::vector<std::pair<std::int64_t, std::int32_t>>{
           {1, 1}, {127, 128}, {128, 127}, {2048, 2048}, {2049, 4097}, {9000, 3000}, {700, 9001}}) {
    for (const int longest_life : {1, 100, 5000}) {
      for (const int one_in : {1, 3, 300}) {
        for (const std::int32_t segment : {1, 4, 64}) {
          SCOPED_TRACE(testing::Message()
                       << kv_len << " keys, " << q_len << " queries, life " << longest_life
                       << ", one in " << one_in << ", segments of " << segment);
          Case c = gpu_test::random_rows<Case>(random, kv_len, q_len, 4, longest_life, one_in);
          c.heads_kv = 2;
          c.segment = segment;
          expect_lists(c);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DeviceKvWorklist, KeySegmentsAreCutOrNot) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(2);
  Case c;
  c.kv_len = 20000;
  c.q_lens = {20000};
  for (std::int32_t key = 0; key < 20000; ++key) {
    // The share of long lives in a key segment is one eighth, a little less, a little more, all or
    // none.
    const unsigned in_thousand = std::vector<unsigned>{125, 100, 150, 1000, 0}[key / 2048 % 5];
    const std::int32_t life = random() % 1000 < in_thousand ? 3000 : 300;
    c.kept.push_back({key, std::min(key + life, 20000)});
  }
  for (const std::int32_t segment : {1, 8, 16}) {
    SCOPED_TRACE(segment);
    c.segment = segment;
    expect_lists(c);
  }
}

// More keys are live at a time than the call has stated. Entries that do not fit are left out, and
// nothing else is written.
TEST(DeviceKvWorklist, EntriesBeyondTheRoomAreLeftOut) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(4);
  Case c = gpu_test::random_rows<Case>(random, 20000, 10000, 2, 9000, 1);
  c.segment = 3;
  c.w = 100;
  for (const bool has_order : {false, true}) {
    c.has_order = has_order;
    const Made made(c);
    for (const std::int32_t num_accum_rows : made.num_accum_rows)
      EXPECT_EQ(num_accum_rows, c.room().sum_rows());
    EXPECT_EQ(made.num_work_tiles, c.room().work_tiles_capacity());
    if (has_order) expect_ranks(made);
  }
}

// More rows than one group has, of different lengths.
TEST(DeviceKvWorklist, ManyRows) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(6);
  Case c = gpu_test::random_rows<Case>(random, 5000, 6000, 2 * kRowsTogether + 3, 5000, 2);
  for (std::size_t row = 0; row < c.q_lens.size(); row += 5) {
    c.q_lens[row] = 3000;
    for (std::int64_t key = 0; key < c.kv_len; ++key) {
      Interval& queries =
          c.kept[row * static_cast<std::size_t>(c.kv_len) + static_cast<std::size_t>(key)];
      queries.end = std::min(queries.end, 3000);
      if (queries.begin >= queries.end) queries = {0, 0};
    }
  }
  for (const std::int32_t segment : {1, 8, 512}) {
    SCOPED_TRACE(segment);
    c.segment = segment;
    expect_lists(c);
  }
}

TEST(DeviceKvWorklist, NobodyKeepsAKey) {
  FDMA_SKIP_WITHOUT_HOPPER();
  Case c;
  c.kv_len = 3000;
  c.q_lens = {3000, 2000};
  c.kept.assign(6000, {0, 0});
  expect_lists(c);
}

TEST(DeviceKvWorklist, ManyTilesAndManySegments) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(3);
  Case c = gpu_test::random_rows<Case>(random, 400'000, 400'000, 1, 3000, 1);
  c.segment = 4;
  expect_lists(c);
  c = gpu_test::random_rows<Case>(random, 2'200'000, 300, 1, 200, 1);
  c.segment = 1;
  expect_lists(c);
}

TEST(DeviceKvWorklist, KeysThatEndTogether) {
  FDMA_SKIP_WITHOUT_HOPPER();
  // A prefix that every query keeps, and documents that begin and end inside tiles.
  Case c;
  c.kv_len = 30000;
  c.q_lens = {30000};
  for (std::int32_t key = 0; key < 30000; ++key) {
    const std::int32_t document = key / 3333 * 3333;
    c.kept.push_back(key < 200 ? Interval{0, 30000}
                               : Interval{document, std::min(document + 3333, 30000)});
  }
  expect_lists(c);
}

// The room that a selection gets is sufficient.
TEST(DeviceKvWorklist, RoomSufficesForSelections) {
  FDMA_SKIP_WITHOUT_HOPPER();
  constexpr std::int64_t kLength = 30000, kWidth = 500;
  ColumnIntervals causal{kLength, kLength, {0}, {}};
  for (std::int32_t key = 0; key < kLength; ++key) {
    causal.intervals.push_back({key, kLength});
    causal.offsets.push_back(key + 1);
  }
  for (const float drift : {0.0f, 0.0005f, 0.005f, 1.0f}) {
    SCOPED_TRACE(drift);
    std::mt19937 random(5);
    std::vector<float> scores(kLength);
    for (std::size_t key = 0; key < scores.size(); ++key) {
      scores[key] = static_cast<float>(random() % 1000) / 1000 + drift * static_cast<float>(key);
    }
    const auto kept = select_topk(scores, kWidth, causal);
    ASSERT_TRUE(kept);
    Case c;
    c.kv_len = kLength;
    c.q_lens = {static_cast<std::int32_t>(kLength)};
    for (std::size_t key = 0; key < kLength; ++key) {
      const bool is_kept = kept->offsets[key] < kept->offsets[key + 1];
      c.kept.push_back(is_kept ? kept->intervals[static_cast<std::size_t>(kept->offsets[key])]
                               : Interval{0, 0});
    }
    const KvWorklistRoom room = kv_worklist_room(1, kLength, kLength, kWidth, 1);
    c.segment = room.segment_tiles;
    c.w = room.w;
    expect_lists(c);
  }
}

TEST(DeviceKvWorklist, RejectsWhatIsNotCountedIn32Bits) {
  const auto expect_error = [](std::int64_t num_rows, bool has_order, const char* message) {
    KvWorklistCall call;
    call.room = kv_worklist_room(num_rows, 1 << 18, 1 << 18, 2048, 1);
    call.room.has_order = has_order;
    const Result<void> made = make_kv_worklist_on_device(call, nullptr);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::unsupported);
    EXPECT_EQ(made.error().message, message);
  };
  expect_error(
      8192, false,
      "kv worklist: 8192 rows of 262144 keys may need 3204448256 worklist entries or sums, "
      "expected at most 2^31 - 1");
  expect_error(1024, true,
               "kv worklist: 1024 rows of 262144 keys may need 6408896512 worklist entries, sums "
               "or positions "
               "of deterministic calls, expected at most 2^31 - 1");
}

}  // namespace
}  // namespace fdma::dynamic_mask
