// The segment iterator gives the same tiles on the device as on the host, for the plans of the mask
// suite.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "backend/mask_cases.hpp"
#include "backend/pattern_cases.hpp"
#include "device_array.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::segments_of;

using gpu_test::DeviceArray;

// One thread for each work tile writes its steps from first_step[work tile] on, and their number.
__global__ void walk_work_tiles(const WorkTile* work_tiles, std::int64_t num_work_tiles,
                                const PlanSegment* segments, PatternArrays patterns,
                                const std::int64_t* first_step, TileStep* steps,
                                std::int64_t* num_steps) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= num_work_tiles) return;
  const std::int64_t room = first_step[i + 1] - first_step[i];
  std::int64_t count = 0;
  TileStep step;
  for (SegmentIterator it(segments, work_tiles[i]); it.next(step, patterns); ++count) {
    if (count < room) steps[first_step[i] + count] = step;
  }
  num_steps[i] = count;
}

// Says what differs between the two walks; empty if nothing does. Adds the number of compared steps
// to `num_compared`.
std::string compare_walks(const AttentionPlan& plan, std::int64_t& num_compared) {
  std::vector<TileStep> wanted;
  std::vector<std::int64_t> first_step{0};
  for (const WorkTile& work_tile : segments_of(plan).work_tiles) {
    TileStep step;
    for (SegmentIterator it(segments_of(plan).segments.data(), work_tile);
         it.next(step, segments_of(plan).pattern_arrays());)
      wanted.push_back(step);
    first_step.push_back(static_cast<std::int64_t>(wanted.size()));
  }
  const DeviceArray<WorkTile> work_tiles(segments_of(plan).work_tiles);
  const DeviceArray<PlanSegment> segments(segments_of(plan).segments);
  const DeviceArray<PlanPattern> patterns(segments_of(plan).patterns);
  const DeviceArray<PatternEntry> entries(segments_of(plan).pattern_entries);
  const DeviceArray<std::int64_t> offsets(first_step), counts(segments_of(plan).work_tiles.size());
  const DeviceArray<TileStep> steps(wanted.size());
  const auto num_work_tiles = static_cast<std::int64_t>(segments_of(plan).work_tiles.size());
  if (num_work_tiles > 0) {
    walk_work_tiles<<<static_cast<unsigned>(ceil_div(num_work_tiles, 128)), 128>>>(
        work_tiles.data(), num_work_tiles, segments.data(), {patterns.data(), entries.data()},
        offsets.data(), steps.data(), counts.data());
    gpu_test::require(cudaGetLastError(), "walk_work_tiles");
  }
  const std::vector<TileStep> got = steps.to_host();
  const std::vector<std::int64_t> got_counts = counts.to_host();
  for (std::size_t i = 0; i < segments_of(plan).work_tiles.size(); ++i) {
    if (got_counts[i] != first_step[i + 1] - first_step[i])
      return "work tile " + std::to_string(i) + ": another number of tiles";
    for (auto s = static_cast<std::size_t>(first_step[i]);
         s < static_cast<std::size_t>(first_step[i + 1]); ++s) {
      if (got[s].kind != wanted[s].kind || got[s].data_index != wanted[s].data_index ||
          got[s].tile != wanted[s].tile || got[s].offset != wanted[s].offset)
        return "work tile " + std::to_string(i) + ": another tile at step " + std::to_string(s);
    }
  }
  num_compared += static_cast<std::int64_t>(wanted.size());
  return {};
}

class SegmentIteratorOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&num_devices);
    if (error != cudaSuccess) {
      cudaGetLastError();
      GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    }
    if (num_devices == 0) GTEST_SKIP() << "no GPU: cudaGetDeviceCount found none";
  }
};

TEST_F(SegmentIteratorOnDevice, WalksThePlansOfTheMaskSuiteAsTheHostDoes) {
  std::int64_t num_compared = 0;
  for (const BlockShape tile : {BlockShape{128, 128}, {64, 128}, {128, 64}, {16, 16}}) {
    for (const testing::MaskCase& each : testing::suite_cases(300, 500, {128, 128})) {
      for (const ColumnMode mode : {ColumnMode::scan, ColumnMode::gather}) {
        PlanOptions options;
        options.tile = tile;
        options.columns = mode;
        const auto plan = make_plan(each.mask, testing::shape_for(each.mask, 2, 4, 2), {}, options);
        ASSERT_TRUE(plan) << each.name;
        EXPECT_EQ(compare_walks(*plan, num_compared), "") << each.name;
      }
    }
  }
  EXPECT_GT(num_compared, 10000);
}

TEST_F(SegmentIteratorOnDevice, WalksKvIndexListsAndWorkTilesWithoutKeysAsTheHostDoes) {
  std::mt19937 rng(6);
  std::int64_t num_compared = 0;
  for (int trial = 0; trial < 20; ++trial) {
    testing::Cells cells = testing::random_live_ranges(rng, 400, 900, 2);
    for (std::int64_t q = 0; q < 130; ++q)
      for (std::int64_t k = 0; k < 900; ++k) cells.at(q, k) = 0;
    const testing::MaskCase each = testing::case_of("live ranges", cells, {128, 128});
    PlanOptions options;
    options.columns = ColumnMode::gather;
    const auto plan = make_plan(each.mask, testing::shape_for(each.mask, 1, 2, 1), {}, options);
    ASSERT_TRUE(plan);
    ASSERT_GT(plan->counts.empty_items, 0);
    EXPECT_EQ(compare_walks(*plan, num_compared), "");
  }
  EXPECT_GT(num_compared, 100);
}

TEST_F(SegmentIteratorOnDevice, WalksPatternsAsTheHostDoes) {
  std::mt19937 rng(7);
  std::int64_t num_compared = 0;
  std::size_t num_patterns = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const testing::MaskCase each = testing::random_pattern_mask(rng);
    PlanOptions options;
    options.tile = each.mask.block;
    options.columns = ColumnMode::scan;
    const auto plan = make_plan(each.mask, testing::shape_for(each.mask, 1, 2, 1), {}, options);
    ASSERT_TRUE(plan);
    num_patterns += segments_of(*plan).patterns.size();
    EXPECT_EQ(compare_walks(*plan, num_compared), "") << each.name;
  }
  EXPECT_GT(num_compared, 1000);
  EXPECT_GT(num_patterns, 50U);
}

}  // namespace
}  // namespace fdma
