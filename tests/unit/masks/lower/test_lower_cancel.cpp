// Tests lowering that is cancelled: box form, interval form by key, learned selection.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"

namespace fdma {
namespace {

// Holds a program for each way through lowering. The ends of intervals are so uneven that no closed
// form fits.
struct Ways {
  std::vector<std::int64_t> ends = std::vector<std::int64_t>(10000);
  std::vector<float> scores = std::vector<float>(10000);
  Tables tables;
  Ways() {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      ends[i] = static_cast<std::int64_t>((i * 7919) % 1000);
      scores[i] = static_cast<float>((i * 104729) % 1013);
    }
    const std::int64_t extent = static_cast<std::int64_t>(ends.size());
    tables.emplace("end", make_contiguous_view(ends.data(), DType::int64, 1, &extent));
    tables.emplace("s", make_contiguous_view(scores.data(), DType::float32, 1, &extent));
  }

  Result<BlockMask> compiled(const std::string& spec, LowerOptions options) const {
    const auto expr = parse_mask(spec);
    Tables used;
    for (const std::string& name : table_names(*expr)) used.insert(*tables.find(name));
    return compile(*expr, used, {1, 1, {1000}, {10000}}, options);
  }
};

const char* const kSpecs[] = {"(q * k) % 7 < 3", "q < @end[k]", "causal & topk(@s, 20)",
                              "topk(@s, 20, among=(q * k) % 7 < 3)"};

TEST(LowerCancel, StopsAtOnceWithIo) {
  const Ways ways;
  for (const char* spec : kSpecs) {
    for (const int num_threads : {1, 4}) {
      const auto mask = ways.compiled(
          spec, {.block = {}, .num_threads = num_threads, .is_cancelled = [] { return true; }});
      ASSERT_FALSE(mask) << spec;
      EXPECT_EQ(mask.error().code, ErrorCode::io) << spec;
      EXPECT_EQ(mask.error().message, "interrupted") << spec;
    }
  }
}

TEST(LowerCancel, StopsOnTheWayAndAsksNoMoreThanItNeeds) {
  const Ways ways;
  for (const char* spec : kSpecs) {
    for (const int num_threads : {1, 4}) {
      std::atomic<int> num_questions{0};
      const auto count = [&] {
        ++num_questions;
        return false;
      };
      const auto whole =
          ways.compiled(spec, {.block = {}, .num_threads = num_threads, .is_cancelled = count});
      ASSERT_TRUE(whole) << spec;
      EXPECT_GT(num_questions.load(), 1) << spec;
      std::atomic<int> left{num_questions.load() / 2};
      const auto part = ways.compiled(
          spec,
          {.block = {}, .num_threads = num_threads, .is_cancelled = [&] { return --left < 0; }});
      ASSERT_FALSE(part) << spec;
      EXPECT_EQ(part.error().code, ErrorCode::io) << spec;
    }
  }
}

TEST(LowerCancel, ChangesNothingWhereItIsNotUsed) {
  const Ways ways;
  for (const char* spec : kSpecs) {
    const auto plain = ways.compiled(spec, {});
    const auto asked = ways.compiled(spec, {.block = {}, .is_cancelled = [] { return false; }});
    ASSERT_TRUE(plain && asked) << spec;
    EXPECT_EQ(std::get<std::vector<SegmentMask>>(plain->groups),
              std::get<std::vector<SegmentMask>>(asked->groups));
  }
}

}  // namespace
}  // namespace fdma
