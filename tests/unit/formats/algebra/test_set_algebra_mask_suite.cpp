// Tests set algebra on the masks of training and inference. Every pair of the mask suite is
// compared with words of dense bits; masks of a million tokens are compared with the expression
// compiled as a whole.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"

namespace fdma {
namespace {

using suite::SuiteMask;

constexpr std::int64_t kMillion = 1048576;

struct Named {
  SetOperation operation;
  const char* sign;  // between two expressions; `difference` negates the second one
  std::function<std::uint64_t(std::uint64_t, std::uint64_t)> of_words;
};

const std::vector<Named>& operations() {
  static const std::vector<Named> all{
      {SetOperation::intersection, "&", [](auto a, auto b) { return a & b; }},
      {SetOperation::union_of, "|", [](auto a, auto b) { return a | b; }},
      {SetOperation::difference, "& ~", [](auto a, auto b) { return a & ~b; }},
      {SetOperation::symmetric_difference, "^", [](auto a, auto b) { return a ^ b; }}};
  return all;
}

BlockMask compile(const SuiteMask& mask) {
  const Tables tables = mask.bound_tables();
  auto expr = parse_mask(mask.spec);
  EXPECT_TRUE(expr) << mask.spec << ": " << expr.error().message;
  auto lowered = fdma::compile(*expr, tables, mask.shape);
  EXPECT_TRUE(lowered) << mask.spec << ": " << lowered.error().message;
  return *std::move(lowered);
}

/// Compiles a specification over a million tokens in 263 documents, @len.
BlockMask compile_million(const std::string& spec) {
  SuiteMask mask = suite::packed_million().front();
  mask.spec = spec;
  if (spec.find("@len") == std::string::npos) mask.tables.clear();
  return compile(mask);
}

const SegmentMask& stored(const BlockMask& mask) {
  return std::get<std::vector<SegmentMask>>(mask.groups).front();
}

std::int64_t pairs_of(const BlockMask& mask) { return count_tiles(stored(mask)).allowed_pairs; }

TEST(SetAlgebraMaskSuite, EqualsWordsOfDenseBits) {
  std::vector<BlockMask> masks;
  std::vector<std::string> names;
  for (const SuiteMask& mask : suite::mask_suite(1536)) {
    masks.push_back(compile(mask));
    names.push_back(mask.name);
  }
  const BlockShape other{64, 32};
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const DenseBits a = *dense_from_segment(stored(masks[i]));
    for (std::size_t j = 0; j < masks.size(); ++j) {
      const BlockMask second = *convert(masks[j], MaskFormat::segment, other);
      const DenseBits b = *dense_from_segment(stored(masks[j]));
      for (const Named& named : operations()) {
        DenseBits expected = a;
        for (std::size_t w = 0; w < expected.words.size(); ++w) {
          expected.words[w] = named.of_words(a.words[w], b.words[w]);
        }
        const auto made = combine(masks[i], second, named.operation);
        ASSERT_TRUE(made);
        ASSERT_EQ(stored(*made), segment_from_dense(expected, made->block))
            << names[i] << " " << named.sign << " " << names[j];
      }
    }
  }
}

TEST(SetAlgebraMillion, EqualsTheExpressionCompiledAsAWhole) {
  const std::vector<std::string> specs{
      "causal",     "window(1024)",  "documents(lengths=@len)",         "prefix(100000)",
      "global(16)", "chunked(4096)", "causal & documents(lengths=@len)"};
  std::vector<BlockMask> masks;
  for (const std::string& spec : specs) masks.push_back(compile_million(spec));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (std::size_t j = 0; j < specs.size(); ++j) {
      for (const Named& named : operations()) {
        const std::string spec = "(" + specs[i] + ") " + named.sign + " (" + specs[j] + ")";
        const auto made = combine(masks[i], masks[j], named.operation);
        ASSERT_TRUE(made);
        EXPECT_EQ(stored(*made), stored(compile_million(spec))) << spec;
      }
      // The counts follow inclusion and exclusion.
      EXPECT_EQ(pairs_of(masks[i]) + pairs_of(masks[j]),
                pairs_of(*intersect(masks[i], masks[j])) + pairs_of(*unite(masks[i], masks[j])));
    }
    const auto rest = complement(masks[i]);
    ASSERT_TRUE(rest);
    EXPECT_EQ(stored(*rest), stored(compile_million("~(" + specs[i] + ")"))) << specs[i];
    EXPECT_EQ(pairs_of(*rest) + pairs_of(masks[i]), kMillion * kMillion);
  }
}

TEST(SetAlgebraMillion, KeepsClosedFormsClosed) {
  const BlockMask causal = compile_million("causal");
  const BlockMask window = compile_million("window(1024)");
  const auto both = intersect(causal, window);
  ASSERT_TRUE(both);
  EXPECT_LE(stored(*both).runs.size(), 10u);
  EXPECT_LT(both->size_bytes(), 8192);
  EXPECT_LE(stored(*complement(*both)).runs.size(), 12u);
  EXPECT_LE(stored(*symmetric_difference(causal, window)).runs.size(), 12u);
  EXPECT_LE(stored(*shift(*both, 1000, 77)).runs.size(), 24u);
  EXPECT_LE(stored(*transpose(*both)).runs.size(), 12u);
  SetAlgebraOptions parametric;
  parametric.format = MaskFormat::parametric;
  const auto form = intersect(*convert(causal, MaskFormat::parametric, causal.block),
                              *convert(window, MaskFormat::parametric, {64, 64}), parametric);
  ASSERT_TRUE(form);
  EXPECT_EQ(form->size_bytes(), 72);
}

// Returns the mask of every second key, which has one bitmap on every tile.
BlockMask stripes(std::int64_t n) {
  SegmentMask mask;
  mask.q_len = mask.kv_len = n;
  mask.bitmaps.assign(static_cast<std::size_t>(mask.words_per_bitmap()), 0x5555555555555555u);
  const std::int32_t num_rows = mask.num_tile_rows();
  mask.runs = {{0, 1, num_rows, 1, 0}};
  mask.segments = {{0, num_rows, 0, 0, SegmentKind::bitmap, 0}};
  return make_block_mask({1, 1, {n}, {n}}, mask.block, {mask});
}

TEST(SetAlgebraMillion, KeepsGrowingPatternsInOneRun) {
  const auto small =
      intersect(stripes(4096), *crop(compile_million("causal"), {0, 4096, 0, 4096, 0, 1, 0, 1}));
  ASSERT_TRUE(small);
  EXPECT_TRUE(validate(*small, ValidationLevel::canonical));
  const auto made = intersect(stripes(kMillion), compile_million("causal"));
  ASSERT_TRUE(made);
  EXPECT_EQ(stored(*made).runs.size(), stored(*small).runs.size());
  EXPECT_EQ(pairs_of(*made), kMillion / 2 * (kMillion / 2 + 1));  // sum of ceil((q + 1) / 2)
}

TEST(SetAlgebraMillion, CombinesUnequalBlocks) {
  const BlockMask documents = compile_million("documents(lengths=@len)");
  const BlockMask causal = *convert(compile_million("causal"), MaskFormat::segment, {64, 256});
  const auto made = intersect(documents, causal);
  ASSERT_TRUE(made);
  EXPECT_EQ(stored(*made), stored(compile_million("causal & documents(lengths=@len)")));
}

TEST(SetAlgebraMillion, ShiftsAndTransposes) {
  EXPECT_EQ(stored(*shift(compile_million("k <= q"), 1000, 77)),
            stored(compile_million("q >= 1000 & k >= 77 & k - 77 <= q - 1000")));
  EXPECT_EQ(stored(*shift(compile_million("abs(q - k) < 1024"), -5, 128)),
            stored(compile_million("q + 5 < q_len & k >= 128 & abs(q + 5 - (k - 128)) < 1024")));
  EXPECT_EQ(stored(*transpose(compile_million("causal"))), stored(compile_million("q <= k")));
  const BlockMask documents = compile_million("documents(lengths=@len)");
  EXPECT_EQ(stored(*transpose(documents)), stored(documents));
  const BlockMask packed = compile_million("causal & documents(lengths=@len)");
  EXPECT_EQ(stored(*transpose(packed)),
            stored(compile_million("q <= k & documents(lengths=@len)")));
  const auto moved = shift(packed, 1000, 77);
  ASSERT_TRUE(moved);
  const auto inside = crop(*moved, {1000, kMillion, 77, kMillion, 0, 1, 0, 1});
  const auto origin = crop(packed, {0, kMillion - 1000, 0, kMillion - 77, 0, 1, 0, 1});
  EXPECT_TRUE(equal_cells(*inside, *origin));
  EXPECT_EQ(pairs_of(*moved), pairs_of(*origin));
}

}  // namespace
}  // namespace fdma
