// Tests the laws of sets. Random masks of any formats and blocks are compared with the cells, masks
// of a million tokens by counts of pairs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <vector>

#include "cell_oracle.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

constexpr std::int64_t kMillion = 1048576;

/// Returns one stored mask in a random block and in a random format that can hold it.
BlockMask random_mask(std::mt19937& rng, const Cells& cells) {
  const BlockShape block = testing::random_block(rng);
  const BlockMask mask = testing::block_mask_of(cells, block);
  while (true) {
    auto made = convert(
        mask, kMaskFormats[static_cast<std::size_t>(pick(rng, 0, std::ssize(kMaskFormats) - 1))],
        block);
    if (made) return *std::move(made);
  }
}

/// Returns cells with and without a closed form.
Cells random_law_cells(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len) {
  if (pick(rng, 0, 1) == 0) return testing::random_cells(rng, q_len, kv_len);
  const std::int64_t offset = pick(rng, -40, 40), left = pick(rng, 0, 90), size = pick(rng, 1, 90);
  const std::int64_t kind = pick(rng, 0, 3);
  return testing::make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
    const std::int64_t pos = q + offset;
    switch (kind) {
      case 0:
        return k <= pos;
      case 1:
        return k <= pos && k >= pos - left;
      case 2:
        return k / size == q / size;
      default:
        return k < size;
    }
  });
}

/// The masks are equal by every comparison that there is.
void assert_equal(const BlockMask& a, const BlockMask& b) {
  RC_ASSERT(equal_cells(a, b));
  RC_ASSERT(mask_hash(a) == mask_hash(b));
  RC_ASSERT(testing::cells_of(a, 0) == testing::cells_of(b, 0));
}

struct Three {
  std::int64_t q_len, kv_len;
  BlockMask a, b, c;
};
Three random_masks(std::uint32_t seed, std::mt19937& rng) {
  rng.seed(seed);
  Three made{};
  made.q_len = pick(rng, 1, 200);
  made.kv_len = pick(rng, 1, 200);
  for (BlockMask* mask : {&made.a, &made.b, &made.c}) {
    *mask = random_mask(rng, random_law_cells(rng, made.q_len, made.kv_len));
  }
  return made;
}

TEST(SetAlgebraLaws, BooleanAlgebra) {
  EXPECT_TRUE(rc::check("boolean", [](std::uint32_t seed) {
    std::mt19937 rng;
    const auto [q_len, kv_len, a, b, c] = random_masks(seed, rng);
    const BlockMask none = testing::block_mask_of(Cells(q_len, kv_len), {});
    const BlockMask all = *complement(none);
    // De Morgan
    assert_equal(*complement(*unite(a, b)), *intersect(*complement(a), *complement(b)));
    assert_equal(*complement(*intersect(a, b)), *unite(*complement(a), *complement(b)));
    // involution, idempotence, identity, annihilation
    assert_equal(*complement(*complement(a)), a);
    assert_equal(*intersect(a, a), a);
    assert_equal(*unite(a, a), a);
    assert_equal(*unite(a, none), a);
    assert_equal(*intersect(a, all), a);
    assert_equal(*unite(a, all), all);
    assert_equal(*intersect(a, none), none);
    assert_equal(*unite(a, *complement(a)), all);
    assert_equal(*intersect(a, *complement(a)), none);
    // commutativity, associativity
    assert_equal(*unite(a, b), *unite(b, a));
    assert_equal(*intersect(a, b), *intersect(b, a));
    assert_equal(*unite(a, *unite(b, c)), *unite(*unite(a, b), c));
    assert_equal(*intersect(a, *intersect(b, c)), *intersect(*intersect(a, b), c));
    // distributivity, absorption
    assert_equal(*intersect(a, *unite(b, c)), *unite(*intersect(a, b), *intersect(a, c)));
    assert_equal(*unite(a, *intersect(b, c)), *intersect(*unite(a, b), *unite(a, c)));
    assert_equal(*unite(a, *intersect(a, b)), a);
    assert_equal(*intersect(a, *unite(a, b)), a);
  }));
}

TEST(SetAlgebraLaws, Differences) {
  EXPECT_TRUE(rc::check("differences", [](std::uint32_t seed) {
    std::mt19937 rng;
    const auto [q_len, kv_len, a, b, c] = random_masks(seed, rng);
    assert_equal(*difference(a, b), *intersect(a, *complement(b)));
    assert_equal(*symmetric_difference(a, b), *unite(*difference(a, b), *difference(b, a)));
    assert_equal(*symmetric_difference(a, b), *difference(*unite(a, b), *intersect(a, b)));
    assert_equal(*symmetric_difference(*symmetric_difference(a, b), b), a);
    assert_equal(*symmetric_difference(a, *symmetric_difference(b, c)),
                 *symmetric_difference(*symmetric_difference(a, b), c));
    assert_equal(*difference(a, *difference(a, b)), *intersect(a, b));
    assert_equal(*unite(*difference(a, b), *intersect(a, b)), a);
    RC_ASSERT(equal_cells(a, b) ==
              (count_tiles(std::get<0>(symmetric_difference(a, b)->groups)[0]).allowed_pairs == 0));
  }));
}

TEST(SetAlgebraLaws, ShiftsCropsAndTranspositions) {
  EXPECT_TRUE(rc::check("moves", [](std::uint32_t seed) {
    std::mt19937 rng;
    const auto [q_len, kv_len, a, b, c] = random_masks(seed, rng);
    const std::int64_t dq = pick(rng, -90, 90), dk = pick(rng, -90, 90);
    const auto operation = static_cast<SetOperation>(pick(rng, 0, 3));
    // Shift, transpose and crop may come before or after every operation. Cells that come in from
    // outside are empty either way.
    assert_equal(*shift(*combine(a, b, operation), dq, dk),
                 *combine(*shift(a, dq, dk), *shift(b, dq, dk), operation));
    assert_equal(*transpose(*combine(a, b, operation)),
                 *combine(*transpose(a), *transpose(b), operation));
    const std::int64_t q_begin = pick(rng, 0, q_len), q_end = pick(rng, q_begin, q_len);
    const std::int64_t k_begin = pick(rng, 0, kv_len), k_end = pick(rng, k_begin, kv_len);
    const CropRange range{q_begin, q_end, k_begin, k_end, 0, 1, 0, 1};
    assert_equal(*crop(*combine(a, b, operation), range),
                 *combine(*crop(a, range), *crop(b, range), operation));
    assert_equal(*crop(*complement(a), range), *complement(*crop(a, range)));
    assert_equal(*complement(*transpose(a)), *transpose(*complement(a)));
    // These are combined with each other.
    assert_equal(*transpose(*transpose(c)), c);
    assert_equal(*shift(*shift(c, dq, 0), 0, dk), *shift(c, dq, dk));
    assert_equal(*transpose(*shift(c, dq, dk)), *shift(*transpose(c), dk, dq));
    assert_equal(*transpose(*crop(c, range)),
                 *crop(*transpose(c), {k_begin, k_end, q_begin, q_end, 0, 1, 0, 1}));
    const std::int64_t half_q = (q_end - q_begin) / 2, half_k = (k_end - k_begin) / 2;
    assert_equal(*crop(*crop(c, range), {0, half_q, 0, half_k, 0, 1, 0, 1}),
                 *crop(c, {q_begin, q_begin + half_q, k_begin, k_begin + half_k, 0, 1, 0, 1}));
    // A shift there and back loses the cells that left the mask, and no others.
    const CropRange kept{std::max<std::int64_t>(-dq, 0),
                         std::min(q_len, q_len - dq),
                         std::max<std::int64_t>(-dk, 0),
                         std::min(kv_len, kv_len - dk),
                         0,
                         1,
                         0,
                         1};
    if (kept.q_begin < kept.q_end && kept.kv_begin < kept.kv_end) {
      assert_equal(*crop(*shift(*shift(c, dq, dk), -dq, -dk), kept), *crop(c, kept));
    }
  }));
}

TEST(SetAlgebraLaws, BroadcastsEitherOperand) {
  EXPECT_TRUE(rc::check("broadcast", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 1, 120), kv_len = pick(rng, 1, 120);
    const BlockMask heads =
        testing::random_block_mask(rng, q_len, kv_len, testing::random_block(rng));
    const BlockMask one = random_mask(rng, random_law_cells(rng, q_len, kv_len));
    const auto left = *difference(one, heads), right = *difference(heads, one);
    RC_ASSERT(left.shape == heads.shape);
    RC_ASSERT(right.shape == heads.shape);
    RC_ASSERT(validate(left, ValidationLevel::canonical).has_value());
    for (std::int64_t i = 0; i < heads.shape.num_batches; ++i) {
      for (std::int64_t h = 0; h < heads.shape.num_heads; ++h) {
        const CropRange head{0, q_len, 0, kv_len, i, i + 1, h, h + 1};
        const BlockMask single = *crop(heads, head);
        assert_equal(*crop(left, head), *difference(one, single));
        assert_equal(*crop(right, head), *difference(single, one));
      }
    }
    // One mask has batch elements and the other heads; all pairs of both are combined.
    BlockMask batches = one, rows = one;
    batches.shape.num_batches = 3;
    batches.group_of = {0, 0, 0};
    rows.shape.num_heads = 2;
    rows.group_of = {0, 0};
    const auto product = *intersect(batches, rows);
    RC_ASSERT(product.shape.num_batches == 3);
    RC_ASSERT(product.shape.num_heads == 2);
    RC_ASSERT(product.num_groups() == 1);
  }));
}

// A mask of a million tokens, made by its bands, and the number of its pairs.
struct Known {
  std::string name;
  BlockMask mask;
  std::int64_t pairs;
};

RowBands one_band(AffineInterval keys) {
  return {kMillion, kMillion, {{0, static_cast<std::int32_t>(kMillion), 0, 1}}, {keys}};
}

std::vector<Known> known_masks(BlockShape block) {
  const std::int64_t n = kMillion;
  const auto stored = [&](const RowBands& bands) {
    return make_block_mask({1, 1, {n}, {n}}, block, {segment_from_bands(bands, block)});
  };
  const auto prefix = [&](std::int64_t p) { return stored(one_band({0, p, 0, 0})); };
  RowBands window{n, n, {}, {}};  // causal window of w keys: w * n less the corner
  const std::int64_t w = 1000;
  window.bands = {{0, static_cast<std::int32_t>(w), 0, 1},
                  {static_cast<std::int32_t>(w), static_cast<std::int32_t>(n), 1, 1}};
  window.intervals = {{0, 1, 0, 1}, {1 - w, 1, 1, 1}};
  RowBands documents{n, n, {}, {}};  // lengths 1, 2, 3, .. up to the end
  std::int64_t squares = 0;
  for (std::int64_t begin = 0, length = 700; begin < n; begin += length, length += 13) {
    const std::int64_t end = std::min(begin + length, n);
    documents.bands.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
                               std::ssize(documents.intervals), 1});
    documents.intervals.push_back({begin, end, 0, 0});
    squares += (end - begin) * (end - begin);
  }
  return {{"causal", stored(one_band({0, 1, 0, 1})), n * (n + 1) / 2},
          {"window", stored(window), w * n - w * (w - 1) / 2},
          {"documents", stored(documents), squares},
          {"prefix", prefix(12345), 12345 * n}};
}

std::int64_t pairs_of(const BlockMask& mask) {
  return count_tiles(std::get<std::vector<SegmentMask>>(mask.groups).front()).allowed_pairs;
}

TEST(SetAlgebraLaws, CountsAtAMillionTokens) {
  const std::vector<Known> first = known_masks({128, 128}), second = known_masks({64, 256});
  for (const Known& a : first) {
    EXPECT_EQ(pairs_of(a.mask), a.pairs) << a.name;
    EXPECT_EQ(pairs_of(*complement(a.mask)), kMillion * kMillion - a.pairs) << a.name;
    EXPECT_EQ(pairs_of(*transpose(a.mask)), a.pairs) << a.name;
    const auto low = *crop(a.mask, {0, 500001, 0, kMillion, 0, 1, 0, 1});
    const auto high = *crop(a.mask, {500001, kMillion, 0, kMillion, 0, 1, 0, 1});
    EXPECT_EQ(pairs_of(low) + pairs_of(high), a.pairs) << a.name;
    EXPECT_EQ(pairs_of(*shift(a.mask, 500001, 0)),
              pairs_of(*crop(a.mask, {0, kMillion - 500001, 0, kMillion, 0, 1, 0, 1})))
        << a.name;
    for (const Known& b : second) {
      SCOPED_TRACE(a.name + ", " + b.name);
      const std::int64_t both = pairs_of(*intersect(a.mask, b.mask));
      EXPECT_EQ(a.pairs + b.pairs, both + pairs_of(*unite(a.mask, b.mask)));
      EXPECT_EQ(pairs_of(*difference(a.mask, b.mask)), a.pairs - both);
      EXPECT_EQ(pairs_of(*symmetric_difference(a.mask, b.mask)), a.pairs + b.pairs - 2 * both);
      EXPECT_EQ(a.name == b.name, equal_cells(a.mask, b.mask));
      EXPECT_TRUE(equal_cells(*unite(a.mask, b.mask), *unite(b.mask, a.mask)));
    }
  }
  // The lower half of a square document has as many pairs as the upper half; both contain the
  // diagonal.
  const BlockMask &causal = first[0].mask, &documents = second[2].mask;
  const std::int64_t lower = pairs_of(*intersect(causal, documents));
  EXPECT_EQ(2 * lower - kMillion, first[2].pairs);
  EXPECT_EQ(pairs_of(*intersect(first[3].mask, causal)), 12345 * kMillion - 12345 * 12344 / 2);
}

TEST(SetAlgebraProgress, CountsPairsOfGroupsAndStops) {
  std::mt19937 rng(5);
  std::vector<SegmentMask> groups;
  for (int head = 0; head < 6; ++head) {
    groups.push_back(
        segment_from_dense(testing::dense_of(testing::random_cells(rng, 70, 70)), {16, 16}));
  }
  const std::vector<std::int32_t> of{0, 1, 2, 3, 4, 5};
  const BlockMask heads = make_block_mask({1, 6, {70}, {70}}, {16, 16}, groups, of);
  const BlockMask one = testing::block_mask_of(Cells(70, 70), {16, 16});
  std::vector<std::int64_t> seen;
  SetAlgebraOptions options;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, heads.num_groups());
    seen.push_back(done);
  };
  ASSERT_TRUE(unite(heads, one, options));
  EXPECT_THAT(seen, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
  seen.clear();
  ASSERT_TRUE(transpose(heads, options));
  EXPECT_EQ(seen.size(), 6u);
  options.is_cancelled = [] { return true; };
  for (const auto& made : {unite(heads, one, options), complement(heads, options)}) {
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::io);
    EXPECT_EQ(made.error().message, "interrupted");
  }
}

}  // namespace
}  // namespace fdma
