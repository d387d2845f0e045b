// Tests LoweringReport and LowerOptions::on_progress.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"

namespace fdma {
namespace {

using testing::HasSubstr;

BlockMask compiled(const std::string& spec, std::int64_t length, LowerOptions options,
                   std::int64_t num_heads = 1) {
  const auto expr = parse_mask(spec);
  EXPECT_TRUE(expr) << expr.error().message;
  auto mask = compile(*expr, {}, MaskShape{1, num_heads, {length}, {length}}, options);
  EXPECT_TRUE(mask) << mask.error().message;
  return *std::move(mask);
}

LoweringReport report_of(const std::string& spec, std::int64_t length, LowerOptions options = {},
                         std::int64_t num_heads = 1) {
  LoweringReport report;
  options.report = &report;
  compiled(spec, length, options, num_heads);
  return report;
}

TEST(LoweringReport, NamesTheEngineThatMadeTheMask) {
  const LoweringReport report = report_of("causal", 1024);
  ASSERT_EQ(report.programs.size(), 1u);
  const ProgramReport& program = report.programs[0];
  EXPECT_EQ(program.engine, LoweringEngine::interval);
  EXPECT_EQ(program.method, "bands of rows: 1, key intervals: 1");
  EXPECT_TRUE(program.declined.empty());
  EXPECT_EQ(program.num_tiles, 64);
  EXPECT_EQ(program.num_evaluated_tiles, 0);
}

TEST(LoweringReport, SaysWhyIntervalFormDeclined) {
  const LoweringReport report = report_of("causal & (q * k) % 7 < 3", 1024);
  ASSERT_EQ(report.programs.size(), 1u);
  const ProgramReport& program = report.programs[0];
  EXPECT_EQ(program.engine, LoweringEngine::box);
  ASSERT_FALSE(program.declined.empty());
  EXPECT_EQ(program.declined[0].engine, LoweringEngine::interval);
  EXPECT_THAT(program.declined[0].reason, HasSubstr("q * k"));
  EXPECT_THAT(program.method, HasSubstr("cell by cell"));
}

// The 28 tiles above the diagonal are empty; those in a box of four are decided by bounds, the others
// by their numbers. The product makes every other tile new.
TEST(LoweringReport, CountsTilesByTheWayTheyWereDecided) {
  LowerOptions options;
  options.engine = LoweringEngine::box;
  const ProgramReport program = report_of("causal & (q * k) % 7 < 3", 1024, options).programs[0];
  EXPECT_EQ(program.num_tiles, 64);
  EXPECT_EQ(program.num_bounded_tiles, 16);
  EXPECT_EQ(program.num_repeated_tiles, 12);
  EXPECT_EQ(program.num_evaluated_tiles, 36);
}

TEST(LoweringReport, CountsTilesThatRepeat) {
  LowerOptions options;
  options.engine = LoweringEngine::box;
  options.num_threads = 1;
  const ProgramReport program = report_of("bitand(q, k) == 0", 4096, options).programs[0];
  EXPECT_EQ(program.num_tiles, 1024);
  EXPECT_EQ(program.num_evaluated_tiles, 1);
  EXPECT_EQ(program.num_bounded_tiles + program.num_repeated_tiles, 1023);
}

TEST(LoweringReport, HasOneEntryForEachProgram) {
  const LoweringReport report = report_of("k <= q & q - k < 32 * (h + 1)", 512, {}, 4);
  EXPECT_EQ(report.programs.size(), 4u);
}

TEST(LowerProgress, EndsAtAllTileRowsAndNeverDescends) {
  for (const char* spec : {"causal", "causal & (q * k) % 7 < 3"}) {
    for (const int num_threads : {1, 4}) {
      std::vector<std::pair<std::int64_t, std::int64_t>> seen;
      LowerOptions options;
      options.num_threads = num_threads;
      options.on_progress = [&](std::int64_t done, std::int64_t total) {
        seen.emplace_back(done, total);
      };
      compiled(spec, 4000, options);
      ASSERT_FALSE(seen.empty());
      EXPECT_EQ(seen.back(), (std::pair<std::int64_t, std::int64_t>(32, 32)));
      for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_LE(seen[i - 1].first, seen[i].first);
    }
  }
}

}  // namespace
}  // namespace fdma
