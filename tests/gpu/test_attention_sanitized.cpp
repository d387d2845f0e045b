// Few and small trials for compute-sanitizer, whose tools slow a kernel down a hundredfold: every
// kind of segment, gathered and reordered keys, tails, key bias, both head sizes. References are
// computed on the host, so that attention is the only kernel.
#include <gtest/gtest.h>

#include "gpu_machine.hpp"
#include "scattered_cases.hpp"
#include "trial_cases.hpp"

namespace fdma {
namespace {

TEST(AttentionSanitized, EveryKindOfSegment) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuMachine machine(gpu_test::ReferenceOn::host);
  PlanCounts counts;
  for (const testing::TrialCase& trial : testing::small_trials()) {
    EXPECT_EQ(testing::check_trial(machine, *trial.mask, trial.heads, trial.choice, &counts), "");
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
}

TEST(AttentionSanitized, GatheredKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuMachine machine(gpu_test::ReferenceOn::host);
  PlanCounts counts;
  const std::vector<testing::MaskCase> masks = testing::scattered_cases(200, 600, 5);
  for (std::size_t i = 0; i < masks.size(); i += 3) {
    testing::TrialChoice choice;
    choice.columns = ColumnMode::gather;
    choice.head_dim = i % 2 == 0 ? 128 : 64;
    choice.has_bias = i % 4 == 2;
    choice.rows_per_head = 24;
    EXPECT_EQ(testing::check_trial(machine, masks[i], {1, 2, 1}, choice, &counts), "");
  }
  EXPECT_GT(counts.gather_chunks, 0);
}

TEST(AttentionSanitized, ReorderedKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuMachine machine(gpu_test::ReferenceOn::host);
  PlanCounts counts;
  const std::vector<testing::MaskCase> masks = testing::scattered_cases(200, 600, 6);
  for (std::size_t i = 1; i < masks.size(); i += 3) {
    testing::TrialChoice choice;
    choice.columns = ColumnMode::reorder;
    choice.head_dim = i % 2 == 0 ? 128 : 256;
    choice.has_bias = i % 4 == 3;
    choice.rows_per_head = 24;
    EXPECT_EQ(testing::check_trial(machine, masks[i], {1, 2, 1}, choice, &counts), "");
  }
  EXPECT_GT(counts.moved_keys, 0);
}

TEST(AttentionSanitized, LengthsAtTheEdgesOfTiles) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuMachine machine(gpu_test::ReferenceOn::host);
  const std::vector<testing::TrialCase> trials = testing::tile_count_trials();
  for (std::size_t i = 0; i < trials.size(); i += 6) {
    testing::TrialChoice choice = trials[i].choice;
    choice.rows_per_head = 16;
    EXPECT_EQ(testing::check_trial(machine, *trials[i].mask, trials[i].heads, choice), "");
  }
}

}  // namespace
}  // namespace fdma
