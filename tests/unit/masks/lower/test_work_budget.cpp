// Tests LowerOptions::max_work, and loops that are interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "lower/work_meter.hpp"

namespace fdma {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

Result<BlockMask> compiled(const std::string& spec, std::int64_t length, LowerOptions options) {
  return compile(*parse_mask(spec), {}, {1, 1, {length}, {length}}, options);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

const char* const kEndless[] = {
    "any(i in 4611686018427387904 : i * k == q + 7)",
    "any(i in 4611686018427387904 : i * i == 3) & causal",
    "all(i in 4611686018427387904 : i * i != k + 3)",
    "any(i in 3000 : any(j in 3000 : any(l in 3000 : i * j * l == q + k + 7)))",
};

TEST(WorkBudget, RefusesEndlessLoopsByName) {
  for (const char* spec : kEndless) {
    for (const int num_threads : {1, 4}) {
      const auto start = Clock::now();
      const auto mask = compiled(spec, 1000, {.block = {}, .num_threads = num_threads});
      ASSERT_FALSE(mask) << spec;
      EXPECT_EQ(mask.error().code, ErrorCode::unsupported) << spec;
      EXPECT_THAT(mask.error().message, HasSubstr("any / all: a loop of ")) << spec;
      EXPECT_THAT(mask.error().message, HasSubstr("274877906944 evaluations (max_work")) << spec;
      EXPECT_LT(seconds_since(start), 200) << spec;
    }
  }
  EXPECT_THAT(compiled(kEndless[0], 1000, {}).error().message,
              HasSubstr("a loop of 4611686018427387904 turns"));
}

TEST(WorkBudget, CountsWhatTheLoopsTake) {
  const std::string spec = "any(i in 100000 : i * k % 100003 == q)";
  const auto unlimited = compiled(spec, 40, {.block = {16, 16}, .max_work = 0});
  const auto enough = compiled(spec, 40, {.block = {16, 16}, .max_work = 2'000'000'000});
  const auto little = compiled(spec, 40, {.block = {16, 16}, .max_work = 50'000'000});
  ASSERT_TRUE(unlimited);
  ASSERT_TRUE(enough) << enough.error().message;
  EXPECT_EQ(std::get<std::vector<SegmentMask>>(enough->groups),
            std::get<std::vector<SegmentMask>>(unlimited->groups));
  ASSERT_FALSE(little);
  EXPECT_EQ(little.error().code, ErrorCode::unsupported);
  EXPECT_THAT(little.error().message, HasSubstr("more than 50000000 evaluations"));
}

TEST(WorkBudget, LeavesAloneWhatHasNoLoop) {
  for (const char* spec : {"causal", "(q * k) % 7 < 3", "any(i in 8 : k // 4 == i * q // 8)"}) {
    EXPECT_TRUE(compiled(spec, 300, {.block = {}, .max_work = 1})) << spec;
  }
}

TEST(WorkBudget, RejectsNegativeNumbers) {
  const auto mask = compiled("causal", 10, {.block = {}, .max_work = -1});
  ASSERT_FALSE(mask);
  EXPECT_EQ(mask.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(mask.error().message, HasSubstr("max_work: expected"));
}

TEST(LowerCancel, StopsInsideALoopWithoutEnd) {
  for (const char* spec : kEndless) {
    const auto start = Clock::now();
    const auto mask = compiled(
        spec, 1000,
        {.block = {}, .is_cancelled = [&] { return seconds_since(start) > 0.2; }, .max_work = 0});
    ASSERT_FALSE(mask) << spec;
    EXPECT_EQ(mask.error().code, ErrorCode::io) << spec;
    EXPECT_LT(seconds_since(start), 20) << spec;
  }
}

TEST(LowerCancel, StopsTheIntervalEngine) {
  std::string chain = "k < 1";
  for (int i = 1; i < 20000; ++i) chain += " ^ k < " + std::to_string(i);
  const auto start = Clock::now();
  const auto mask = compiled(
      chain, 20000, {.block = {}, .is_cancelled = [&] { return seconds_since(start) > 0.2; }});
  ASSERT_FALSE(mask);
  EXPECT_EQ(mask.error().code, ErrorCode::io);
}

TEST(WorkMeter, StopsOnceAndSaysWhy) {
  WorkMeter meter(100);
  EXPECT_TRUE(meter.spend(60, 9));
  EXPECT_TRUE(meter.expect(40, 9));
  EXPECT_FALSE(meter.expect(41, 12));
  EXPECT_TRUE(meter.must_stop());
  EXPECT_THAT(meter.error().message, HasSubstr("a loop of 12 turns"));
  WorkMeter unlimited;
  EXPECT_TRUE(unlimited.spend(std::int64_t{1} << 62, 9));
  EXPECT_TRUE(unlimited.expect(1e300, 9));
  WorkMeter cancelled(100, [] { return true; });
  EXPECT_FALSE(cancelled.spend(1, 9));
  EXPECT_EQ(cancelled.error().code, ErrorCode::io);
}

}  // namespace
}  // namespace fdma
