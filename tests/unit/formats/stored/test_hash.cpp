// Tests the two hashes of a mask.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "cell_oracle.hpp"
#include "fdma/formats/hash.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

TEST(MaskHash, IsTheSameForEveryFormatAndBlock) {
  EXPECT_TRUE(rc::check("formats", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const BlockMask mask =
        testing::random_block_mask(rng, pick(rng, 0, 150), pick(rng, 0, 150), {32, 16});
    const Hash128 hash = mask_hash(mask);
    for (const MaskFormat format : kMaskFormats) {
      auto other = convert(mask, format, testing::random_block(rng));
      if (!other) continue;
      other->origin.q_offset = 3;
      other->spec = "something";
      RC_ASSERT(mask_hash(*other) == hash);
    }
  }));
}

TEST(MaskHash, IsTheSameForEveryGrouping) {
  std::mt19937 rng(4);
  const SegmentMask a = segment_from_dense(dense_of(testing::random_cells(rng, 50, 60)), {16, 16});
  const SegmentMask b =
      segment_from_dense(dense_of(testing::make_cells(
                             50, 60, [](auto q, auto k) { return (q * 7 + k * 3) % 11 == 0; })),
                         {16, 16});
  const std::vector<std::int32_t> of{0, 1, 0, 0};
  BlockMask grouped = make_block_mask({2, 2, {50}, {60}}, {16, 16}, {a, b}, of);
  BlockMask loose = grouped;
  loose.group_of = {0, 1, 2, 3};
  loose.groups = std::vector<SegmentMask>{a, b, a, a};
  EXPECT_EQ(mask_hash(grouped), mask_hash(loose));
  EXPECT_NE(content_hash(grouped), content_hash(loose));
  BlockMask per_element = grouped;
  per_element.shape.q_lens = {50, 50};
  EXPECT_EQ(mask_hash(grouped), mask_hash(per_element));
  BlockMask other_shape = grouped;
  other_shape.shape.num_batches = 4;
  other_shape.shape.num_heads = 1;
  EXPECT_NE(mask_hash(grouped), mask_hash(other_shape));
  BlockMask swapped = grouped;
  swapped.group_of = {0, 0, 1, 0};
  EXPECT_NE(mask_hash(grouped), mask_hash(swapped));
}

TEST(MaskHash, DiffersOnAOneCellChange) {
  std::mt19937 rng(9);
  for (int trial = 0; trial < 200; ++trial) {
    Cells cells = testing::random_cells(rng, pick(rng, 1, 150), pick(rng, 1, 150));
    const BlockMask before = testing::block_mask_of(cells, {16, 32});
    char& cell = cells.at(pick(rng, 0, cells.q_len - 1), pick(rng, 0, cells.kv_len - 1));
    cell = cell ? 0 : 1;
    const BlockMask after = testing::block_mask_of(cells, {16, 32});
    EXPECT_NE(mask_hash(before), mask_hash(after));
    EXPECT_NE(content_hash(before), content_hash(after));
  }
}

TEST(MaskHash, DiffersOnLengthsOfEmptyMasks) {
  std::set<std::string> seen;
  for (const auto& [q_len, kv_len] :
       {std::pair{0, 0}, std::pair{0, 1}, std::pair{1, 0}, std::pair{16, 17}, std::pair{17, 16}}) {
    seen.insert(to_string(mask_hash(testing::block_mask_of(Cells(q_len, kv_len), {16, 16}))));
  }
  EXPECT_EQ(seen.size(), 5u);
}

TEST(ContentHash, CoversEverythingStoredButTheSpec) {
  std::mt19937 rng(8);
  const BlockMask mask = testing::block_mask_of(testing::random_cells(rng, 40, 40), {16, 16});
  const Hash128 hash = content_hash(mask);
  BlockMask other = mask;
  other.spec = "causal";
  EXPECT_EQ(content_hash(other), hash);
  std::set<std::string> seen{to_string(hash)};
  const auto add = [&](auto&& change) {
    other = mask;
    change(other);
    EXPECT_TRUE(seen.insert(to_string(content_hash(other))).second);
  };
  add([](BlockMask& m) { m.origin.q_offset = 1; });
  add([](BlockMask& m) { m.origin.kv_offset = 1; });
  add([](BlockMask& m) { m.origin.batch_offset = 1; });
  add([](BlockMask& m) { m.origin.head_offset = 1; });
  add([](BlockMask& m) { m.shape.num_heads = 2; });
  add([](BlockMask& m) { m.shape.num_batches = 2; });
  add([](BlockMask& m) { m.block.block_q = 32; });
  add([](BlockMask& m) { m.group_of.push_back(0); });
  add([](BlockMask& m) { m.shape.q_lens.push_back(40); });
  for (const MaskFormat format : kMaskFormats) {
    if (format == MaskFormat::segment || format == MaskFormat::parametric) continue;
    add([&](BlockMask& m) { m = *convert(m, format, m.block); });
  }
}

// Files store hashes, so the layout of what is hashed must not change unnoticed.
TEST(Hashes, AreFrozen) {
  ParametricMask causal;
  causal.q_len = causal.kv_len = causal.kv_end = 300;
  causal.right = 0;
  const BlockMask mask = make_block_mask({1, 1, {300}, {300}}, {128, 128},
                                         {segment_from_parametric(causal, {128, 128})});
  EXPECT_EQ(to_string(content_hash(mask)), "27a6064c5bbb5f8d6f5423ee463bece4");
  EXPECT_EQ(to_string(mask_hash(mask)), "4fa89afe4bbeb5856eb925e3ee538fac");
}

}  // namespace
}  // namespace fdma
