// KV index lists made on the GPU from the queries that keep each key, against lists by definition
// and against those of the host's plans.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "dynamic_mask/device_kv_index_lists.hpp"
#include "dynamic_mask/kv_index_list_room.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/select/select_topk.hpp"
#include "selection/guarded_array.hpp"
#include "selection/random_rows.hpp"

namespace fdma::dynamic_mask {
namespace {

using gpu_test::DeviceArray;
using gpu_test::GuardedBytes;
using gpu_test::require;

// Rows of intervals, and the tiles that they are divided into.
struct Case {
  std::int64_t kv_len = 0;
  std::vector<std::int32_t> q_lens;  ///< length of each row
  std::vector<Interval> kept;        ///< [rows, kv_len]
  std::int32_t block_q = 128;
  std::int32_t batch = 0;  ///< 0: batch_entries

  std::int64_t num_rows() const { return static_cast<std::int64_t>(q_lens.size()); }
  std::int32_t num_tiles() const {
    const std::int32_t longest = *std::max_element(q_lens.begin(), q_lens.end());
    return (longest + block_q - 1) / block_q;
  }
};

struct List {
  std::vector<KvIndexEntry> entries;
  std::int32_t num_full = 0;
  std::int32_t num_shared = 0;  ///< number of first entries that it shares with another list
  friend bool operator==(const List&, const List&) = default;
};

std::vector<List> lists_by_definition(const Case& c) {
  std::vector<List> lists;
  for (std::int64_t row = 0; row < c.num_rows(); ++row) {
    for (std::int32_t tile = 0; tile < c.num_tiles(); ++tile) {
      const std::int32_t begin = tile * c.block_q;
      const std::int32_t end = std::min(begin + c.block_q, c.q_lens[static_cast<std::size_t>(row)]);
      List full, part;
      for (std::int64_t key = 0; key < c.kv_len && begin < end; ++key) {
        const Interval queries = c.kept[static_cast<std::size_t>(row * c.kv_len + key)];
        const std::int32_t from = std::max(queries.begin, begin), to = std::min(queries.end, end);
        if (from >= to) continue;
        List& to_list = from == begin && to == end ? full : part;
        to_list.entries.push_back({static_cast<std::int32_t>(key),
                                   static_cast<std::uint16_t>(from - begin),
                                   static_cast<std::uint16_t>(to - begin)});
      }
      full.num_full = static_cast<std::int32_t>(full.entries.size());
      full.entries.insert(full.entries.end(), part.entries.begin(), part.entries.end());
      lists.push_back(std::move(full));
    }
  }
  return lists;
}

template <class T>
std::vector<T> elements_of(const std::vector<std::uint8_t>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// The place of a list by KvIndexListOnDevice, in entries.
struct Place {
  std::int64_t first_entry, distance;
  std::int32_t num_shared;
};
Place place_of(const gpu::KvIndexListOnDevice& list) {
  constexpr int kEntryBits = gpu::KvIndexListOnDevice::kEntryBits;
  constexpr int kChunkBits = gpu::KvIndexListOnDevice::kChunkBits;
  const std::uint64_t shared = list.place >> kEntryBits;
  return {static_cast<std::int64_t>(list.place & ((std::uint64_t{1} << kEntryBits) - 1)),
          static_cast<std::int64_t>(shared >> kChunkBits) * 8,
          static_cast<std::int32_t>(shared & ((1U << kChunkBits) - 1)) * 128};
}

// The lists that the kernels make. They do not write the row ranges of keys that all rows of a tile
// see, since these are known.
struct Made {
  std::vector<List> lists;
  std::uint32_t status = 0;
};
Made lists_on_gpu(const Case& c, std::int64_t room) {
  const std::size_t num_lists = static_cast<std::size_t>(c.num_rows() * c.num_tiles());
  std::vector<std::int64_t> first(num_lists + 1);
  for (std::size_t i = 0; i < first.size(); ++i) {
    first[i] = static_cast<std::int64_t>(i) * room;
  }
  const auto num_entries = static_cast<std::size_t>(first.back());
  const DeviceArray<Interval> kept(c.kept);
  const DeviceArray<std::int32_t> q_lens(c.q_lens);
  const DeviceArray<std::int64_t> first_entries(first);
  const GuardedBytes workspace(
      static_cast<std::size_t>(lists_workspace_bytes(c.num_rows(), c.kv_len)));
  const GuardedBytes lists(num_lists * sizeof(gpu::KvIndexListOnDevice)), keys(num_entries * 4),
      rows(num_entries * 2);
  const DeviceArray<std::uint32_t> status(std::vector<std::uint32_t>{0});
  const DeviceArray<std::int32_t> counter(std::vector<std::int32_t>{7});
  ListsCall call;
  call.kept = kept.data();
  call.num_rows = c.num_rows();
  call.kv_len = c.kv_len;
  call.q_lens = q_lens.data();
  call.num_tiles = c.num_tiles();
  call.block_q = c.block_q;
  call.batch_entries = c.batch != 0 ? c.batch : batch_entries(room, c.block_q);
  call.first_entries = first_entries.data();
  call.workspace = workspace.as<void>();
  call.lists = lists.as<gpu::KvIndexListOnDevice>();
  call.keys = keys.as<std::int32_t>();
  call.rows = rows.as<RowRange>();
  call.status = status.data();
  call.counter = counter.data();
  const Result<void> done = make_lists(call, nullptr);
  EXPECT_TRUE(done) << done.error().message;
  EXPECT_EQ(counter.to_host().front(), 0);
  Made made;
  made.status = status.to_host().front();
  workspace.to_host();
  const auto all_lists = elements_of<gpu::KvIndexListOnDevice>(lists.to_host());
  const auto all_keys = elements_of<std::int32_t>(keys.to_host());
  const auto all_rows = elements_of<RowRange>(rows.to_host());
  for (std::size_t i = 0; i < num_lists; ++i) {
    const gpu::KvIndexListOnDevice& list = all_lists[i];
    const Place place = place_of(list);
    List out{{}, list.num_full, place.num_shared};
    EXPECT_EQ(place.first_entry + place.num_shared, first[i]);
    EXPECT_EQ(place.distance % room, place.num_shared == 0 ? 0 : (room - place.num_shared) % room);
    EXPECT_LE(place.num_shared, list.num_full);
    const auto row = static_cast<std::int32_t>(i) / c.num_tiles();
    const std::int32_t tile = static_cast<std::int32_t>(i) % c.num_tiles();
    const std::int32_t num_rows =
        std::min(c.block_q, c.q_lens[static_cast<std::size_t>(row)] - tile * c.block_q);
    for (std::int32_t e = 0; e < list.num_entries; ++e) {
      const auto at = static_cast<std::size_t>(place.first_entry + e);
      const std::size_t key_at =
          at - static_cast<std::size_t>(e < place.num_shared ? place.distance : 0);
      const bool is_written = e >= list.num_full;
      const RowRange range =
          is_written ? all_rows[at] : RowRange{0, static_cast<std::uint8_t>(num_rows)};
      out.entries.push_back({all_keys[key_at], range.begin, range.end});
    }
    made.lists.push_back(std::move(out));
  }
  return made;
}

// Sorts the full entries of a list by key. The kernels put the keys that several tiles share first,
// in whole index tiles, and then the other keys that all rows of the tile see. Each of the two
// parts must be sorted by key.
void put_in_order(List& list) {
  const auto by_key = [](const KvIndexEntry& a, const KvIndexEntry& b) { return a.key < b.key; };
  const auto begin = list.entries.begin(), end = begin + list.num_full;
  const auto rest = std::is_sorted_until(begin, end, by_key);
  if (rest != end) EXPECT_EQ((rest - begin) % 128, 0);
  if (list.num_shared > 0) EXPECT_TRUE(rest == end || rest - begin == list.num_shared);
  EXPECT_TRUE(std::is_sorted(rest, end, by_key));
  std::inplace_merge(begin, rest, end, by_key);
  list.num_shared = 0;
}

void expect_lists(const Case& c) {
  const std::vector<List> expected = lists_by_definition(c);
  std::size_t most = 1;
  for (const List& list : expected) most = std::max(most, list.entries.size());
  Made made = lists_on_gpu(c, static_cast<std::int64_t>((most + 7) / 8 * 8));
  EXPECT_EQ(made.status, 0U);
  ASSERT_EQ(made.lists.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(made.lists[i].num_full, expected[i].num_full) << "list " << i;
    put_in_order(made.lists[i]);
    ASSERT_EQ(made.lists[i], expected[i]) << "list " << i;
  }
}

TEST(DeviceLists, EqualTheDefinition) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(1);
  for (const auto& [kv_len, q_len] : std::vector<std::pair<std::int64_t, std::int32_t>>{
           {1, 1}, {127, 128}, {128, 127}, {2048, 2048}, {2049, 4097}, {9000, 3000}, {700, 9001}}) {
    for (const int longest_life : {1, 100, 5000}) {
      for (const int one_in : {1, 3, 300}) {
        for (const std::int32_t block_q : {128, 32, 16}) {
          SCOPED_TRACE(testing::Message()
                       << kv_len << " keys, " << q_len << " queries, life " << longest_life
                       << ", one in " << one_in << ", tiles of " << block_q);
          Case c = gpu_test::random_rows<Case>(random, kv_len, q_len, 3, longest_life, one_in);
          c.block_q = block_q;
          expect_lists(c);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(DeviceLists, BatchesDoNotChangeThem) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(2);
  Case c = gpu_test::random_rows<Case>(random, 30000, 10000, 2, 8000, 1);
  for (const std::int32_t batch : {1024, 2000, 6144, 14336}) {
    SCOPED_TRACE(batch);
    c.batch = batch;
    expect_lists(c);
  }
}

TEST(DeviceLists, MoreKeySegmentsThanAWindow) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(3);
  expect_lists(gpu_test::random_rows<Case>(random, 2'200'000, 300, 1, 200, 40));
}

TEST(DeviceLists, KeysThatLiveFromTheStart) {
  FDMA_SKIP_WITHOUT_HOPPER();
  // A prefix that every query keeps, and documents that begin and end inside tiles.
  Case c;
  c.kv_len = 3000;
  c.q_lens = {3000};
  for (std::int32_t key = 0; key < 3000; ++key) {
    const std::int32_t document = std::max(key / 333 * 333, 0);
    c.kept.push_back(key < 200 ? Interval{0, 3000}
                               : Interval{document, std::min(document + 333, 3000)});
  }
  expect_lists(c);
}

// The first `num_long` keys are seen by all queries. Each tile has `num_short` others, which all
// its queries see.
Case long_and_short_lives(std::vector<std::int32_t> q_lens, std::int32_t block_q, int num_long,
                          int num_short) {
  Case c;
  c.block_q = block_q;
  c.batch = 14336;
  c.q_lens = std::move(q_lens);
  c.kv_len = num_long + static_cast<std::int64_t>(c.num_tiles()) * num_short;
  for (const std::int32_t q_len : c.q_lens) {
    for (int i = 0; i < num_long; ++i) c.kept.push_back({0, q_len});
    for (std::int32_t tile = 0; tile < c.num_tiles(); ++tile) {
      const std::int32_t begin = std::min(tile * block_q, q_len);
      for (int i = 0; i < num_short; ++i) {
        c.kept.push_back({begin, std::min(begin + block_q, q_len)});
      }
    }
  }
  return c;
}

TEST(DeviceLists, ShareWholeIndexTiles) {
  FDMA_SKIP_WITHOUT_HOPPER();
  for (const int num_long : {0, 1, 127, 128, 129, 255, 256, 257, 1000, 4000}) {
    for (const int num_short : {0, 1, 40, 300}) {
      for (const std::int32_t block_q : {128, 32}) {
        // The rows have groups of 16 tiles, one group whose last tile is not whole, and one group
        // of one tile. The last row has no queries.
        const std::vector<std::int32_t> q_lens{block_q * 16 * 3, block_q * 32 - 5, block_q * 16 + 1,
                                               0};
        SCOPED_TRACE(testing::Message() << num_long << " long lives, " << num_short
                                        << " of each tile, tiles of " << block_q);
        const Case c = long_and_short_lives(q_lens, block_q, num_long, num_short);
        expect_lists(c);
        if (testing::Test::HasFatalFailure()) return;
        const Made made = lists_on_gpu(c, std::max((num_long + num_short + 7) / 8 * 8, 8));
        for (std::size_t i = 0; i < made.lists.size(); ++i) {
          const std::int32_t tile = static_cast<std::int32_t>(i) % c.num_tiles();
          const std::int32_t q_len = q_lens[i / static_cast<std::size_t>(c.num_tiles())];
          const bool is_sharing = tile % 16 > 0 && tile * block_q < q_len;
          ASSERT_EQ(made.lists[i].num_shared, is_sharing ? num_long / 128 * 128 : 0)
              << "list " << i;
        }
      }
    }
  }
}

// With a moving window of keys, four tiles have more keys in common than sixteen have.
TEST(DeviceLists, ShareByFoursWhereKeysDie) {
  FDMA_SKIP_WITHOUT_HOPPER();
  constexpr std::int32_t kLength = 9000, kLife = 2048;
  Case c;
  c.kv_len = kLength;
  c.q_lens = {kLength};
  for (std::int32_t key = 0; key < kLength; ++key) {
    c.kept.push_back({key, std::min(key + kLife, kLength)});
  }
  expect_lists(c);
  const Made made = lists_on_gpu(c, kLife + 128);
  for (std::size_t tile = 16; tile < 64; ++tile) {
    // kLife - 511 keys are live from the first query of four tiles to the last.
    ASSERT_EQ(made.lists[tile].num_shared, tile % 4 == 0 ? 0 : 12 * 128) << "tile " << tile;
  }
}

TEST(DeviceLists, SayWhenOneIsTooLong) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 random(4);
  const Case c = gpu_test::random_rows<Case>(random, 1000, 1000, 1, 1000, 1);
  const Made made = lists_on_gpu(c, 104);
  EXPECT_EQ(made.status, kListTooLong);
  for (const List& list : made.lists) EXPECT_LE(list.entries.size(), 104U);
}

// A causal selection of fewer keys than a tile has. No tile is full, so that plans list every key.
TEST(DeviceLists, EqualThoseOfTheHostsPlans) {
  FDMA_SKIP_WITHOUT_HOPPER();
  constexpr std::int64_t kLength = 5000, kWidth = 100;
  ColumnIntervals causal{kLength, kLength, {0}, {}};
  for (std::int32_t key = 0; key < kLength; ++key) {
    causal.intervals.push_back({key, kLength});
    causal.offsets.push_back(key + 1);
  }
  std::mt19937 random(5);
  std::vector<float> scores(kLength);
  for (float& score : scores) score = static_cast<float>(random() % 100000);
  const auto kept = select_topk(scores, kWidth, causal);
  ASSERT_TRUE(kept);

  MaskShape shape;
  shape.q_lens = shape.kv_lens = {kLength};
  const auto mask =
      make_block_mask(shape, {128, 128}, {segment_from_columns(*kept, {128, 128})}, {{0}});
  AttentionShape tensors;
  tensors.q_lens = tensors.kv_lens = {kLength};
  tensors.head_dim = tensors.head_dim_v = 64;
  PlanOptions options;
  options.columns = ColumnMode::gather;
  const auto plan = make_plan(mask, tensors, {}, options);
  ASSERT_TRUE(plan) << plan.error().message;

  Case c;
  c.kv_len = kLength;
  c.q_lens = {static_cast<std::int32_t>(kLength)};
  for (std::size_t key = 0; key < kLength; ++key) {
    const bool is_kept = kept->offsets[key] < kept->offsets[key + 1];
    c.kept.push_back(is_kept ? kept->intervals[static_cast<std::size_t>(kept->offsets[key])]
                             : Interval{0, 0});
  }
  const std::vector<TileRoom> rooms = tile_rooms(causal, kWidth, 128);
  Made made = lists_on_gpu(c, 232);
  const auto& segments = std::get<SegmentPlan>(plan->form);
  ASSERT_EQ(made.lists.size(), segments.kv_index_lists.size());
  for (std::size_t i = 0; i < made.lists.size(); ++i) {
    const KvIndexList& list = segments.kv_index_lists[i];
    ASSERT_EQ(made.lists[i].num_full, list.num_full);
    put_in_order(made.lists[i]);
    ASSERT_EQ(made.lists[i].entries,
              std::vector<KvIndexEntry>(
                  segments.kv_index_entries.begin() + list.first_entry,
                  segments.kv_index_entries.begin() + list.first_entry + list.num_entries));
    EXPECT_LE(list.num_entries, rooms[i].num_entries);
  }
}

}  // namespace
}  // namespace fdma::dynamic_mask
