// Tests the texts of scores, and what a backend that lacks a part says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fdma/formats/score_spec.hpp"

namespace fdma {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ScoreSpec, NamesItsPartsInTheOrderInWhichTheyHappen) {
  EXPECT_THAT(part_names({}), IsEmpty());
  EXPECT_EQ(to_string(ScoreSpec{}), "none");
  EXPECT_EQ(to_string(ScoreSpec{.key_bias = true}), "key_bias");
  ScoreSpec every_part;
#define FDMA_SCORE_PART(name, meaning) every_part.name = true;
#include "fdma/formats/score_parts.def"
  EXPECT_THAT(part_names(every_part), ElementsAre("softcap", "key_bias", "bias", "alibi",
                                                  "relative_table", "sink", "dropout"));
  EXPECT_EQ(to_string(every_part), "softcap+key_bias+bias+alibi+relative_table+sink+dropout");
  EXPECT_NE(every_part, ScoreSpec{});
}

TEST(CommonParts, AreThoseOfBoth) {
  const ScoreSpec one{.softcap = true, .alibi = true, .sink = true};
  EXPECT_EQ(common_parts(one, {.key_bias = true, .alibi = true, .sink = true}),
            (ScoreSpec{.alibi = true, .sink = true}));
  EXPECT_EQ(common_parts(one, {.dropout = true}), ScoreSpec{});
}

TEST(ParseScore, ReadsTheNamesOfParts) {
  EXPECT_EQ(*parse_score("sink"), ScoreSpec{.sink = true});
  EXPECT_EQ(*parse_score("dropout,key_bias,dropout"),
            (ScoreSpec{.key_bias = true, .dropout = true}));
}

TEST(ParseScore, RejectsOtherWordsByName) {
  for (const char* text : {"", "alibi,", "alibi,,sink", " alibi", "softcap+alibi", "none"}) {
    const auto parsed = parse_score(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::invalid_argument);
  }
  EXPECT_EQ(parse_score("alibi,slopes").error().message,
            "score: expected parts of softcap, key_bias, bias, alibi, relative_table, sink, "
            "dropout, got 'slopes'");
}

TEST(CheckComputed, RejectsPartsByName) {
  EXPECT_TRUE(check_computed({}, {}, "toy"));
  EXPECT_TRUE(check_computed({.key_bias = true}, {.softcap = true, .key_bias = true}, "toy"));
  const auto one = check_computed({.key_bias = true}, {}, "toy");
  ASSERT_FALSE(one);
  EXPECT_EQ(one.error().code, ErrorCode::unsupported);
  EXPECT_EQ(one.error().message, "score: key_bias is not computed by toy, which computes none");
  const auto two =
      check_computed({.bias = true, .alibi = true}, {.softcap = true, .key_bias = true}, "toy");
  ASSERT_FALSE(two);
  EXPECT_EQ(two.error().message,
            "score: bias, alibi are not computed by toy, which computes softcap, key_bias");
}

}  // namespace
}  // namespace fdma
