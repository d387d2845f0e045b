// Random masks, lengths, tables and blocks: both engines and every format against the oracle.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>

#include "mask_check.hpp"
#include "random_expr.hpp"

namespace fdma::differential {
namespace {

constexpr BlockShape kBlocks[] = {{16, 16},  {16, 256},  {48, 80},   {64, 128},
                                  {128, 64}, {128, 128}, {256, 256}, {32, 16}};

// Tables that were drawn for a part of the expression which building dropped are left out.
Tables mentioned_tables(const reference::RandomMask& mask) {
  Tables tables = mask.tables.views();
  for (auto it = tables.begin(); it != tables.end();) {
    bool is_mentioned = false;
    for (const std::string& name : table_names(mask.expr)) is_mentioned |= name == it->first;
    it = is_mentioned ? std::next(it) : tables.erase(it);
  }
  return tables;
}

std::string check_seed(std::uint64_t seed, const reference::RandomMaskOptions& options,
                       const CheckOptions& checks, CheckCounts& counts) {
  const reference::RandomMask mask = reference::make_random_mask(seed, options);
  const Tables tables = mentioned_tables(mask);
  const Expectation expected = expect_mask(mask.expr, tables, mask.shape);
  const BlockShape block = kBlocks[seed % std::size(kBlocks)];
  const std::string report = check_mask(mask.expr, tables, expected, block, checks, counts);
  if (report.empty()) return {};
  return "seed " + std::to_string(seed) + ", block " + std::to_string(block.block_q) + "x" +
         std::to_string(block.block_kv) + "\n" + mask.describe() + report;
}

// The first half of the masks is the same in every run; RapidCheck draws the seeds of the other
// half (RC_PARAMS="seed=.." repeats a run). A mask follows from its seed.
void check_random(const reference::RandomMaskOptions& options, std::uint64_t num_masks,
                  const CheckOptions& checks = {}) {
  CheckCounts counts;
  for (std::uint64_t seed = 0; seed < num_masks / 2; ++seed) {
    const std::string report = check_seed(seed, options, checks, counts);
    ASSERT_EQ(report, "");
  }
  const std::uint64_t per_case = num_masks / 200;
  EXPECT_TRUE(rc::check("masks of random seeds have the oracle's cells", [&](std::uint32_t drawn) {
    for (std::uint64_t i = 0; i < per_case; ++i) {
      const std::uint64_t seed = (std::uint64_t{drawn} + 1) << 20 | i;
      const std::string report = check_seed(seed, options, checks, counts);
      if (!report.empty()) RC_FAIL(report);
    }
  }));
  std::printf(
      "[ COUNTS   ] %lld masks, %lld cells, %lld with undefined cells, %lld in interval "
      "form, %lld in parametric form\n",
      static_cast<long long>(counts.masks), static_cast<long long>(counts.cells),
      static_cast<long long>(counts.undefined), static_cast<long long>(counts.in_interval_form),
      static_cast<long long>(counts.in_parametric_form));
  EXPECT_GT(counts.in_interval_form, 0);
}

TEST(RandomMasks, Names) {
  reference::RandomMaskOptions options;
  options.max_depth = 1;
  options.max_len = 80;
  options.allow_at = false;
  check_random(options, 3000);
}

TEST(RandomMasks, Expressions) {
  reference::RandomMaskOptions options;
  check_random(options, 6000);
}

TEST(RandomMasks, DeepExpressions) {
  reference::RandomMaskOptions options;
  options.max_depth = 7;
  check_random(options, 1000);
}

TEST(RandomMasks, UndefinedCells) {
  reference::RandomMaskOptions options;
  options.allow_undefined = true;
  options.max_len = 30;
  check_random(options, 4000);
}

TEST(RandomMasks, LongRows) {
  reference::RandomMaskOptions options;
  options.max_len = 400;
  options.max_depth = 3;
  options.max_batches = 2;
  options.max_heads = 2;
  CheckOptions checks;
  checks.threads = false;
  check_random(options, 400, checks);
}

}  // namespace
}  // namespace fdma::differential
