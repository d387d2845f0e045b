// Tests bounds of simulated schedules that hold for every list of work tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "fdma/kernels/estimate.hpp"

namespace fdma {
namespace {

/// Computes the same by the slow definition: each work tile goes to the first of the workers that
/// are free earliest.
double makespan_by_definition(const std::vector<double>& work_tiles, int num_workers) {
  std::vector<double> free_at(static_cast<std::size_t>(num_workers), 0.0);
  for (const double us : work_tiles) *std::min_element(free_at.begin(), free_at.end()) += us;
  return *std::max_element(free_at.begin(), free_at.end());
}

TEST(SimulateSchedule, GivesEachWorkTileToTheWorkerThatIsFreeFirst) {
  EXPECT_DOUBLE_EQ(simulate_schedule(std::vector<double>{3, 2, 2}, 2).makespan_us, 4);
  EXPECT_DOUBLE_EQ(simulate_schedule(std::vector<double>{2, 2, 3}, 2).makespan_us, 5);
  std::mt19937 rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> work_tiles(rng() % 60);
    for (double& us : work_tiles) us = static_cast<double>(rng() % 100);
    const int num_workers = 1 + static_cast<int>(rng() % 9);
    EXPECT_DOUBLE_EQ(simulate_schedule(work_tiles, num_workers).makespan_us,
                     makespan_by_definition(work_tiles, num_workers));
  }
}

TEST(SimulateSchedule, KeepsItsBounds) {
  std::mt19937 rng(2);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<double> work_tiles(1 + rng() % 300);
    for (double& us : work_tiles) us = static_cast<double>(rng() % 1000) / 7;
    const int num_workers = 1 + static_cast<int>(rng() % 140);
    const Schedule schedule = simulate_schedule(work_tiles, num_workers);
    const double sum = std::accumulate(work_tiles.begin(), work_tiles.end(), 0.0);
    const double longest = *std::max_element(work_tiles.begin(), work_tiles.end());
    EXPECT_EQ(schedule.num_work_tiles, static_cast<std::int64_t>(work_tiles.size()));
    EXPECT_EQ(schedule.num_workers, num_workers);
    EXPECT_DOUBLE_EQ(schedule.busy_us, sum);
    EXPECT_DOUBLE_EQ(schedule.longest_item_us, longest);
    EXPECT_GE(schedule.makespan_us * (1 + 1e-12), sum / num_workers);
    EXPECT_GE(schedule.makespan_us, longest);
    EXPECT_LE(schedule.makespan_us, (sum / num_workers + longest) * (1 + 1e-12));
    EXPECT_LE(schedule.balance(), 1 + 1e-12);
  }
}

TEST(SimulateSchedule, WorkTilesTakenAheadMayGoToTheWrongWorker) {
  EXPECT_DOUBLE_EQ(simulate_schedule(std::vector<double>{3, 2, 2}, 2, 0.5).makespan_us, 4);
  const double us = simulate_schedule(std::vector<double>{3, 2, 2}, 2, 3).makespan_us;
  EXPECT_TRUE(us == 4 || us == 5) << us;
  EXPECT_DOUBLE_EQ(simulate_schedule(std::vector<double>{1, 1, 1}, 1, 7).makespan_us, 3);
  EXPECT_DOUBLE_EQ(simulate_schedule(std::vector<double>{5, 1}, 3, 2).makespan_us, 5);
}

TEST(SimulateSchedule, WorkTilesTakenAheadKeepTheirBounds) {
  std::mt19937 rng(4);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<double> work_tiles(1 + rng() % 300);
    for (double& us : work_tiles) us = static_cast<double>(rng() % 1000) / 7;
    const int num_workers = 1 + static_cast<int>(rng() % 140);
    const double ahead_us = static_cast<double>(rng() % 300);
    const Schedule schedule = simulate_schedule(work_tiles, num_workers, ahead_us);
    EXPECT_GE(schedule.makespan_us * (1 + 1e-12), schedule.busy_us / num_workers);
    EXPECT_GE(schedule.makespan_us, schedule.longest_item_us);
    EXPECT_LE(schedule.makespan_us,
              (schedule.busy_us / num_workers + schedule.longest_item_us + ahead_us) * (1 + 1e-12));
  }
}

TEST(SimulateSchedule, OneWorkerTakesTheSum) {
  const std::vector<double> work_tiles{5, 1, 7.5, 0};
  const Schedule schedule = simulate_schedule(work_tiles, 1);
  EXPECT_DOUBLE_EQ(schedule.makespan_us, 13.5);
  EXPECT_DOUBLE_EQ(schedule.balance(), 1);
}

TEST(SimulateSchedule, NoWorkTilesTakeNoTime) {
  const Schedule schedule = simulate_schedule({}, 132);
  EXPECT_EQ(schedule.makespan_us, 0);
  EXPECT_EQ(schedule.balance(), 1);
}

TEST(SimulateSchedule, LongestFirstIsNeverFarFromTheBest) {
  // Graham's bound says at most 4/3 of the optimum, and the optimum is at least the mean load.
  std::mt19937 rng(3);
  std::vector<double> work_tiles(1000);
  for (double& us : work_tiles) us = 1 + static_cast<double>(rng() % 64);
  std::sort(work_tiles.rbegin(), work_tiles.rend());
  const Schedule schedule = simulate_schedule(work_tiles, 132);
  EXPECT_LE(schedule.makespan_us, 4.0 / 3 * std::max(schedule.busy_us / 132, 64.0));
}

}  // namespace
}  // namespace fdma
