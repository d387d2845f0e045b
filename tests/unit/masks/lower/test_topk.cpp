// Compares compiled topk with its literal definition: each query sorts the keys that `among` shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "oracle.hpp"

namespace fdma {
namespace {

using Visible = std::function<bool(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k)>;

MaskShape shape_of(std::int64_t batch, std::int64_t heads, std::vector<std::int64_t> q_lens,
                   std::vector<std::int64_t> kv_lens) {
  return {batch, heads, std::move(q_lens), std::move(kv_lens)};
}

Result<BlockMask> compile_text(const std::string& text, const Tables& tables,
                               const MaskShape& shape) {
  const auto expr = parse_mask(text);
  if (!expr) return Error{ErrorCode::syntax, "cannot parse " + text};
  LowerOptions options;
  options.block = {16, 32};
  return compile(*expr, tables, shape, options);
}

std::vector<float> random_scores(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> scores(count);
  for (float& score : scores) score = static_cast<float>(random() % 50);  // with ties
  return scores;
}

TensorView view_of(const std::vector<float>& values, const std::vector<std::int64_t>& extents) {
  return make_contiguous_view(values.data(), DType::float32, static_cast<int>(extents.size()),
                              extents.data());
}

// True if k is one of the w best of the visible keys of (b, h, q).
bool is_kept(const std::vector<float>& scores, std::int64_t row, std::int64_t kv_extent,
             std::int64_t w, const MaskShape& shape, const Visible& visible, std::int64_t b,
             std::int64_t h, std::int64_t q, std::int64_t k) {
  if (!visible(b, h, q, k)) return false;
  const auto score = [&](std::int64_t key) {
    return scores[static_cast<std::size_t>(row * kv_extent + key)];
  };
  std::int64_t better = 0;
  for (std::int64_t other = 0; other < shape.kv_len(b); ++other) {
    if (!visible(b, h, q, other)) continue;
    if (score(other) > score(k) || (score(other) == score(k) && other < k)) ++better;
  }
  return better < w;
}

void expect_cells(const BlockMask& mask, const Visible& expected, const std::string& what) {
  ASSERT_TRUE(validate(mask, ValidationLevel::canonical)) << what;
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < mask.shape.num_heads; ++h) {
      const SegmentMask segments = segment_of_group(mask, mask.group(b, h), mask.block);
      std::vector<Interval> keys;
      for (std::int64_t q = 0; q < segments.q_len; ++q) {
        row_intervals_of(segments, q, keys);
        std::vector<bool> row(static_cast<std::size_t>(segments.kv_len), false);
        for (const Interval& each : keys)
          std::fill(row.begin() + each.begin, row.begin() + each.end, true);
        for (std::int64_t k = 0; k < segments.kv_len; ++k) {
          ASSERT_EQ(row[static_cast<std::size_t>(k)], expected(b, h, q, k))
              << what << " at b " << b << " h " << h << " q " << q << " k " << k;
        }
      }
    }
  }
}

TEST(CompileTopk, SelectsAmongTheRestOfTheConjunction) {
  const MaskShape shape = shape_of(1, 1, {50}, {70});
  const std::vector<float> scores = random_scores(70, 1);
  const Visible causal = [](auto, auto, auto q, auto k) { return k <= q + 20; };
  for (const std::int64_t w : {1, 3, 69, 70, 100}) {
    const auto mask = compile_text("causal & topk(@s, " + std::to_string(w) + ")",
                                   {{"s", view_of(scores, {70})}}, shape);
    ASSERT_TRUE(mask) << mask.error().message;
    EXPECT_EQ(mask->spec, "causal & topk(@s, " + std::to_string(w) + ")");
    expect_cells(
        *mask,
        [&](auto b, auto h, auto q, auto k) {
          return is_kept(scores, 0, 70, w, shape, causal, b, h, q, k);
        },
        "w " + std::to_string(w));
  }
}

TEST(CompileTopk, StandsAnywhereWithAmong) {
  const MaskShape shape = shape_of(1, 1, {60}, {60});
  const std::vector<float> scores = random_scores(60, 2);
  const Tables tables{{"s", view_of(scores, {60})}};
  const Visible causal = [](auto, auto, auto q, auto k) { return k <= q; };
  const Visible window = [](auto, auto, auto q, auto k) { return k <= q && q - k < 20; };
  const auto kept = [&](const Visible& among, std::int64_t w) -> Visible {
    return [&scores, &shape, among, w](auto b, auto h, auto q, auto k) {
      return is_kept(scores, 0, 60, w, shape, among, b, h, q, k);
    };
  };
  const std::vector<std::pair<std::string, Visible>> cases{
      {"causal & window(4) | topk(@s, 5, among=causal)",
       [&](auto b, auto h, auto q, auto k) {
         return (k <= q && q - k < 4) || kept(causal, 5)(b, h, q, k);
       }},
      {"~topk(@s, 7, among=causal)",
       [&](auto b, auto h, auto q, auto k) { return !kept(causal, 7)(b, h, q, k); }},
      {"topk(@s, 6, among=causal & window(20)) | k == q",
       [&](auto b, auto h, auto q, auto k) { return k == q || kept(window, 6)(b, h, q, k); }},
      {"topk(@s, 3, among=topk(@s, 9, among=causal) & k % 2 == 0)",
       [&](auto b, auto h, auto q, auto k) {
         const Visible inner = kept(causal, 9);
         const Visible even = [&inner](auto b2, auto h2, auto q2, auto k2) {
           return k2 % 2 == 0 && inner(b2, h2, q2, k2);
         };
         return is_kept(scores, 0, 60, 3, shape, even, b, h, q, k);
       }},
      {"at(topk(@s, 5, among=causal), q=q // 2, k=k)",
       [&](auto b, auto h, auto q, auto k) { return kept(causal, 5)(b, h, q / 2, k); }},
  };
  for (const auto& [text, expected] : cases) {
    const auto mask = compile_text(text, tables, shape);
    ASSERT_TRUE(mask) << text << ": " << mask.error().message;
    expect_cells(*mask, expected, text);
  }
}

TEST(CompileTopk, QueryHeadsReadTheScoresOfTheirKvHeadInEachBatchElement) {
  const MaskShape shape = shape_of(2, 6, {40, 33}, {40, 51});
  const std::vector<float> scores = random_scores(2 * 3 * 51, 3);
  const Tables tables{{"s", view_of(scores, {2, 3, 51})}};
  const Visible visible = [&](auto b, auto h, auto q, auto k) {
    const std::int64_t pos = q + shape.kv_len(b) - shape.q_len(b);
    return k <= pos && (h != 5 || pos - k < 9);
  };
  const Visible expected = [&](auto b, auto h, auto q, auto k) {
    return is_kept(scores, b * 3 + h / 2, 51, 8, shape, visible, b, h, q, k);
  };
  const auto whole = compile_text("causal & (h != 5 | window(9)) & topk(@s, 8)", tables, shape);
  ASSERT_TRUE(whole) << whole.error().message;
  expect_cells(*whole, expected, "whole");
  EXPECT_EQ(whole->num_groups(),
            8);  // 2 x 3 KV heads, and head 5 of each element has a mask of its own
  const auto part =
      compile_text("topk(@s, 8, among=causal & (h != 5 | window(9))) & k != 4", tables, shape);
  ASSERT_TRUE(part) << part.error().message;
  expect_cells(
      *part, [&](auto b, auto h, auto q, auto k) { return k != 4 && expected(b, h, q, k); },
      "part");
}

TEST(CompileTopk, TakesItsWidthFromAParameter) {
  const MaskShape shape = shape_of(1, 1, {30}, {30});
  const std::vector<float> scores = random_scores(30, 4);
  const std::int64_t w = 4;
  const auto mask = compile_text(
      "causal & topk(@s, @w)",
      {{"s", view_of(scores, {30})}, {"w", make_contiguous_view(&w, DType::int64, 0, nullptr)}},
      shape);
  ASSERT_TRUE(mask) << mask.error().message;
  const Visible causal = [](auto, auto, auto q, auto k) { return k <= q; };
  expect_cells(
      *mask,
      [&](auto b, auto h, auto q, auto k) {
        return is_kept(scores, 0, 30, w, shape, causal, b, h, q, k);
      },
      "@w");
}

// w is one number for all cells of a batch element and head, however it is written.
TEST(CompileTopk, TakesAWidthPerBatchElementAndHead) {
  const MaskShape shape = shape_of(2, 4, {30}, {41});
  const std::vector<float> scores = random_scores(2 * 41, 9);
  const std::vector<std::int64_t> widths{3, 1, 1000, 7};
  const std::int64_t four = 4;
  const Visible causal = [](auto, auto, auto q, auto k) { return k <= q + 11; };
  struct Case {
    std::string w;
    std::function<std::int64_t(std::int64_t, std::int64_t)> value;
    bool has_table;
  };
  const std::vector<Case> cases{
      {"2 + h", [](auto, auto h) { return 2 + h; }, false},
      {"1 + 5 * b + h % 2", [](auto b, auto h) { return 1 + 5 * b + h % 2; }, false},
      {"max(1, kv_len // (8 - h))", [](auto, auto h) { return 41 / (8 - h); }, false},
      {"where(h == 2, kv_len + 9, shl(1, h))",
       [](auto, auto h) { return h == 2 ? 50 : std::int64_t{1} << h; }, false},
      {"@w[h]", [&](auto, auto h) { return widths[static_cast<std::size_t>(h)]; }, true},
  };
  for (const Case& each : cases) {
    Tables tables{{"s", view_of(scores, {2, 41})}};
    if (each.has_table) {
      tables.emplace("w", make_contiguous_view(widths.data(), DType::int64, 1, &four));
    }
    for (const bool is_whole : {true, false}) {
      const auto mask =
          is_whole ? compile_text("causal & topk(@s, " + each.w + ")", tables, shape)
                   : compile_text("topk(@s, " + each.w + ", among=causal) & k != 4", tables, shape);
      ASSERT_TRUE(mask) << mask.error().message;
      expect_cells(
          *mask,
          [&](auto b, auto h, auto q, auto k) {
            return (is_whole || k != 4) &&
                   is_kept(scores, h / 2, 41, each.value(b, h), shape, causal, b, h, q, k);
          },
          each.w);
    }
  }
}

// The oracle is compared with topk at every place where it may stand, inside another topk, too.
TEST(CompileTopk, EqualsTheOracle) {
  const MaskShape shape = shape_of(2, 4, {45, 20}, {45, 61});
  const std::vector<float> scores = random_scores(2 * 2 * 61, 11);
  const std::vector<std::int64_t> ids = [] {
    std::vector<std::int64_t> all;
    for (std::int64_t k = 0; k < 61; ++k) all.push_back(k / 17);
    return all;
  }();
  const std::int64_t extent = 61;
  for (const std::string text :
       {"causal & topk(@s, 7)", "causal & documents(ids=@d) & topk(@s, 3 + h)",
        "window(5) | topk(@s, 4, among=causal & k % 2 == 0)",
        "topk(@s, 3, among=topk(@s, 9, among=causal & window(20)))",
        "topk(@s, 5, among=causal) ^ topk(@s, 2 * b + 1, among=~causal)",
        "at(topk(@s, 6, among=causal), q=q // 2, k=k)",
        "any(i in 3 : topk(@s, 2, among=causal) & k % 3 == i)"}) {
    const auto expr = parse_mask(text);
    ASSERT_TRUE(expr) << text;
    Tables tables{{"s", view_of(scores, {2, 2, 61})}};
    if (text.find("@d") != std::string::npos) {
      tables.emplace("d", make_contiguous_view(ids.data(), DType::int64, 1, &extent));
    }
    const auto mask = compile_text(text, tables, shape);
    ASSERT_TRUE(mask) << text << ": " << mask.error().message;
    std::vector<std::vector<std::uint8_t>> cells;
    for (std::int64_t pair = 0; pair < 8; ++pair) {
      auto each = reference::oracle_cells(*expr, tables, shape, pair / 4, pair % 4);
      ASSERT_TRUE(each) << text << ": " << each.error().message;
      cells.push_back(*std::move(each));
    }
    expect_cells(
        *mask,
        [&](auto b, auto h, auto q, auto k) {
          return cells[static_cast<std::size_t>(4 * b + h)]
                      [static_cast<std::size_t>(q * shape.kv_len(b) + k)] == reference::kAttend;
        },
        text);
  }
}

TEST(CompileTopk, RejectsWhatItCannotSelectFrom) {
  const MaskShape shape = shape_of(1, 2, {8}, {8});
  std::vector<float> scores = random_scores(8, 5);
  const std::vector<std::int32_t> integers(8, 1);
  const std::int64_t eight = 8;
  const auto expect_error = [&](const std::string& text, const Tables& tables, ErrorCode code,
                                const std::string& message) {
    const auto mask = compile_text(text, tables, shape);
    ASSERT_FALSE(mask) << text;
    EXPECT_EQ(mask.error().code, code) << mask.error().message;
    EXPECT_THAT(mask.error().message, ::testing::HasSubstr(message));
  };
  const TensorView good = view_of(scores, {8});
  expect_error("causal & topk(@s, 2)", {}, ErrorCode::invalid_argument,
               "'s' is used in the mask, but not given");
  expect_error("causal & topk(@s, 2)", {{"s", good}, {"t", good}}, ErrorCode::invalid_argument,
               "'t' is given, but not used");
  expect_error("causal & topk(@s, 0)", {{"s", good}}, ErrorCode::invalid_argument,
               "w: expected at least 1");
  expect_error("causal & topk(@s, h)", {{"s", good}}, ErrorCode::invalid_argument,
               "w: expected at least 1, got less for batch element 0, head 0");
  expect_error("causal & topk(@s, 2 // h)", {{"s", good}}, ErrorCode::invalid_argument, "w: ");
  expect_error("causal & topk(@s, @w[h])", {{"s", good}}, ErrorCode::invalid_argument,
               "'w' is used in the mask, but not given");
  expect_error("causal & topk(@s, 2)",
               {{"s", make_contiguous_view(integers.data(), DType::int32, 1, &eight)}},
               ErrorCode::shape_mismatch, "expected float32 scores, got int32");
  expect_error("causal & topk(@s, 2)", {{"s", view_of(scores, {4, 2})}}, ErrorCode::shape_mismatch,
               "kv_len 8, got [1, 4, 2]");
  scores[3] = std::numeric_limits<float>::quiet_NaN();
  expect_error("causal & topk(@s, 2)", {{"s", good}}, ErrorCode::invalid_argument,
               "scores[3]: is NaN");
  scores[3] = 0;
  expect_error("k < @s[k] & causal", {{"s", good}}, ErrorCode::invalid_argument, "s");
}

}  // namespace
}  // namespace fdma
