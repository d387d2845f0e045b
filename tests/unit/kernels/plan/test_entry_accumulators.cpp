// Tests accumulator rows of pairs. Two entries of a key that has several share one row, and all
// rows together are those of the plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "backend/backend_cases.hpp"
#include "plan/entry_accumulators.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::has_worklist;
using testing::worklist_of;

using Rows = std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>;

// Counts the entries that add to the accumulator rows of each key of a KV head. Checks that a row
// names its key and has at most `most` entries.
Rows entries_of_keys(const KvWorklist& lists, int most) {
  Rows counts;
  std::map<std::int32_t, int> rows;
  for (const KvWorkTile& work_tile : lists.work_tiles) {
    for (std::int32_t i = 0; i < kWorklistTile; ++i) {
      const WorklistEntry& each =
          lists.keys[static_cast<std::size_t>(work_tile.key_tile * kWorklistTile + i)];
      if (each.key < 0 || each.accum_row == kNoAccum || work_tile.first_accum_row == kNoAccum)
        continue;
      const std::int32_t row = work_tile.first_accum_row + each.accum_row;
      const AccumKey& sum = lists.accum_keys[static_cast<std::size_t>(row)];
      EXPECT_EQ(sum.key, each.key);
      EXPECT_EQ(sum.kv_row, work_tile.batch * 2 + work_tile.kv_head);
      EXPECT_LE(++rows[row], most) << row;
      ++counts[{sum.kv_row, sum.key}];
    }
  }
  return counts;
}

TEST(EntryAccumulators, GivePairsOfEntriesARowBesideThoseOfTheirKey) {
  const testing::MaskCase mask = testing::case_of(
      "come back",
      testing::make_cells(700, 300,
                          [](auto q, auto k) { return k % 3 != 1 && (q + 7 * k) % 300 < 150; }),
      {128, 128});
  PlanOptions options;
  options.backend = Backend::sm90;
  options.direction = Direction::backward;
  options.columns = ColumnMode::reorder;
  AttentionShape shape = testing::shape_for(mask.mask, 2, 4, 2);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  const auto plan = make_plan(mask.mask, shape, {}, options);
  ASSERT_TRUE(plan && has_worklist(*plan) && !worklist_of(*plan).accum_keys.empty());
  const KvWorklist lists = with_accum_of_pairs(worklist_of(*plan));
  Rows counts = entries_of_keys(lists, 2);
  EXPECT_EQ(counts, entries_of_keys(worklist_of(*plan), 700));
  // The rows of a key follow each other, and there are no other rows.
  Rows rows;
  std::pair<std::int32_t, std::int32_t> before{-1, -1};
  for (const AccumKey& each : lists.accum_keys) {
    const std::pair key{each.kv_row, each.key};
    EXPECT_TRUE(key == before || !rows.contains(key));
    ++rows[key];
    before = key;
  }
  EXPECT_TRUE(
      std::any_of(counts.begin(), counts.end(), [](const auto& each) { return each.second > 2; }));
  for (auto& [key, count] : counts) count = (count + 1) / 2;
  EXPECT_EQ(rows, counts);
}

}  // namespace
}  // namespace fdma
