// Tests FlexAttention's arrays. They are canonical and exact both ways, and the error of every kind
// of damage names it.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "cell_oracle.hpp"
#include "fdma/formats/interop/flex_block_mask.hpp"
#include "fdma/formats/validate.hpp"
#include "interop_masks.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::compiled;
using testing::pick;

FlexExportOptions in_blocks(BlockShape block) {
  FlexExportOptions options;
  options.block = block;
  return options;
}

// Does what create_block_mask does: pads with zeros, counts, and sorts each row stably and
// descending.
FlexIndexTable sorted_rows(const std::vector<char>& flags, std::int64_t rows, std::int64_t cols) {
  FlexIndexTable table;
  table.width = cols;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(cols));
    std::int32_t count = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      order[static_cast<std::size_t>(c)] = static_cast<std::int32_t>(c);
      count += flags[static_cast<std::size_t>(row * cols + c)];
    }
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return flags[static_cast<std::size_t>(row * cols + a)] >
             flags[static_cast<std::size_t>(row * cols + b)];
    });
    table.num_blocks.push_back(count);
    table.indices.insert(table.indices.end(), order.begin(), order.end());
  }
  return table;
}

struct Reference {
  FlexIndexTable kv, full_kv, q, full_q;
};
Reference reference_of(const Cells& cells, BlockShape block) {
  const std::int64_t rows = ceil_div(cells.q_len, block.block_q);
  const std::int64_t cols = ceil_div(cells.kv_len, block.block_kv);
  std::vector<char> partial(static_cast<std::size_t>(rows * cols)), full(partial.size());
  std::vector<char> partial_t(partial.size()), full_t(partial.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      std::int64_t count = 0;
      for (std::int64_t q = row * block.block_q;
           q < std::min<std::int64_t>((row + 1) * block.block_q, cells.q_len); ++q) {
        for (std::int64_t k = col * block.block_kv;
             k < std::min<std::int64_t>((col + 1) * block.block_kv, cells.kv_len); ++k) {
          count += cells.get(q, k) ? 1 : 0;
        }
      }
      const bool is_full = count == std::int64_t{block.block_q} * block.block_kv;
      const auto at = static_cast<std::size_t>(row * cols + col);
      const auto at_t = static_cast<std::size_t>(col * rows + row);
      full[at] = full_t[at_t] = is_full ? 1 : 0;
      partial[at] = partial_t[at_t] = count > 0 && !is_full ? 1 : 0;
    }
  }
  return {sorted_rows(partial, rows, cols), sorted_rows(full, rows, cols),
          sorted_rows(partial_t, cols, rows), sorted_rows(full_t, cols, rows)};
}

TEST(FlexFromBlockMask, GivesTheArraysOfItsExample) {
  const auto flex = flex_from_block_mask(compiled("causal", 300, 300));
  ASSERT_TRUE(flex) << flex.error().message;
  EXPECT_EQ(flex->kv.num_blocks, (std::vector<std::int32_t>{1, 1, 3}));
  EXPECT_EQ(flex->kv.indices, (std::vector<std::int32_t>{0, 1, 2, 1, 0, 2, 0, 1, 2}));
  EXPECT_EQ(flex->full_kv->num_blocks, (std::vector<std::int32_t>{0, 1, 0}));
  EXPECT_EQ(flex->full_kv->indices, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
}

TEST(FlexFromBlockMask, SortsAsCreateBlockMaskAndComesBack) {
  EXPECT_TRUE(rc::check("arrays and round trip", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const Cells cells = testing::random_cells(rng, pick(rng, 1, 300), pick(rng, 1, 300));
    const BlockShape block = testing::random_block(rng);
    const BlockMask mask = testing::block_mask_of(cells, testing::random_block(rng));
    const auto flex = flex_from_block_mask(mask, in_blocks(block));
    ASSERT_TRUE(flex) << flex.error().message;
    const Reference expected = reference_of(cells, block);
    ASSERT_EQ(flex->kv, expected.kv);
    ASSERT_EQ(*flex->full_kv, expected.full_kv);
    ASSERT_EQ(*flex->q, expected.q);
    ASSERT_EQ(*flex->full_q, expected.full_q);
    // By the bitmaps they carry, and by the cells of another mask.
    const auto own = block_mask_from_flex(*flex);
    ASSERT_TRUE(own) << own.error().message;
    ASSERT_TRUE(equal_cells(mask, *own));
    FlexBlockMask bare = *flex;
    bare.cells.reset();
    const auto given = block_mask_from_flex(bare, &mask);
    ASSERT_TRUE(given) << given.error().message;
    ASSERT_TRUE(equal_cells(mask, *given));
    ASSERT_TRUE(block_mask_from_flex(*flex, &mask));
    for (const auto* result : {&*own, &*given}) {
      ASSERT_TRUE(validate(*result, ValidationLevel::canonical));
      const auto again = flex_from_block_mask(*result, in_blocks(block));
      ASSERT_TRUE(again);
      ASSERT_EQ(*again, *flex);  // bit for bit
    }
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(FlexFromBlockMask, KeepsHeadsAndBatchElements) {
  std::mt19937 rng(11);
  for (int trial = 0; trial < 40; ++trial) {
    const BlockMask mask =
        testing::random_block_mask(rng, pick(rng, 1, 200), pick(rng, 1, 200), {32, 16});
    for (const bool separate_full : {true, false}) {
      FlexExportOptions options = in_blocks({48, 64});
      options.separate_full = separate_full;
      const auto flex = flex_from_block_mask(mask, options);
      ASSERT_TRUE(flex) << flex.error().message;
      EXPECT_EQ(flex->full_kv.has_value(), separate_full);
      const auto back = block_mask_from_flex(*flex);
      ASSERT_TRUE(back) << back.error().message;
      EXPECT_TRUE(equal_cells(mask, *back));
      EXPECT_EQ(*flex_from_block_mask(*back, options), *flex);
      EXPECT_TRUE(block_mask_from_flex(*flex, &mask));
    }
  }
}

TEST(FlexFromBlockMask, RoundsTripTheMaskSuite) {
  for (const auto& [name, mask] : testing::compiled_suite(2048)) {
    const auto flex = flex_from_block_mask(mask);
    ASSERT_TRUE(flex) << name;
    const auto back = block_mask_from_flex(*flex);
    ASSERT_TRUE(back) << name << ": " << back.error().message;
    EXPECT_TRUE(equal_cells(mask, *back)) << name;
    EXPECT_EQ(*flex_from_block_mask(*back), *flex) << name;
  }
}

TEST(BlockMaskFromFlex, TakesAnyPaddingOrderAndWidth) {
  const BlockMask mask = compiled("causal & window(200)", 500, 700);
  FlexBlockMask flex = *flex_from_block_mask(mask);
  for (FlexIndexTable* table : {&flex.kv, &*flex.full_kv, &*flex.q, &*flex.full_q}) {
    const auto width = static_cast<std::size_t>(table->width);
    for (std::size_t row = 0; row < table->num_blocks.size(); ++row) {
      const auto first = table->indices.begin() + static_cast<std::ptrdiff_t>(row * width);
      const auto count = table->num_blocks[row];
      std::fill(first + count, first + static_cast<std::ptrdiff_t>(width), row % 2 ? -1 : 0);
    }
  }
  flex.q.reset();
  flex.full_q.reset();
  FlexBlockMask reversed = flex;
  reversed.cells.reset();
  for (std::size_t row = 0; row < reversed.kv.num_blocks.size(); ++row) {
    const auto first =
        reversed.kv.indices.begin() + static_cast<std::ptrdiff_t>(row) * reversed.kv.width;
    std::reverse(first, first + reversed.kv.num_blocks[row]);
  }
  const auto back = block_mask_from_flex(flex);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(equal_cells(mask, *back));
  const auto from_reversed = block_mask_from_flex(reversed, &mask);
  ASSERT_TRUE(from_reversed) << from_reversed.error().message;
  EXPECT_TRUE(equal_cells(mask, *from_reversed));
}

TEST(BlockMaskFromFlex, SharesCellsAmongHeads) {
  const BlockMask mask = compiled("causal", 256, 256, {}, 4);
  FlexBlockMask flex = *flex_from_block_mask(mask);
  flex.cells.reset();
  const BlockMask shared = compiled("causal", 256, 256);
  const auto back = block_mask_from_flex(flex, &shared);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(equal_cells(mask, *back));
  EXPECT_EQ(back->num_groups(), 1);
}

// Arrays of causal & window(200) over 500 x 500, blocks 128, and what was done to them.
void expect_rejected(const std::string& message, void (*damage)(FlexBlockMask&),
                     const char* cells_spec = nullptr) {
  FlexBlockMask flex = *flex_from_block_mask(compiled("causal & window(200)", 500, 500));
  damage(flex);
  BlockMask cells;
  if (cells_spec != nullptr) cells = compiled(cells_spec, 500, 500);
  const auto result = block_mask_from_flex(flex, cells_spec != nullptr ? &cells : nullptr);
  ASSERT_FALSE(result) << message;
  EXPECT_NE(result.error().message.find(message), std::string::npos)
      << "expected '" << message << "' in: " << result.error().message;
}

TEST(BlockMaskFromFlex, RejectsDamagedArrays) {
  const auto rejected = [](const char* message, void (*damage)(FlexBlockMask&)) {
    expect_rejected(message, damage);
  };
  rejected("kv_num_blocks[0]: -1", [](FlexBlockMask& f) { f.kv.num_blocks[0] = -1; });
  rejected("kv_num_blocks[0]: 5", [](FlexBlockMask& f) { f.kv.num_blocks[0] = 5; });
  rejected("kv_indices[0, 0]: 4", [](FlexBlockMask& f) { f.kv.indices[0] = 4; });
  rejected("kv_indices[0, 0]: -1", [](FlexBlockMask& f) { f.kv.indices[0] = -1; });
  rejected("kv_indices: 15 entries", [](FlexBlockMask& f) { f.kv.indices.pop_back(); });
  rejected("kv_num_blocks: 3 entries", [](FlexBlockMask& f) { f.kv.num_blocks.pop_back(); });
  rejected("full_kv_indices: width", [](FlexBlockMask& f) {
    f.full_kv->width = 1;
    f.full_kv->indices.resize(4);
  });
  rejected("q_indices[0]: lists other tiles", [](FlexBlockMask& f) { f.q->indices[0] = 3; });
  rejected("listed twice in kv_indices", [](FlexBlockMask& f) {
    f.q.reset();
    f.kv.indices[5] = f.kv.indices[4];
  });
  rejected("tile (1, 0): listed in kv_indices and in full_kv_indices", [](FlexBlockMask& f) {
    f.full_q.reset();
    f.full_kv->num_blocks[1] = 1;
    f.full_kv->indices[4] = 0;
  });
  rejected("BLOCK_SIZE: (100, 128)", [](FlexBlockMask& f) { f.block_q = 100; });
  rejected("BLOCK_SIZE: (1073741824, 128)", [](FlexBlockMask& f) { f.block_q = 1 << 30; });
  rejected("seq_lengths[0]: -1", [](FlexBlockMask& f) { f.q_len = -1; });
  rejected("seq_lengths[1]: 2147483648", [](FlexBlockMask& f) { f.kv_len = kMaxLength + 1; });
  rejected("batch elements and heads", [](FlexBlockMask& f) { f.num_batches = 1 << 25; });
  rejected("full_q_indices: given without", [](FlexBlockMask& f) { f.full_kv.reset(); });
  rejected("bitmap_index: 0 entries", [](FlexBlockMask& f) { f.cells->bitmap_index.clear(); });
  rejected("bitmap_index[0]: 99", [](FlexBlockMask& f) { f.cells->bitmap_index[0] = 99; });
  rejected("bitmaps: 1 words", [](FlexBlockMask& f) { f.cells->bitmaps.resize(1); });
  rejected("has no true cell", [](FlexBlockMask& f) {
    std::fill(f.cells->bitmaps.begin(), f.cells->bitmaps.end(), 0);
  });
  rejected("true cells past the lengths",
           [](FlexBlockMask& f) { f.cells->bitmaps.back() |= std::uint64_t{1} << 63; });
  rejected("listed as partial, but bitmap 0 is full", [](FlexBlockMask& f) {
    std::fill(f.cells->bitmaps.begin(), f.cells->bitmaps.begin() + 256, ~std::uint64_t{0});
  });
  rejected("listed as full, but it reaches past", [](FlexBlockMask& f) {
    f.q.reset();
    f.full_q.reset();
    f.full_kv->num_blocks[3] = 1;
    f.full_kv->indices[12] = 0;
  });
}

TEST(BlockMaskFromFlex, RejectsPartialTilesWithoutCells) {
  expect_rejected("tile (0, 0): a partial tile, but nothing says which of its cells are true",
                  [](FlexBlockMask& flex) { flex.cells.reset(); });
}

TEST(BlockMaskFromFlex, RejectsCellsOfAnotherMask) {
  const auto bare = [](FlexBlockMask& flex) { flex.cells.reset(); };
  expect_rejected("tile (0, 0): listed as partial, but full in the mask", bare, "true");
  expect_rejected("tile (0, 0): listed as partial, but empty in the mask", bare, "false");
  expect_rejected("tile (3, 0): not listed, but partial in the mask", bare,
                  "causal & window(200) | q == 400 & k == 0");
  expect_rejected(
      "tile (2, 1): listed as",
      [](FlexBlockMask& flex) {
        flex.cells.reset();
        flex.q.reset();
        flex.full_q.reset();
        flex.kv.num_blocks[2] = 1;  // (2, 2) only; (2, 0) goes
        flex.full_kv->num_blocks[2] = 1;
        flex.kv.indices[8] = 2;
        flex.full_kv->indices[8] = 1;
      },
      "causal & window(200) & ~(q // 128 == 2 & k < 128)");
  expect_rejected(
      "the mask given differs from the bitmaps", [](FlexBlockMask&) {}, "causal & window(201)");
}

TEST(BlockMaskFromFlex, RejectsCellsOfOtherLengthsAndCounts) {
  const FlexBlockMask flex = *flex_from_block_mask(compiled("causal", 256, 256));
  const BlockMask longer = compiled("causal", 256, 257);
  EXPECT_EQ(block_mask_from_flex(flex, &longer).error().code, ErrorCode::shape_mismatch);
  const BlockMask heads = compiled("causal", 256, 256, {}, 2);
  EXPECT_EQ(block_mask_from_flex(flex, &heads).error().code, ErrorCode::shape_mismatch);
}

TEST(FlexFromBlockMask, RejectsWhatTheLayoutCannotHold) {
  BlockMask mask = compiled("causal", 256, 256);
  FlexExportOptions options;
  options.max_bytes = 10;
  EXPECT_EQ(flex_from_block_mask(mask, options).error().code, ErrorCode::out_of_memory);
  options = in_blocks({24, 128});
  EXPECT_EQ(flex_from_block_mask(mask, options).error().code, ErrorCode::invalid_argument);
  const SegmentMask segments = segment_of_group(mask, 0, {128, 128});
  SegmentMask shorter = segment_of_group(compiled("causal", 100, 256), 0, {128, 128});
  mask = make_block_mask({2, 1, {256, 100}, {256}}, {128, 128}, {segments, shorter});
  EXPECT_EQ(flex_from_block_mask(mask).error().code, ErrorCode::unsupported);
}

TEST(FlexFromBlockMask, HoldsLengthsOfZero) {
  for (const auto& [q_len, kv_len] : {std::pair{0, 0}, std::pair{0, 70}, std::pair{70, 0}}) {
    const BlockMask mask = testing::block_mask_of(Cells(q_len, kv_len), {16, 16});
    const auto flex = flex_from_block_mask(mask);
    ASSERT_TRUE(flex);
    const auto back = block_mask_from_flex(*flex);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_TRUE(equal_cells(mask, *back));
    EXPECT_TRUE(block_mask_from_flex(*flex, &mask));
  }
}

}  // namespace
}  // namespace fdma
