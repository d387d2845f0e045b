// Tests the calibration of what plans add to their work tiles without a GPU: its plans, and fits on
// the times of a known device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <variant>
#include <vector>

#include "calibrate/added_costs.hpp"
#include "dynamic_mask/kv_index_list_room.hpp"
#include "fdma/kernels/estimate.hpp"
#include "plan/plan_forms.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

using testing::segments_of;

constexpr int kWorkers = 132;

std::vector<AddedPlan> plans_of(std::int32_t head_dim = 128) {
  return *added_plans(DType::bfloat16, head_dim, kWorkers);
}

TEST(AddedPlans, DifferFromPlainOnesInOneCost) {
  const std::vector<AddedPlan> plans = plans_of();
  int num_split = 0, num_moved = 0;
  for (const AddedPlan& each : plans) {
    const Result<void> valid = validate(each.plan);
    ASSERT_TRUE(valid) << valid.error().message;
    const AddedPlan& plain = plans[each.plain];
    ASSERT_FALSE(plain.added);
    if (!each.added) continue;
    EXPECT_EQ(each.plan.shape, plain.plan.shape);
    const SegmentPlan& segments = segments_of(each.plan);
    EXPECT_EQ(each.plan.counts.full_tiles, plain.plan.counts.full_tiles);
    EXPECT_DOUBLE_EQ(each.added->work_tiles * kWorkers,
                     static_cast<double>(each.plan.num_work_tiles() - plain.plan.num_work_tiles()));
    EXPECT_EQ(each.added->combined_rows, static_cast<double>(combined_rows(each.plan, segments)));
    EXPECT_EQ(each.added->moved_keys, static_cast<double>(each.plan.counts.moved_keys));
    EXPECT_EQ(segments.work_tiles.size() % kWorkers, 0U);
    for (const WorkTile& work_tile : segments.work_tiles) {
      EXPECT_EQ(work_tile.num_tiles, segments.work_tiles.front().num_tiles);
    }
    num_split += segments.split_rows.empty() ? 0 : 1;
    num_moved += segments.kv_permutations.empty() ? 0 : 1;
  }
  EXPECT_EQ(num_split, 6);
  EXPECT_EQ(num_moved, 2);
}

TEST(FitAdded, FindsWhatTheEstimatorWasGiven) {
  DeviceProfile known = *shipped_profile("h200");
  known.burst_us = known.sustained_us = 0;
  known.memory_bytes_per_us = 1e12;
  for (KernelCosts& kernel : known.kernels) {
    kernel.combine_us = 3.5;
    kernel.combine_row_us = 2e-4;
    kernel.move_us = 4.25;
    kernel.moved_key_us = 3e-4;
    kernel.tiles.front().split_us = 0.75;
  }
  for (const std::int32_t head_dim : {64, 128, 256}) {
    const std::vector<AddedPlan> plans = plans_of(head_dim);
    std::vector<double> times_us;
    std::vector<AddedWork> calls;
    for (const AddedPlan& each : plans) {
      times_us.push_back(estimate_plan(each.plan, known)->time_us);
      if (!each.added) continue;
      calls.push_back(*each.added);
      calls.back().us = times_us.back() - times_us[each.plain];
    }
    const KernelCosts kernel = *kernel_costs(known, Direction::forward, DType::bfloat16, head_dim);
    const AddedCosts fitted = fit_added(calls, kernel.tiles.front().item_us);
    EXPECT_NEAR(fitted.combine_us, 3.5, 1e-3);
    EXPECT_NEAR(fitted.combine_row_us, 2e-4, 1e-7);
    EXPECT_NEAR(fitted.split_us, 0.75, 1e-3);
    EXPECT_NEAR(fitted.move_us, 4.25, 1e-3);
    EXPECT_NEAR(fitted.moved_key_us, 3e-4, 1e-7);
  }
}

TEST(FitAdded, CostsWithoutCallsAreNone) {
  const AddedCosts none = fit_added({}, 1);
  EXPECT_EQ(none.combine_us + none.combine_row_us + none.split_us, 0);
  EXPECT_EQ(none.move_us + none.moved_key_us, 0);
}

TEST(FitLists, FindsLaunchListAndEntry) {
  std::vector<ListsWork> calls;
  for (const auto& [tokens, w, heads] :
       {std::tuple{4096, 128, 8}, std::tuple{32768, 64, 32}, std::tuple{32768, 2048, 32}}) {
    ListsWork work = causal_lists(tokens, w, heads);
    work.us = 5 + 2e-4 * work.lists + 1.5e-6 * work.entries;
    calls.push_back(work);
  }
  const ListCosts fitted = fit_lists(calls);
  EXPECT_NEAR(fitted.list_launch_us, 5, 1e-3);
  EXPECT_NEAR(fitted.list_us, 2e-4, 1e-6);
  EXPECT_NEAR(fitted.list_entry_us, 1.5e-6, 1e-8);
}

TEST(CausalLists, AreThoseThatAPlanHasRoomFor) {
  for (const std::int64_t w : {1, 128, 1000}) {
    ColumnIntervals causal{1900, 1900, {0}, {}};
    for (std::int32_t key = 0; key < 1900; ++key) {
      causal.intervals.push_back({key, 1900});
      causal.offsets.push_back(key + 1);
    }
    double entries = 0;
    const auto rooms = dynamic_mask::tile_rooms(causal, w, 128);
    for (const dynamic_mask::TileRoom& room : rooms) {
      entries += static_cast<double>(room.num_entries);
    }
    const ListsWork work = causal_lists(1900, w, 3);
    EXPECT_EQ(work.lists, 3 * static_cast<double>(rooms.size()));
    EXPECT_EQ(work.entries, 3 * entries);
  }
}

TEST(ShareMasks, AreAllPairsAndCausal) {
  const std::vector<BlockMask> masks = share_masks();
  ASSERT_EQ(masks.size(), 2U);
  const auto pairs = [](const BlockMask& mask) {
    return count_tiles(std::get<std::vector<SegmentMask>>(mask.groups).front()).allowed_pairs;
  };
  EXPECT_EQ(pairs(masks[0]), std::int64_t{4096} * 4096);
  EXPECT_EQ(pairs(masks[1]), std::int64_t{4096} * 4097 / 2);
}

}  // namespace
}  // namespace fdma
