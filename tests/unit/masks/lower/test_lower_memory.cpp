// Tests the budgets of the interval engine. A mask that exceeds one takes box form, with the same
// result. tests/python/tool/test_limits.py tests the memory of compiling in processes of their own.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "intervals/region.hpp"

namespace fdma {
namespace {

struct Inputs {
  std::vector<std::uint8_t> keep = std::vector<std::uint8_t>(kLength);
  std::vector<std::int64_t> ends = std::vector<std::int64_t>(kLength);
  Tables tables;
  static constexpr std::int64_t kLength = 20000;

  Inputs() {
    for (std::size_t i = 0; i < keep.size(); ++i) {
      keep[i] = (i * 2654435761u >> 16) % 2;
      ends[i] = static_cast<std::int64_t>(i + 1 + (i * 7919) % 3000);
    }
    const std::int64_t extent = kLength;
    tables.emplace("keep", make_contiguous_view(keep.data(), DType::boolean, 1, &extent));
    tables.emplace("end", make_contiguous_view(ends.data(), DType::int64, 1, &extent));
  }

  Result<SegmentMask> lowered(const std::string& spec, std::int64_t q_len, std::int64_t kv_len,
                              BlockShape block, LoweringEngine engine) const {
    const auto expr = parse_mask(spec);
    Tables used;
    for (const std::string& name : table_names(*expr)) used.insert(*tables.find(name));
    FDMA_TRY(const BlockMask mask,
             compile(*expr, used, {1, 1, {q_len}, {kv_len}}, {.block = block, .engine = engine}));
    return std::get<std::vector<SegmentMask>>(mask.groups).front();
  }
};

// Joins terms `names[i % 2] < 7 i` by an operator. Every fifth term comes twice.
std::string chain(const std::string& join, int num_terms) {
  std::string text = "k < 3";
  for (int i = 0; i < num_terms; ++i) {
    const std::string term = (i % 2 == 0 ? "k < " : "q < ") + std::to_string(7 * i % 2003);
    text += " " + join + " " + term;
    if (i % 5 == 0) text += " " + join + " " + term;
  }
  return text;
}

TEST(Region, AsksForItsBudgetAfterEveryBand) {
  // The end of causal meets each of 4,000 intervals, which are 16 million intervals without a
  // budget.
  IntervalEffort effort;
  constexpr std::int64_t n = 8000;
  Region causal;
  const AffineInterval below{0, 1, 0, 1};
  causal.append(0, n, {&below, 1});
  Region even;
  std::vector<AffineInterval> intervals;
  for (std::int64_t k = 0; k < n; k += 2) intervals.push_back({k, k + 1, 0, 0});
  even.append(0, n, intervals);
  for (const TruthTable op : {kIntersection, kUnion, kSymmetricDifference}) {
    EXPECT_FALSE(combine(causal, even, op, effort).has_value());
  }
  EXPECT_TRUE(combine(even, even, kIntersection, effort).has_value());
}

TEST(Region, StopsWhenItsEffortIsSpent) {
  WorkMeter cancelled(0, [] { return true; });
  IntervalEffort effort(&cancelled);
  EXPECT_FALSE(effort.spend(IntervalEffort::kStepsBetweenQuestions + 1));
  IntervalEffort endless;
  EXPECT_TRUE(endless.spend(IntervalEffort::kMaxSteps - 1));
  EXPECT_FALSE(endless.spend(IntervalEffort::kStepsBetweenQuestions + 2));
  EXPECT_FALSE(
      combine(Region::rectangle({0, 4, 0, 4}), Region::rectangle({0, 4, 0, 4}), kUnion, endless)
          .has_value());
}

TEST(LowerMemory, MasksOverTheBudgetTakeBoxForm) {
  const Inputs inputs;
  for (const char* spec :
       {"k % 2 == 0 & q % 2 == 0", "@keep[k] & @keep[q]", "@keep[k] ^ @keep[q]"}) {
    const auto mask = inputs.lowered(spec, 16384, 16384, {}, LoweringEngine::interval);
    ASSERT_FALSE(mask) << spec;
    EXPECT_EQ(mask.error().code, ErrorCode::unsupported) << spec;
    EXPECT_TRUE(inputs.lowered(spec, 16384, 16384, {}, LoweringEngine::automatic)) << spec;
  }
}

TEST(LowerMemory, BothEnginesAgreeOnPeriodicAndTableMasks) {
  const Inputs inputs;
  const std::string specs[] = {"causal & k % 2 == 0",
                               "k % 3 == 0 & q % 5 == 0",
                               "k % 2 == 0 ^ q % 3 == 0",
                               "causal & @keep[k]",
                               "@keep[k] ^ @keep[q]",
                               "causal & (@keep[k] | k % 2 == 0)",
                               "k <= q & q < @end[k]",
                               "q < @end[k] & @keep[k]",
                               "where(k % 2 == 0, k <= q, k >= q)",
                               "k % 2 == 0 ^ k % 3 == 0 ^ k <= q",
                               chain("^", 60),
                               chain("|", 60),
                               "~(" + chain("^", 61) + ")",
                               "(" + chain("^", 31) + ") ^ (k <= q ^ k % 2 == 0)"};
  for (const std::string& spec : specs) {
    for (const auto& [q_len, kv_len] : {std::pair{1500, 1500}, std::pair{777, 2100}}) {
      const auto automatic = inputs.lowered(spec, q_len, kv_len, {}, LoweringEngine::automatic);
      const auto box = inputs.lowered(spec, q_len, kv_len, {}, LoweringEngine::box);
      ASSERT_TRUE(automatic && box) << spec;
      EXPECT_EQ(*automatic, *box) << spec << " at " << q_len << " x " << kv_len;
    }
  }
}

TEST(LowerMemory, LongChainsDoNotRecurse) {
  const Inputs inputs;
  for (const char* join : {"^", "|", "&"}) {
    const auto mask =
        inputs.lowered(chain(join, 60000), 100, 100, {16, 16}, LoweringEngine::automatic);
    ASSERT_TRUE(mask) << join << ": " << mask.error().message;
  }
  std::string chosen = "let x0 = k < q; ";
  for (int i = 0; i < 5000; ++i) {
    const std::string before = "x" + std::to_string(i);
    chosen += "let x" + std::to_string(i + 1) + " = where(k < q + " + std::to_string(i % 90) +
              ", " + before + ", q < " + std::to_string(i % 77) + "); ";
  }
  const auto mask = inputs.lowered(chosen + "x5000", 100, 100, {16, 16}, LoweringEngine::automatic);
  ASSERT_TRUE(mask) << mask.error().message;
}

TEST(MaskStatistics, CountsByTheStoredFormWhatTheCellsHave) {
  const Inputs inputs;
  for (const char* spec :
       {"true", "false", "causal", "causal & k % 2 == 0", "window(300)", "k <= q & k % 128 == 127",
        "k % 3 == 0 & q % 5 == 0", "causal & @keep[k]", "k <= q & q < @end[k]", "@keep[q]",
        "causal & (q - k) % 16 < 3", "k // 100 % 2 == q // 100 % 2", "k >= q & k - q < 700",
        "2 * k < q", "(q * k) % 7 < 3", "dilated(5, 3) & causal"}) {
    for (const BlockShape block : {BlockShape{128, 128}, BlockShape{64, 128}, BlockShape{48, 16}}) {
      for (const auto& [q_len, kv_len] :
           {std::pair{1300, 1300}, std::pair{1280, 640}, std::pair{300, 2000}}) {
        const auto expr = parse_mask(spec);
        ASSERT_TRUE(expr) << spec;
        const auto mask = inputs.lowered(spec, q_len, kv_len, block, LoweringEngine::automatic);
        ASSERT_TRUE(mask) << spec << ": " << mask.error().message;
        EXPECT_EQ(count_query_intervals(*mask), std::ssize(columns_from_segment(*mask).intervals))
            << spec << " at " << q_len << " x " << kv_len << " in blocks of " << block.block_q;
        EXPECT_EQ(segment_from_segment(*mask, block), *mask) << spec;
      }
    }
  }
}

TEST(MaskStatistics, MakesWhatIsNotCanonicalCanonicalRunByRun) {
  // The mask is causal & even keys, with a full, an empty and a doubled bitmap in place of the
  // right ones.
  const Inputs inputs;
  const auto wanted =
      inputs.lowered("causal & k % 2 == 0", 1024, 1024, {}, LoweringEngine::automatic);
  ASSERT_TRUE(wanted);
  SegmentMask mask = *wanted;
  const auto copy = [&](std::int64_t index) {
    const std::vector<std::uint64_t> words(mask.bitmap(index).begin(), mask.bitmap(index).end());
    mask.bitmaps.insert(mask.bitmaps.end(), words.begin(), words.end());
    return static_cast<std::int32_t>(mask.num_bitmaps() - 1);
  };
  for (TileSegment& segment : mask.segments) {
    if (segment.kind == SegmentKind::bitmap) segment.data_index = copy(segment.data_index);
  }
  ASSERT_NE(mask, *wanted);
  EXPECT_EQ(segment_from_segment(mask, mask.block), *wanted);
}

}  // namespace
}  // namespace fdma
