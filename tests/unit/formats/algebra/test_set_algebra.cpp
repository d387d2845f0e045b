// Tests the laws of set algebra, and set algebra against the cells in every format and for unequal
// blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

constexpr SetOperation kOperations[] = {SetOperation::intersection, SetOperation::union_of,
                                        SetOperation::difference,
                                        SetOperation::symmetric_difference};

bool holds(SetOperation operation, bool a, bool b) {
  switch (operation) {
    case SetOperation::intersection:
      return a && b;
    case SetOperation::union_of:
      return a || b;
    case SetOperation::difference:
      return a && !b;
    case SetOperation::symmetric_difference:
      return a != b;
  }
  return false;
}

/// Returns cells that often have a closed form, so that every format takes part.
Cells random_simple_cells(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len) {
  if (pick(rng, 0, 2) == 0) return testing::random_cells(rng, q_len, kv_len);
  const std::int64_t offset = pick(rng, -40, 40), left = pick(rng, 0, 200), size = pick(rng, 1, 90);
  const std::int64_t kind = pick(rng, 0, 3);
  return testing::make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
    const std::int64_t pos = q + offset;
    switch (kind) {
      case 0:
        return k <= pos;
      case 1:
        return k <= pos && k > pos - left;
      case 2:
        return k / size == q / size && k <= q;
      default:
        return k < size || k <= pos - left;
    }
  });
}

/// Returns the mask in a random format that can hold it.
BlockMask in_random_format(std::mt19937& rng, const BlockMask& mask, BlockShape block) {
  while (true) {
    auto made = convert(
        mask, kMaskFormats[static_cast<std::size_t>(pick(rng, 0, std::ssize(kMaskFormats) - 1))],
        block);
    if (made) return *std::move(made);
  }
}

/// Returns one stored mask in a random format and block.
BlockMask random_mask(std::mt19937& rng, const Cells& cells) {
  const BlockShape block = testing::random_block(rng);
  return in_random_format(rng, testing::block_mask_of(cells, block), block);
}

TEST(SetAlgebra, CombinesCellByCell) {
  EXPECT_TRUE(rc::check("combine", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 300), kv_len = pick(rng, 0, 300);
    const Cells a = random_simple_cells(rng, q_len, kv_len);
    const Cells b = random_simple_cells(rng, q_len, kv_len);
    const BlockMask mask_a = random_mask(rng, a), mask_b = random_mask(rng, b);
    for (const SetOperation operation : kOperations) {
      const Cells expected =
          testing::make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
            return holds(operation, a.get(q, k), b.get(q, k));
          });
      const auto made = combine(mask_a, mask_b, operation);
      RC_ASSERT(made.has_value());
      RC_ASSERT(made->format() == MaskFormat::segment);
      RC_ASSERT(made->block == mask_a.block);
      RC_ASSERT(testing::cells_of(*made, 0) == expected);
      // The arrays are canonical: the cells alone determine them.
      RC_ASSERT(std::get<0>(made->groups)[0] ==
                segment_from_dense(testing::dense_of(expected), made->block));
    }
  }));
}

TEST(SetAlgebra, ComplementsTheCellsThatExist) {
  EXPECT_TRUE(rc::check("complement", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 300), kv_len = pick(rng, 0, 300);
    const Cells cells = random_simple_cells(rng, q_len, kv_len);
    const Cells expected = testing::make_cells(
        q_len, kv_len, [&](std::int64_t q, std::int64_t k) { return !cells.get(q, k); });
    const auto made = complement(random_mask(rng, cells));
    RC_ASSERT(made.has_value());
    RC_ASSERT(std::get<0>(made->groups)[0] ==
              segment_from_dense(testing::dense_of(expected), made->block));
  }));
}

TEST(SetAlgebra, ShiftsByAnyDistance) {
  EXPECT_TRUE(rc::check("shift", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 300), kv_len = pick(rng, 0, 300);
    const Cells cells = random_simple_cells(rng, q_len, kv_len);
    const BlockMask mask = random_mask(rng, cells);
    for (int i = 0; i < 3; ++i) {
      std::int64_t dq = pick(rng, -320, 320), dk = pick(rng, -320, 320);
      if (pick(rng, 0, 2) == 0) dq = dq / mask.block.block_q * mask.block.block_q;
      if (pick(rng, 0, 2) == 0) dk = dk / mask.block.block_kv * mask.block.block_kv;
      const Cells expected =
          testing::make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
            const std::int64_t from_q = q - dq, from_k = k - dk;
            return from_q >= 0 && from_q < q_len && from_k >= 0 && from_k < kv_len &&
                   cells.get(from_q, from_k);
          });
      const auto made = shift(mask, dq, dk);
      RC_ASSERT(made.has_value());
      RC_ASSERT(std::get<0>(made->groups)[0] ==
                segment_from_dense(testing::dense_of(expected), made->block));
    }
  }));
}

TEST(SetAlgebra, TransposesTilesOfAnyShape) {
  EXPECT_TRUE(rc::check("transpose", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 300), kv_len = pick(rng, 0, 300);
    const Cells cells = random_simple_cells(rng, q_len, kv_len);
    const BlockMask mask = random_mask(rng, cells);
    const Cells expected = testing::make_cells(
        kv_len, q_len, [&](std::int64_t q, std::int64_t k) { return cells.get(k, q); });
    const auto made = transpose(mask);
    RC_ASSERT(made.has_value());
    RC_ASSERT((made->block == BlockShape{mask.block.block_kv, mask.block.block_q}));
    RC_ASSERT(std::get<0>(made->groups)[0] ==
              segment_from_dense(testing::dense_of(expected), made->block));
    SetAlgebraOptions back;
    back.block = mask.block;
    RC_ASSERT(equal_cells(*transpose(*made, back), mask));
  }));
}

TEST(SetAlgebra, HoldsTheLaws) {
  EXPECT_TRUE(rc::check("laws", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 1, 200), kv_len = pick(rng, 1, 200);
    const BlockShape block = testing::random_block(rng);
    const auto make = [&] {
      const BlockMask mask = testing::random_block_mask(rng, q_len, kv_len, block);
      return in_random_format(rng, mask, block);
    };
    BlockMask a = make();
    BlockMask b = make(), c = make();
    // b and c have one batch element and head, because the laws are about cells.
    b = testing::block_mask_of(testing::cells_of(b, 0), block);
    c = in_random_format(rng, testing::block_mask_of(testing::cells_of(c, 0), block),
                         testing::random_block(rng));
    const auto nor = *complement(*unite(a, b));
    RC_ASSERT(equal_cells(nor, *intersect(*complement(a), *complement(b))));
    RC_ASSERT(equal_cells(*complement(*intersect(a, c)), *unite(*complement(a), *complement(c))));
    RC_ASSERT(equal_cells(*complement(*complement(a)), a));
    RC_ASSERT(equal_cells(*intersect(a, a), a));
    RC_ASSERT(equal_cells(*unite(a, a), a));
    RC_ASSERT(equal_cells(*intersect(a, *unite(b, c)), *unite(*intersect(a, b), *intersect(a, c))));
    RC_ASSERT(equal_cells(*unite(a, *intersect(b, c)), *intersect(*unite(a, b), *unite(a, c))));
    RC_ASSERT(
        equal_cells(*symmetric_difference(a, b), *unite(*difference(a, b), *difference(b, a))));
    RC_ASSERT(equal_cells(*difference(a, c), *intersect(a, *complement(c))));
    RC_ASSERT(equal_cells(*symmetric_difference(*symmetric_difference(a, b), b), a));
    RC_ASSERT(equal_cells(*transpose(*intersect(a, b)), *intersect(*transpose(a), *transpose(b))));
    const std::int64_t dq = pick(rng, -60, 60), dk = pick(rng, -60, 60);
    RC_ASSERT(
        equal_cells(*shift(*unite(a, b), dq, dk), *unite(*shift(a, dq, dk), *shift(b, dq, dk))));
    RC_ASSERT(equal_cells(*transpose(*shift(a, dq, dk)), *shift(*transpose(a), dk, dq)));
  }));
}

TEST(SetAlgebra, ServesEveryBatchElementAndHead) {
  EXPECT_TRUE(rc::check("groups", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 1, 120), kv_len = pick(rng, 1, 120);
    const BlockMask a = testing::random_block_mask(rng, q_len, kv_len, testing::random_block(rng));
    BlockMask b = testing::random_block_mask(rng, q_len, kv_len, testing::random_block(rng));
    const bool keep_batches = a.shape.num_batches == b.shape.num_batches;
    const bool keep_heads = a.shape.num_heads == b.shape.num_heads;
    b = *crop(b, {0, q_len, 0, kv_len, 0, keep_batches ? b.shape.num_batches : 1, 0,
                  keep_heads ? b.shape.num_heads : 1});
    for (const SetOperation operation : kOperations) {
      const auto made = combine(a, b, operation);
      RC_ASSERT(made.has_value());
      RC_ASSERT(made->shape.num_batches == a.shape.num_batches);
      RC_ASSERT(made->shape.num_heads == a.shape.num_heads);
      RC_ASSERT(validate(*made, ValidationLevel::canonical).has_value());
      for (std::int64_t i = 0; i < a.shape.num_batches; ++i) {
        for (std::int64_t h = 0; h < a.shape.num_heads; ++h) {
          const Cells cells_a = testing::cells_of(a, a.group(i, h));
          const Cells cells_b =
              testing::cells_of(b, b.group(keep_batches ? i : 0, keep_heads ? h : 0));
          RC_ASSERT(testing::cells_of(*made, made->group(i, h)) ==
                    testing::make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
                      return holds(operation, cells_a.get(q, k), cells_b.get(q, k));
                    }));
        }
      }
    }
  }));
}

TEST(SetAlgebra, MixesColumnTablesWithAnything) {
  std::mt19937 rng(7);
  const std::int64_t n = 600;
  std::vector<std::int64_t> last(static_cast<std::size_t>(n));
  for (std::int64_t& end : last) end = pick(rng, 1, n);
  const auto make = [&](auto condition) { return testing::make_cells(n, n, condition); };
  const Cells lives = make([&](auto q, auto k) { return q < last[static_cast<std::size_t>(k)]; });
  const Cells others[] = {
      make([&](auto q, auto k) { return q + 40 < last[static_cast<std::size_t>(k)]; }),  // a table
      make([](auto q, auto k) { return k <= q; }),             // few intervals
      make([](auto q, auto k) { return (q + k) % 2 == 0; })};  // far more than the table has
  const BlockMask mask = testing::block_mask_of(lives, {});
  const auto has_table = [](const BlockMask& m) {
    return !std::get<std::vector<SegmentMask>>(m.groups)[0].column_offsets.empty();
  };
  ASSERT_TRUE(has_table(mask));
  ASSERT_TRUE(has_table(testing::block_mask_of(others[0], {})));
  for (const Cells& other : others) {
    for (const SetOperation operation : kOperations) {
      for (const bool is_swapped : {false, true}) {
        const BlockMask second = testing::block_mask_of(other, {});
        const Cells expected = make([&](auto q, auto k) {
          const bool a = lives.get(q, k), b = other.get(q, k);
          return is_swapped ? holds(operation, b, a) : holds(operation, a, b);
        });
        const auto made =
            is_swapped ? combine(second, mask, operation) : combine(mask, second, operation);
        ASSERT_TRUE(made);
        EXPECT_EQ(std::get<std::vector<SegmentMask>>(made->groups)[0],
                  segment_from_dense(testing::dense_of(expected), made->block));
      }
    }
  }
}

TEST(SetAlgebra, TakesElementsOfDifferentLengths) {
  const auto masks_of = [](BlockShape block, auto condition) {
    std::vector<SegmentMask> masks;
    for (const std::int64_t length : {40, 70}) {
      masks.push_back(
          segment_from_dense(dense_of(testing::make_cells(length, length + 3, condition)), block));
    }
    const std::vector<std::int32_t> of{0, 1};
    return make_block_mask({2, 1, {40, 70}, {43, 73}}, block, std::move(masks), of);
  };
  const BlockMask causal = masks_of({16, 32}, [](auto q, auto k) { return k <= q; });
  const BlockMask window = masks_of({32, 16}, [](auto q, auto k) { return k > q - 9; });
  const auto made = intersect(causal, window);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->shape, causal.shape);
  EXPECT_TRUE(
      equal_cells(*made, masks_of({16, 16}, [](auto q, auto k) { return k <= q && k > q - 9; })));
  const auto turned = transpose(*made);
  ASSERT_TRUE(turned);
  EXPECT_THAT(turned->shape.q_lens, ::testing::ElementsAre(43, 73));
  EXPECT_TRUE(validate(*turned, ValidationLevel::canonical));
}

TEST(SetAlgebra, KeepsClosedFormsWhereAskedFor) {
  const std::int64_t n = 1000;
  SetAlgebraOptions parametric;
  parametric.format = MaskFormat::parametric;
  const BlockMask causal =
      testing::block_mask_of(testing::make_cells(n, n, [](auto q, auto k) { return k <= q; }), {});
  const BlockMask window = testing::block_mask_of(
      testing::make_cells(n, n, [](auto q, auto k) { return q - k < 100; }), {});
  const auto both = intersect(causal, window, parametric);
  ASSERT_TRUE(both);
  const ParametricMask& form = std::get<std::vector<ParametricMask>>(both->groups)[0];
  EXPECT_EQ(form.left, 99);
  EXPECT_EQ(form.right, 0);
  const auto moved = shift(*both, 7, 3, parametric);
  EXPECT_TRUE(moved) << moved.error().message;
  const auto holes = complement(*both, parametric);
  ASSERT_FALSE(holes);
  EXPECT_EQ(holes.error().code, ErrorCode::unsupported);
  const auto bits = unite(causal, window, {MaskFormat::bitset, BlockShape{64, 64}});
  ASSERT_TRUE(bits);
  EXPECT_EQ(bits->format(), MaskFormat::bitset);
  EXPECT_EQ(bits->block, (BlockShape{64, 64}));
  EXPECT_TRUE(validate(*bits, ValidationLevel::canonical));
}

TEST(SetAlgebra, AdjustsTheOrigin) {
  BlockMask mask = testing::block_mask_of(Cells(50, 60), {16, 16});
  mask.origin = {100, 20, 2, 3};
  EXPECT_EQ(shift(mask, 7, -5)->origin, (MaskOrigin{93, 25, 2, 3}));
  EXPECT_EQ(shift(mask, 7, 30)->origin, (MaskOrigin{93, 0, 2, 3}));
  EXPECT_EQ(transpose(mask)->origin, (MaskOrigin{20, 100, 2, 3}));
  EXPECT_EQ(complement(mask)->origin, mask.origin);
}

TEST(SetAlgebra, RejectsMasksOfDifferentShapes) {
  const BlockMask a = testing::block_mask_of(Cells(10, 20), {16, 16});
  const BlockMask b = testing::block_mask_of(Cells(10, 21), {16, 16});
  const auto made = intersect(a, b);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::shape_mismatch);
  EXPECT_EQ(made.error().message,
            "combine: expected equal lengths in batch element 0, but the masks are (batch 1, heads "
            "1, q_len 10, kv_len 20) and (batch 1, heads 1, q_len 10, kv_len 21)");
  BlockMask two = a, three = a;
  two.shape.num_heads = 2;
  two.group_of = {0, 0};
  three.shape.num_heads = 3;
  three.group_of = {0, 0, 0};
  const auto heads = unite(two, three);
  ASSERT_FALSE(heads);
  EXPECT_THAT(heads.error().message, ::testing::HasSubstr("heads 2"));
  EXPECT_THAT(heads.error().message, ::testing::HasSubstr("heads 3"));
}

TEST(SetAlgebra, RejectsBadBlocksAndDistances) {
  const BlockMask mask = testing::block_mask_of(Cells(10, 20), {16, 16});
  SetAlgebraOptions options;
  options.block = BlockShape{17, 16};
  EXPECT_EQ(complement(mask, options).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(intersect(mask, mask, options).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(transpose(mask, options).error().code, ErrorCode::invalid_argument);
  const auto far = shift(mask, std::int64_t{1} << 31, 0);
  ASSERT_FALSE(far);
  EXPECT_EQ(far.error().message, "shift: dq = 2147483648, expected -2147483647 to 2147483647");
  EXPECT_TRUE(shift(mask, kMaxLength, -kMaxLength));
}

}  // namespace
}  // namespace fdma
