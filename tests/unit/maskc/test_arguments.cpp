// Tests the numbers of the command line and the ticks of pictures.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cli/arguments.hpp"
#include "pictures/axis_ticks.hpp"

namespace fdma::maskc {
namespace {

TEST(ParseCount, TakesShortForms) {
  EXPECT_EQ(parse_count("8192"), 8192);
  EXPECT_EQ(parse_count("8_192"), 8192);
  EXPECT_EQ(parse_count("8k"), 8192);
  EXPECT_EQ(parse_count("8K"), 8192);
  EXPECT_EQ(parse_count("1M"), 1048576);
  EXPECT_EQ(parse_count("1e6"), 1000000);
  EXPECT_EQ(parse_count("-3"), -3);
  EXPECT_EQ(parse_count("+5"), 5);
  EXPECT_EQ(parse_count("-2k"), -2048);
  EXPECT_EQ(parse_count("0e18"), 0);
}

TEST(ParseCount, RejectsOtherTexts) {
  for (const char* text :
       {"", "k", "8kk", "8m", "_8", "8_", "8__0", "1e", "e6", "1e-2", "1e19", "8.5", "8 k", "0x10",
        "9999999999999999999", "9e18k", "99999999999999M", "93e17"}) {
    EXPECT_EQ(parse_count(text), std::nullopt) << text;
  }
}

TEST(AxisTicks, AreRoundAndFew) {
  using Ticks = std::vector<std::int64_t>;
  EXPECT_EQ(axis_ticks(8192, 4), (Ticks{0, 2048, 4096, 6144}));
  EXPECT_EQ(axis_ticks(100, 6), (Ticks{0, 20, 40, 60, 80}));
  EXPECT_EQ(axis_ticks(7, 100), (Ticks{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(axis_ticks(1, 1), (Ticks{0}));
  EXPECT_EQ(axis_ticks(1000, 0), (Ticks{0}));
  EXPECT_TRUE(axis_ticks(0, 5).empty());
}

}  // namespace
}  // namespace fdma::maskc
