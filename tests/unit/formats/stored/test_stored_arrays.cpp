// Tests the arrays of a mask by name, and the reverse with every check that files get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "../segment/pattern_masks.hpp"
#include "cell_oracle.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/formats/stored_arrays.hpp"

namespace fdma {
namespace {

using ::testing::HasSubstr;
using testing::pick;

std::vector<StoredViews> views_of(const std::vector<std::vector<StoredArray>>& groups) {
  std::vector<StoredViews> views;
  for (const auto& group : groups) {
    StoredViews& named = views.emplace_back();
    for (const StoredArray& array : group) named.emplace(array.name, array.view);
  }
  return views;
}

std::vector<std::vector<StoredArray>> arrays_of(const BlockMask& mask) {
  std::vector<std::vector<StoredArray>> groups;
  for (std::int64_t g = 0; g < mask.num_groups(); ++g) groups.push_back(stored_arrays(mask, g));
  return groups;
}

BlockMask header_of(const BlockMask& mask) {
  BlockMask header = mask;
  header.groups = {};
  return header;
}

std::string reason(const BlockMask& header, MaskFormat format,
                   const std::vector<StoredViews>& views) {
  const auto mask = mask_from_stored_arrays(format, header, views);
  if (mask) return "no error";
  EXPECT_EQ(mask.error().code, ErrorCode::corrupt_file);
  return mask.error().message;
}

TEST(StoredArrays, GoThereAndBackInEveryFormat) {
  EXPECT_TRUE(rc::check("formats", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    BlockMask mask = testing::random_block_mask(rng, pick(rng, 0, 150), pick(rng, 0, 150),
                                                testing::random_block(rng));
    mask.origin.kv_offset = 7;
    for (const MaskFormat format : kMaskFormats) {
      const auto stored = convert(mask, format, mask.block);
      if (!stored) continue;
      const auto groups = arrays_of(*stored);
      const auto again =
          mask_from_stored_arrays(stored->format(), header_of(*stored), views_of(groups));
      RC_ASSERT(again.has_value());
      RC_ASSERT(again->groups == stored->groups);
      RC_ASSERT(content_hash(*again) == content_hash(*stored));
    }
  }));
}

TEST(StoredArrays, AreAsTheSpecsSay) {
  std::mt19937 rng(1);
  const BlockMask mask = testing::random_block_mask(rng, 90, 130, {32, 16});
  for (const MaskFormat format : kMaskFormats) {
    const auto stored = convert(mask, format, mask.block);
    if (!stored) continue;
    const auto arrays = stored_arrays(*stored, 0);
    auto specs = stored_array_specs(stored->format(), 90, 130, mask.block);
    std::erase_if(specs, [](const StoredArraySpec& spec) { return spec.only_with_patterns; });
    ASSERT_EQ(arrays.size(), specs.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(arrays[i].name, specs[i].name);
      EXPECT_EQ(arrays[i].view.dtype, specs[i].dtype);
      EXPECT_EQ(arrays[i].view.rank, specs[i].rank);
      EXPECT_GE(arrays[i].view.extents[0], specs[i].min_rows);
      EXPECT_LE(arrays[i].view.extents[0], specs[i].max_rows);
    }
  }
}

TEST(StoredArrays, OfPatternsAreThereIfTheMaskHasAny) {
  std::mt19937 rng(4);
  int with_patterns = 0;
  for (int i = 0; i < 30; ++i) {
    const SegmentMask one = testing::random_pattern_case(rng).mask;
    const MaskShape shape{1, 1, {one.q_len}, {one.kv_len}};
    const BlockMask mask = make_block_mask(shape, one.block, {one});
    const auto groups = arrays_of(mask);
    const auto specs = stored_array_specs(MaskFormat::segment, one.q_len, one.kv_len, one.block);
    EXPECT_EQ(groups[0].size(), specs.size() - (one.has_patterns() ? 0 : 3));
    const auto again =
        mask_from_stored_arrays(MaskFormat::segment, header_of(mask), views_of(groups));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE(again->groups == mask.groups);
    EXPECT_EQ(content_hash(*again), content_hash(mask));
    if (!one.has_patterns()) continue;
    ++with_patterns;
    const auto without = [&](const char* name) {
      auto views = views_of(groups);
      views[0].erase(name);
      return reason(header_of(mask), MaskFormat::segment, views);
    };
    EXPECT_EQ(without("pattern_tiles"), "groups/0/pattern_tiles: missing");
    EXPECT_EQ(without("pattern_offsets"), "groups/0/pattern_offsets: missing");
    EXPECT_EQ(without("patterns"), "groups/0/pattern_offsets: unknown array");
  }
  EXPECT_GT(with_patterns, 10);
}

TEST(StoredArrays, BorrowFromTheMask) {
  std::mt19937 rng(2);
  const BlockMask mask = testing::block_mask_of(testing::random_cells(rng, 64, 64), {16, 16});
  const auto& segments = std::get<std::vector<SegmentMask>>(mask.groups)[0];
  for (const StoredArray& array : stored_arrays(mask, 0)) {
    if (array.name == "segments") {
      EXPECT_EQ(array.view.data, segments.segments.data());
    }
    EXPECT_EQ(array.packed != nullptr, array.name == "runs");
  }
}

TEST(MaskFromStoredArrays, RejectsWhatIsMissingUnknownOrOfAnotherShape) {
  const testing::Cells causal =
      testing::make_cells(100, 100, [](auto q, auto k) { return k <= q; });
  const auto mask = convert(testing::block_mask_of(causal, {16, 16}), MaskFormat::bcsr, {16, 16});
  ASSERT_TRUE(mask.has_value());
  const auto groups = arrays_of(*mask);
  const BlockMask header = header_of(*mask);
  const auto with = [&](auto change) {
    auto views = views_of(groups);
    change(views[0]);
    return reason(header, MaskFormat::bcsr, views);
  };
  EXPECT_THAT(with([](StoredViews& v) { v.erase("bitmaps"); }), HasSubstr("bitmaps: missing"));
  EXPECT_THAT(with([](StoredViews& v) { v["more"] = v["bitmaps"]; }),
              HasSubstr("groups/0/more: unknown array"));
  EXPECT_THAT(with([](StoredViews& v) { v["col_indices"].dtype = DType::int64; }),
              HasSubstr("type int64, expected int32"));
  EXPECT_THAT(with([](StoredViews& v) { --v["row_offsets"].extents[0]; }),
              HasSubstr("extents [7], expected [8]"));
  EXPECT_THAT(with([](StoredViews& v) { v["bitmaps"].strides[0] = 8; }),
              HasSubstr("expected a contiguous array"));
  EXPECT_THAT(with([](StoredViews& v) { v["bitmaps"].device = Device::cuda; }),
              HasSubstr("on a GPU"));
  EXPECT_THAT(with([](StoredViews& v) { --v["col_indices"].extents[0]; }),
              HasSubstr("col_indices"));
}

TEST(MaskFromStoredArrays, RejectsAWrongHeader) {
  std::mt19937 rng(3);
  const BlockMask mask = testing::block_mask_of(testing::random_cells(rng, 50, 50), {16, 16});
  const auto groups = arrays_of(mask);
  const auto with = [&](auto change) {
    BlockMask header = header_of(mask);
    change(header);
    return reason(header, MaskFormat::segment, views_of(groups));
  };
  EXPECT_THAT(with([](BlockMask& m) { m.shape.num_heads = 2; }), HasSubstr("group_of: 1 entries"));
  EXPECT_THAT(with([](BlockMask& m) { m.group_of = {1}; }), HasSubstr("group_of: entry 0 is 1"));
  EXPECT_THAT(with([](BlockMask& m) { m.block.block_q = 8; }), HasSubstr("block_q: 8"));
  EXPECT_THAT(with([](BlockMask& m) { m.shape.q_lens = {-1}; }), HasSubstr("q_lens[0]: -1"));
  EXPECT_THAT(reason(header_of(mask), MaskFormat::segment, {}), HasSubstr("0 groups"));
}

}  // namespace
}  // namespace fdma
