// Few and small trials for compute-sanitizer, whose tools slow a kernel down a hundredfold: every
// kind of segment, tails, key bias, both head sizes. References are computed on the host, so that
// attention is the only kernel.
#include <gtest/gtest.h>

#include "gpu_machine.hpp"
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
