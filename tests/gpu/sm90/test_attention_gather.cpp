// Attention over gathered keys on the GPU against float64. The masks are learned top-k, eviction,
// tokens of each row, and regions beside tiles. The cases have packed heads, tails, biases, split
// rows and lists that are made on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "backend/backend_cases.hpp"
#include "backend/scattered_cases.hpp"
#include "gpu_fixture.hpp"
#include "plan/plan_forms.hpp"
#include "sm90/forward/attention_forward.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::MaskCase;
using testing::segments_of;

CaseChoice gathering(std::int32_t head_dim, DType dtype) {
  CaseChoice choice;
  choice.columns = ColumnMode::gather;
  choice.head_dim = head_dim;
  choice.dtype = dtype;
  return choice;
}

// Every mask of scattered keys with types, head sizes and groups of heads in turn.
TEST(GatherOnGpu, IsAsAccurateAsAnExplicitProduct) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  PlanCounts counts;
  std::uint64_t seed = 1;
  const std::pair<int, int> lengths[] = {{300, 500}, {257, 1003}, {640, 640}, {1, 900}, {129, 1}};
  for (const auto& [q_len, kv_len] : lengths) {
    for (const MaskCase& mask :
         testing::scattered_cases(q_len, kv_len, static_cast<std::uint32_t>(seed))) {
      constexpr std::int32_t kHeadDims[] = {128, 64, 96, 128, 40, 64, 128, 112};
      CaseChoice choice = gathering(kHeadDims[seed % std::size(kHeadDims)],
                                    seed % 2 == 0 ? DType::bfloat16 : DType::float16);
      if (seed % 5 == 0) choice.head_dim_v = 80;
      choice.has_bias = seed % 3 == 0;
      choice.wants_lse = seed % 7 != 0;
      choice.wants_out_low = seed % 4 < 2;
      choice.layout = seed % 4 == 0 ? testing::Layout::padded : testing::Layout::rows;
      choice.seed = seed;
      choice.rows_per_head = 160;
      const CaseHeads heads[] = {{1, 2, 2}, {2, 4, 1}, {1, 6, 2}};
      ASSERT_EQ(testing::check_case(fixture, mask, heads[seed % std::size(heads)], choice, &counts),
                "");
      ++seed;
    }
  }
  EXPECT_GT(counts.gather_chunks, 0);
  EXPECT_GT(counts.gather_entries, 0);
}

// Lists of every length near the edges of index tiles. Either all rows see all keys, or only some
// rows see the last keys.
TEST(GatherOnGpu, IsAccurateForEveryLengthOfList) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (const std::int64_t num_keys : {1,   31,  32,  33,  64,  65,  95,  97,  127, 128, 129,
                                      159, 160, 161, 192, 193, 256, 257, 300, 384, 389, 513}) {
    for (const bool are_whole : {true, false}) {
      const MaskCase mask = testing::case_of(
          "list",
          testing::make_cells(200, 3000,
                              [&](auto q, auto k) {
                                if (k % 5 != 2 || k / 5 >= num_keys) return false;
                                return are_whole || k / 5 < num_keys - 9 || q % 128 > k % 7;
                              }),
          {128, 128});
      for (const std::int32_t head_dim : {64, 128}) {
        CaseChoice choice = gathering(head_dim, DType::bfloat16);
        choice.rows_per_head = 64;
        choice.seed = static_cast<std::uint64_t>(num_keys);
        choice.has_bias = num_keys % 4 == 1 && !are_whole;
        choice.split = SplitMode::never;
        ASSERT_EQ(testing::check_case(fixture, mask, {1, 2, 2}, choice), "")
            << num_keys << " keys, head_dim " << head_dim;
      }
    }
  }
}

// All keys and values of one head are NaN, and each worker has more than three work tiles. What
// this head leaves in shared memory must not reach other heads, since only the keys of the list are
// computed in their last index tiles.
TEST(GatherOnGpu, ChunksSeeNothingOfThoseBeforeThem) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  constexpr std::int64_t kQLen = 1400;
  constexpr std::int32_t kBatch = 4, kHeads = 12, kBadHead = 5;
  const MaskCase mask = testing::case_of(
      "many",
      testing::make_cells(kQLen, kQLen, [](auto q, auto k) { return k * 7 % 9 == q / 300; }),
      {128, 128});
  for (const std::int32_t head_dim : {64, 128}) {
    for (const bool has_bias : {false, true}) {
      CaseChoice choice = gathering(head_dim, DType::bfloat16);
      choice.rows_per_head = 16;
      choice.has_bias = has_bias;
      choice.split = SplitMode::never;
      BackendAttentionCase clean(fixture, mask, {kBatch, kHeads, kHeads}, choice),
          test_case(fixture, mask, {kBatch, kHeads, kHeads}, choice);
      for (std::int64_t key = 0; key < kQLen; ++key) {
        for (std::int64_t d = 0; d < head_dim; ++d) {
          test_case.k().set(0, key, kBadHead, d, std::numeric_limits<double>::quiet_NaN());
          test_case.v().set(0, key, kBadHead, d, std::numeric_limits<double>::quiet_NaN());
        }
      }
      test_case.k().upload();
      test_case.v().upload();
      ASSERT_TRUE(clean.run());
      ASSERT_EQ(clean.check(), "");
      ASSERT_TRUE(test_case.run());
      for (std::int64_t b = 0; b < kBatch; ++b) {
        for (std::int64_t h = 0; h < kHeads; ++h) {
          if (b == 0 && h == kBadHead) continue;
          for (std::int64_t row = 0; row < kQLen; row += 13) {
            ASSERT_EQ(test_case.lse().get(b, row, h), clean.lse().get(b, row, h));
            for (std::int64_t d = 0; d < head_dim; d += 9) {
              ASSERT_EQ(test_case.out().get(b, row, h, d), clean.out().get(b, row, h, d))
                  << "batch element " << b << ", row " << row << ", head " << h;
            }
          }
        }
      }
    }
  }
}

// Index tiles of keys that follow each other, before and behind others, and at the end of the keys.
TEST(GatherOnGpu, IsAccurateWhereKeysFollowEachOther) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const auto cells = [](auto q, auto k) {
    if (k < 1280 || k >= 1800) return k % 256 >= 64 && k % 256 < 192 && k != 1900;
    return k % 5 == 0 && (k < 1700 || q % 128 > k % 7);
  };
  const MaskCase mask = testing::case_of("runs", testing::make_cells(300, 2496, cells), {128, 128});
  std::uint64_t seed = 1;
  for (const std::int32_t head_dim : {64, 72, 96, 128}) {
    for (const CaseHeads& heads : {CaseHeads{2, 2, 2}, CaseHeads{1, 8, 2}}) {
      CaseChoice choice = gathering(head_dim, seed % 2 == 0 ? DType::bfloat16 : DType::float16);
      choice.rows_per_head = 64;
      choice.has_bias = seed % 3 == 0;
      choice.split = SplitMode::never;
      choice.seed = seed++;
      ASSERT_EQ(testing::check_case(fixture, mask, heads, choice), "") << "head_dim " << head_dim;
    }
  }
}

// More index tiles of keys that follow each other than a warp looks up at once, others behind them,
// with and without several work tiles a row.
TEST(GatherOnGpu, IsAccurateWhereManyIndexTilesFollowEachOther) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const auto cells = [](auto q, auto k) {
    if (k < 35 * 256) return k % 256 >= 64 && k % 256 < 192;
    return k % 5 == 0 && q % 128 > k % 7;
  };
  for (const std::int64_t q_len : {16, 300}) {
    const MaskCase mask =
        testing::case_of("runs", testing::make_cells(q_len, 9300, cells), {128, 128});
    for (const std::int32_t head_dim : {64, 128}) {
      for (const bool has_bias : {false, true}) {
        CaseChoice choice = gathering(head_dim, DType::bfloat16);
        choice.rows_per_head = 16;
        choice.has_bias = has_bias;
        PlanCounts counts;
        ASSERT_EQ(testing::check_case(fixture, mask, {1, 4, 2}, choice, &counts), "")
            << q_len << " queries, head_dim " << head_dim;
        EXPECT_GT(counts.gather_chunks, 35);
      }
    }
  }
}

// If elements are bfloat16, biases are terms of a matrix product. No bias may be lost, whatever its
// size and also if it is not finite. Scales have either sign.
TEST(GatherOnGpu, TakesAnyBiasAndScale) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const MaskCase& mask : testing::scattered_cases(260, 900, 51)) {
    std::uint64_t seed = 1;
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const float scale : {0.0F, 0.21F, -0.15F}) {
        for (const double bias_scale : {1e-3, 1.0, 40.0}) {
          CaseChoice choice = gathering(seed % 2 == 0 ? 64 : 128, dtype);
          choice.has_bias = true;
          choice.softmax_scale = scale;
          choice.bias_scale = bias_scale;
          choice.rows_per_head = 48;
          choice.seed = seed++;
          BackendAttentionCase test_case(fixture, mask, {1, 2, 1}, choice);
          for (std::int64_t key = 0; key < 900; key += 3)
            test_case.bias().set(0, key, 0, 0, -kInfinity);
          test_case.bias().upload();
          const auto ran = test_case.run();
          ASSERT_TRUE(ran) << ran.error().message;
          ASSERT_EQ(test_case.check(), "") << mask.name << " " << to_string(choice);
        }
      }
    }
  }
}

// More than three work tiles for each of 132 workers, of unlike lengths, some without keys.
TEST(GatherOnGpu, IsAccurateWithManyWorkTilesForEachBlock) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "many",
      testing::make_cells(
          1400, 1400,
          [](auto q, auto k) { return k <= q && q / 128 % 5 != 3 && (k * k + q / 90) % 11 == 3; }),
      {128, 128});
  for (const std::int32_t head_dim : {64, 128}) {
    CaseChoice choice = gathering(head_dim, DType::bfloat16);
    choice.rows_per_head = 48;
    EXPECT_EQ(testing::check_case(fixture, mask, {5, 10, 10}, choice), "");
  }
}

// A long row whose keys several work tiles share.
TEST(GatherOnGpu, IsAccurateWhereRowsAreSplit) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const auto cells = [](auto q, auto k) { return k % 3 == 0 && (k < 9000 || q % 16 > k % 13); };
  for (const std::int64_t q_len : {16, 128}) {
    const MaskCase mask =
        testing::case_of("long", testing::make_cells(q_len, 12000, cells), {128, 128});
    for (const std::int32_t heads_q : {2, 8}) {
      CaseChoice choice = gathering(128, DType::bfloat16);
      choice.rows_per_head = 16;
      BackendAttentionCase test_case(fixture, mask, {1, heads_q, 2}, choice);
      EXPECT_GT(test_case.plan().counts.gather_chunks, 0);
      EXPECT_GT(segments_of(test_case.plan()).split_rows.size(), 0u);
      const auto ran = test_case.run();
      ASSERT_TRUE(ran) << ran.error().message;
      EXPECT_EQ(test_case.check(), "");
    }
  }
}

TEST(GatherOnGpu, IsAccurateForHeadsAndElementsOfTheirOwn) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const std::vector<MaskCase> one = testing::scattered_cases(150, 700, 22);
  const std::vector<MaskCase> other = testing::scattered_cases(261, 390, 23);
  for (std::size_t i = 0; i + 1 < one.size(); i += 2) {
    const MaskCase mask = testing::combined(
        "heads", 2, 4, {one[i], one[i], one[i + 1], one[i], other[i], other[i], other[i], other[i]},
        {128, 128});
    CaseChoice choice = gathering(i % 4 == 0 ? 64 : 128, DType::bfloat16);
    choice.seed = i + 1;
    EXPECT_EQ(testing::check_case(fixture, mask, {2, 4, 2}, choice), "");
  }
}

TEST(GatherOnGpu, HasTheSameBitsTwice) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (const MaskCase& mask : testing::scattered_cases(300, 900, 31)) {
    BackendAttentionCase test_case(fixture, mask, {1, 4, 2}, gathering(128, DType::bfloat16));
    ASSERT_TRUE(test_case.run(0xff));
    const std::vector<unsigned char> first = test_case.result_bytes();
    ASSERT_TRUE(test_case.run(0x11));
    EXPECT_EQ(test_case.result_bytes(), first) << mask.name;
  }
}

// Runs a case with lists in buffers of the caller that are shorter than work tiles and segments
// say. At most `num_shared` keys of a list, in whole index tiles that all rows see, are stored
// apart from the others.
std::string check_device_lists(const MaskCase& mask, const CaseChoice& choice, int num_shared) {
  GpuFixture fixture;
  BackendAttentionCase test_case(fixture, mask, {1, 2, 2}, choice);
  AttentionPlan plan = test_case.plan();
  // Work tiles and segments state at least one and a half index tiles more than the lists have.
  for (PlanSegment& segment : segments_of(plan).segments) {
    if (segment.kind == PlanSegmentKind::gather) segment.end_tile += 2;
  }
  for (WorkTile& work_tile : segments_of(plan).work_tiles) work_tile.num_tiles += 2;
  std::vector<gpu::KvIndexListOnDevice> lists;
  std::vector<std::int32_t> keys;
  std::vector<uchar2> rows;
  const auto add = [&](const KvIndexEntry& entry) {
    keys.push_back(entry.key);
    rows.push_back(
        {static_cast<unsigned char>(entry.row_begin), static_cast<unsigned char>(entry.row_end)});
  };
  bool is_any_shared = false;
  for (const KvIndexList& list : segments_of(plan).kv_index_lists) {
    const auto begin = segments_of(plan).kv_index_entries.begin() + list.first_entry;
    const std::int32_t shared = std::min(num_shared, list.num_full / 128 * 128);
    is_any_shared |= shared > 0;
    const auto shared_at = static_cast<std::int64_t>(keys.size());
    std::for_each(begin, begin + shared, add);
    for (int i = 0; i < 48; ++i) add({0, 0, 0});
    const std::int64_t first_entry = static_cast<std::int64_t>(keys.size()) - shared;
    lists.push_back(
        {gpu::KvIndexListOnDevice::place_of(first_entry, shared, first_entry - shared_at),
         list.num_entries, list.num_full});
    std::for_each(begin + shared, begin + list.num_entries, add);
    while (keys.size() % kKvIndexAlignment != 0) add({0, 0, 0});
  }
  if (is_any_shared != (num_shared > 0)) return "expected other lists";
  const gpu_test::DeviceArray<gpu::KvIndexListOnDevice> d_lists(lists);
  const gpu_test::DeviceArray<std::int32_t> d_keys(keys);
  const gpu_test::DeviceArray<uchar2> d_rows(rows);
  segments_of(plan).kv_index_lists.clear();
  segments_of(plan).kv_index_entries.clear();
  const auto device_plan = gpu::upload(plan, nullptr);
  if (!device_plan) return device_plan.error().message;
  const gpu_test::Workspace workspace(sm90::forward_workspace_bytes(**device_plan));
  const Launch launch{workspace.data()};
  const auto refused =
      sm90::attention_forward(**device_plan, test_case.tensors(), launch, test_case.options());
  if (refused || refused.error().code != ErrorCode::invalid_argument) return "ran without lists";
  test_case.poison(0xff);
  const gpu::KvIndexArrays arrays{d_lists.data(), d_keys.data(), d_rows.data(), nullptr};
  const auto ran = sm90::attention_forward_with_lists(**device_plan, test_case.tensors(), launch,
                                                      test_case.options(), arrays);
  if (!ran) return ran.error().message;
  test_case.fetch();
  workspace.require_canaries();
  return test_case.check();
}

TEST(GatherOnGpu, TakesListsThatAreMadeOnTheDevice) {
  FDMA_SKIP_WITHOUT_HOPPER();
  CaseChoice choice = gathering(128, DType::bfloat16);
  choice.split = SplitMode::never;
  const MaskCase mask = testing::scattered_cases(300, 900, 41).front();
  EXPECT_EQ(check_device_lists(mask, choice, 0), "");
}

// Scattered keys, and a run of keys that TMA copies.
TEST(GatherOnGpu, TakesIndexTilesOfOtherLists) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const auto cells = [](auto q, auto k) {
    return k % 3 == 0 || (k > 700 && k < 1400) || (k % 7 == 0 && k < 5 * q);
  };
  const MaskCase mask = testing::case_of("long", testing::make_cells(300, 2500, cells), {128, 128});
  for (const int num_shared : {0, 128, 256, 640, 1280}) {
    for (const std::int32_t head_dim : {64, 128}) {
      for (const DType dtype : {DType::bfloat16, DType::float16}) {
        SCOPED_TRACE(::testing::Message() << num_shared << " keys, head_dim " << head_dim);
        CaseChoice choice = gathering(head_dim, dtype);
        choice.split = SplitMode::never;
        EXPECT_EQ(check_device_lists(mask, choice, num_shared), "");
        choice.has_bias = true;
        EXPECT_EQ(check_device_lists(mask, choice, num_shared), "");
      }
    }
  }
}

}  // namespace
}  // namespace fdma
