// Periodic form on the masks that it is made for: equal to box form, at the cost of their structure.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "periodic/analysis.hpp"

namespace fdma {
namespace {

struct Lowered {
  SegmentMask mask;
  ProgramReport report;
};

std::optional<Lowered> lowered(std::string_view text, std::int64_t q_len, std::int64_t kv_len,
                               LoweringEngine engine, BlockShape block = {128, 128}) {
  const auto expr = parse_mask(text);
  if (!expr) return std::nullopt;
  LoweringReport report;
  LowerOptions options;
  options.block = block;
  options.engine = engine;
  options.report = &report;
  auto mask = compile(*expr, {}, MaskShape{1, 1, {q_len}, {kv_len}}, options);
  if (!mask) return std::nullopt;
  return Lowered{std::get<std::vector<SegmentMask>>(mask->groups)[0], report.programs[0]};
}

constexpr std::string_view kMasks[] = {
    "causal & (window(1000) | k % 64 == 0)",
    "causal & k % 2 == 0",
    "(q // 5) % 7 == (k // 5) % 7 & causal",
    "k // 128 == q // 128 | (k % 128 == 127 & k <= q)",
    "natten2d(64, 128, 13, 13)",
    "natten2d(128, 64, 5, 40)",
    "natten3d(8, 32, 32, 3, 7, 7)",
    "dilated(2048, 4) & causal",
    "causal & (q * k) % 7 < 3",
    "abs(q - k) % 3 == 0 & causal",
    "block_diffusion(4096, 48)",
    "chunked(1000) & bitand(k, 5) == 1",
    "let x = clamp(q // 64 % 16, 1, 14); let y = clamp(q // 64 // 16, 1, 6); "
    "abs(k // 64 % 16 - x) <= 1 & abs(k // 64 // 16 - y) <= 1",
};

TEST(PeriodicMasks, EqualBoxFormAtEightThousandTokens) {
  for (const std::string_view text : kMasks) {
    for (const std::int64_t q_len : {8192, 3000}) {
      for (const BlockShape block :
           {BlockShape{128, 128}, BlockShape{64, 128}, BlockShape{128, 48}}) {
        const auto box = lowered(text, q_len, 8192, LoweringEngine::box, block);
        const auto periodic = lowered(text, q_len, 8192, LoweringEngine::periodic, block);
        ASSERT_TRUE(box && periodic) << text;
        EXPECT_TRUE(expand_patterns(periodic->mask) == box->mask)
            << text << ", q_len " << q_len << ", blocks " << block.block_q << " x "
            << block.block_kv;
      }
    }
  }
}

TEST(PeriodicMasks, EvaluateTheSameTilesAtAnyLength) {
  const std::string_view text = "(q // 5) % 7 == (k // 5) % 7 & causal";
  const auto short_mask = lowered(text, 1 << 16, 1 << 16, LoweringEngine::automatic);
  const auto long_mask = lowered(text, 1 << 20, 1 << 20, LoweringEngine::automatic);
  ASSERT_TRUE(short_mask && long_mask);
  EXPECT_EQ(short_mask->report.engine, LoweringEngine::periodic);
  EXPECT_EQ(long_mask->report.engine, LoweringEngine::periodic);
  EXPECT_EQ(short_mask->report.num_evaluated_tiles, long_mask->report.num_evaluated_tiles);
  EXPECT_LE(long_mask->report.num_evaluated_tiles, 2 * 5 * 35 + 5);
  EXPECT_LT(long_mask->mask.size_bytes(), 1 << 20);
}

// attn-gym's sliding tile attention: 3 x 3 tiles of 8 x 8 tokens on a square canvas.
std::string sliding_tiles(std::int64_t tiles_across) {
  const std::string across = std::to_string(tiles_across), last = std::to_string(tiles_across - 2);
  return "abs(k // 64 // " + across + " - clamp(q // 64 // " + across + ", 1, " + last +
         ")) <= 1 & abs(k // 64 % " + across + " - clamp(q // 64 % " + across + ", 1, " + last +
         ")) <= 1";
}

TEST(PeriodicMasks, DecideEmptyTilesByRanges) {
  const auto mask = lowered(sliding_tiles(128), 1 << 20, 1 << 20, LoweringEngine::automatic);
  ASSERT_TRUE(mask);
  EXPECT_EQ(mask->report.engine, LoweringEngine::periodic);
  EXPECT_LT(mask->report.num_evaluated_tiles, 1000);
  EXPECT_GT(mask->report.num_bounded_tiles, 20000);
}

TEST(PeriodicMasks, HoldAtSixteenMillionTokens) {
  const auto mask = lowered(sliding_tiles(512), 1 << 24, 1 << 24, LoweringEngine::automatic);
  ASSERT_TRUE(mask);
  EXPECT_EQ(mask->report.engine, LoweringEngine::periodic);
  EXPECT_LT(mask->report.num_evaluated_tiles, 4000);
}

TEST(PeriodicMasks, AreCanonicalWhereTheyHaveNoPattern) {
  for (const std::string_view text : {"causal & k % 2 == 0", "dilated(2048, 4) & causal"}) {
    const auto box = lowered(text, 8192, 8192, LoweringEngine::box);
    const auto periodic = lowered(text, 8192, 8192, LoweringEngine::periodic);
    ASSERT_TRUE(box && periodic) << text;
    EXPECT_FALSE(periodic->mask.has_patterns()) << text;
    EXPECT_TRUE(periodic->mask == box->mask) << text;
  }
}

TEST(PeriodicMasks, AreDeclinedWhereTilesDoNotRepeat) {
  for (const std::string_view text :
       {"bitand(q, k) == 0", "q * k < 100000", "causal & 100 // (q % 5) > 3"}) {
    EXPECT_FALSE(lowered(text, 8192, 8192, LoweringEngine::periodic)) << text;
  }
}

TEST(PeriodicMasks, DoNotDependOnThreads) {
  const auto expr = parse_mask("natten2d(64, 128, 13, 13)");
  ASSERT_TRUE(expr);
  std::vector<BlockMask> masks;
  for (const int num_threads : {1, 4}) {
    LowerOptions options;
    options.engine = LoweringEngine::periodic;
    options.num_threads = num_threads;
    auto mask = compile(*expr, {}, MaskShape{1, 1, {8192}, {8192}}, options);
    ASSERT_TRUE(mask);
    masks.push_back(*std::move(mask));
  }
  EXPECT_TRUE(std::get<std::vector<SegmentMask>>(masks[0].groups) ==
              std::get<std::vector<SegmentMask>>(masks[1].groups));
}

// The structure of a mask in blocks of 128 over its first rows.
std::optional<periodic::Structure> structure_of(std::string_view text, std::int64_t length) {
  const auto expr = parse_mask(text);
  if (!expr) return std::nullopt;
  const auto ir = bind(*expr, {}, MaskShape{1, 1, {length}, {length}});
  if (!ir) return std::nullopt;
  const TableRanges tables(ir->programs[0].tables);
  return periodic::analyze(ir->programs[0], tables, {128, 128}, {0, length, 0, length});
}

TEST(PeriodicAnalysis, FindsTheLatticeAndTheCuts) {
  const auto digits = structure_of("(q // 5) % 7 == (k // 5) % 7 & causal", 100000);
  ASSERT_TRUE(digits);
  EXPECT_EQ(digits->lattice, (TileLattice{5, 5, 35}));
  EXPECT_EQ(digits->cuts, (std::vector<periodic::Cut>{{-1, 1, 0, 1}}));
  const auto diagonals = structure_of("(q - k) % 3 == 0", 100000);
  ASSERT_TRUE(diagonals);
  EXPECT_EQ(diagonals->lattice, (TileLattice{1, 1, 3}));
  EXPECT_TRUE(diagonals->cuts.empty());
  const auto product = structure_of("(q * k) % 7 < 3", 100000);
  ASSERT_TRUE(product);
  EXPECT_EQ(product->lattice, (TileLattice{7, 0, 7}));
  // q // 128 - k // 128 is (q - k) / 128 with less than 1 to either side.
  const auto chunks = structure_of("q // 128 == k // 128", 100000);
  ASSERT_TRUE(chunks);
  EXPECT_EQ(chunks->lattice, (TileLattice{1, 0, 1}));
  EXPECT_EQ(chunks->cuts, (std::vector<periodic::Cut>{{-1, 1, -128, 128}}));
}

TEST(PeriodicAnalysis, DeclinesWhatItCannotFollow) {
  EXPECT_FALSE(structure_of("bitand(q, k) == 0", 1000));
  EXPECT_FALSE(structure_of("q * k < 1000", 1000));
  EXPECT_FALSE(structure_of("100 // (q % 5) > 3", 1000));
}

}  // namespace
}  // namespace fdma
