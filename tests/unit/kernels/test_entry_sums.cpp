// Rows of sums of entries: every entry of a key of several has its own, and they add up to those of
// the plan.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "entry_sums.hpp"
#include "trial_cases.hpp"

namespace fdma {
namespace {

using Rows = std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>;

// How many entries add to the sums of each key of a KV head, and that they say whose they are.
Rows entries_of_keys(const KeyLists& lists, bool are_rows_shared) {
  Rows counts;
  std::set<std::int32_t> rows;
  for (const KeyItem& item : lists.items) {
    for (std::int32_t i = 0; i < kListTile; ++i) {
      const ListedKey& each = lists.keys[static_cast<std::size_t>(item.key_tile * kListTile + i)];
      if (each.key < 0 || each.sum_row == kNoSums || item.first_sum == kNoSums) continue;
      const std::int32_t row = item.first_sum + each.sum_row;
      const SumKey& sum = lists.sum_keys[static_cast<std::size_t>(row)];
      EXPECT_EQ(sum.key, each.key);
      EXPECT_EQ(sum.kv_row, item.batch * 2 + item.kv_head);
      EXPECT_TRUE(rows.insert(row).second || are_rows_shared) << row;
      ++counts[{sum.kv_row, sum.key}];
    }
  }
  return counts;
}

TEST(EntrySums, GiveEachEntryARowBesideThoseOfItsKey) {
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
  ASSERT_TRUE(plan && plan->is_listed() && !plan->key_lists.sum_keys.empty());
  const KeyLists lists = with_sums_of_entries(plan->key_lists);
  const Rows counts = entries_of_keys(lists, false);
  EXPECT_EQ(counts, entries_of_keys(plan->key_lists, true));
  // Rows of a key follow each other, and there are no others.
  Rows rows;
  std::pair<std::int32_t, std::int32_t> before{-1, -1};
  for (const SumKey& each : lists.sum_keys) {
    const std::pair key{each.kv_row, each.key};
    EXPECT_TRUE(key == before || !rows.contains(key));
    ++rows[key];
    before = key;
  }
  EXPECT_EQ(rows, counts);
}

}  // namespace
}  // namespace fdma
