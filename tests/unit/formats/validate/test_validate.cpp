// Tests validation. Every mask that is built passes; every corruption is named or harmless; nothing
// crashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <limits>

#include "../segment/pattern_masks.hpp"
#include "cell_oracle.hpp"
#include "fdma/formats/draw.hpp"
#include "fdma/formats/hash.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using testing::Cells;
using ::testing::HasSubstr;
using testing::pick;

// Returns a mask with full, bitmap and empty tiles and ragged lengths, in every format with blocks.
Cells sample_cells() {
  return testing::make_cells(70, 100, [](std::int64_t q, std::int64_t k) {
    return k <= q + 30 && !(q >= 32 && q < 48 && k >= 16 && k < 32);
  });
}

SegmentMask sample_segment() { return segment_from_dense(dense_of(sample_cells()), {16, 16}); }

template <class Mask>
std::string reason(const Mask& mask, ValidationLevel level = ValidationLevel::structure) {
  const auto valid = validate(mask, level);
  if (valid) return "valid";
  EXPECT_EQ(valid.error().code, ErrorCode::corrupt_file);
  return valid.error().message;
}

TEST(ValidateBcsr, NamesArrayIndexExpectedAndGot) {
  const BcsrMask good = bcsr_from_segment(sample_segment());
  ASSERT_EQ(reason(good, ValidationLevel::canonical), "valid");
  BcsrMask bad = good;
  bad.col_indices[1] = 0;
  EXPECT_EQ(reason(bad), "col_indices[1]: 0 is not greater than 0 before it in row 0");
  bad = good;
  bad.col_indices[0] = 7;
  EXPECT_EQ(reason(bad), "col_indices[0]: 7, expected 0 to 6");
  bad = good;
  bad.row_offsets[1] = 100;
  EXPECT_THAT(reason(bad), HasSubstr("row_offsets[2]: "));
  bad = good;
  bad.bitmap_index[0] = -2;
  EXPECT_THAT(reason(bad), HasSubstr("bitmap_index[0]: -2, expected -1 to "));
  bad = good;
  bad.row_offsets.pop_back();
  EXPECT_EQ(reason(bad, ValidationLevel::sizes),
            "row_offsets: 5 entries, expected 6 (tile rows + 1)");
  bad = good;
  bad.col_indices.push_back(1);
  EXPECT_THAT(reason(bad, ValidationLevel::sizes), HasSubstr("but row_offsets ends at "));
  bad = good;
  bad.bitmaps.pop_back();
  EXPECT_THAT(reason(bad, ValidationLevel::sizes), HasSubstr("expected a multiple of 4"));
  bad = good;
  bad.block.block_kv = 20;
  EXPECT_EQ(reason(bad, ValidationLevel::sizes),
            "block_kv: 20, expected a multiple of 16 from 16 to 1024");
}

TEST(ValidateBitset, NamesArrayIndexExpectedAndGot) {
  const BlockBitset good = bitset_from_segment(sample_segment());
  ASSERT_EQ(reason(good, ValidationLevel::canonical), "valid");
  BlockBitset bad = good;
  bad.active[2] |= std::uint64_t{1} << 7;
  EXPECT_EQ(reason(bad), "active[2]: 0x000000000000009d, expected no bit past tile column 6");
  bad = good;
  bad.full[2] |= 2;
  EXPECT_THAT(reason(bad), HasSubstr("full[2]: "));
  bad = good;
  bad.partial_offsets[1] += 1;
  EXPECT_THAT(reason(bad), HasSubstr("partial_offsets[1]: "));
  bad = good;
  bad.bitmap_index[3] = 1000;
  EXPECT_THAT(reason(bad), HasSubstr("bitmap_index[3]: 1000, expected 0 to "));
}

TEST(ValidateSegment, NamesArrayIndexExpectedAndGot) {
  const SegmentMask good = sample_segment();
  ASSERT_EQ(reason(good, ValidationLevel::canonical), "valid");
  SegmentMask bad = good;
  bad.segments[0].kind = static_cast<SegmentKind>(5);
  EXPECT_EQ(reason(bad), "segments[0]: kind 5, expected 0 to 4");
  bad = good;
  bad.segments[0].kind = SegmentKind::pattern;
  EXPECT_EQ(reason(bad), "segments[0]: payload 0, expected less than 0");
  bad = good;
  bad.segments[0].kind = SegmentKind::columns;
  EXPECT_EQ(reason(bad), "segments[0]: kind columns, but column_offsets is empty");
  bad = good;
  bad.segments[1].first_tile -= 1;
  EXPECT_THAT(reason(bad), HasSubstr("segments[1]: tiles ["));
  bad = good;
  bad.runs[0].num_rows = std::numeric_limits<std::int32_t>::max();
  EXPECT_THAT(reason(bad), HasSubstr("runs[0]: num_rows 2147483647 from tile row 0 on"));
  bad = good;
  bad.runs.pop_back();
  EXPECT_THAT(reason(bad), HasSubstr("runs: none holds tile row "));
  bad = good;
  bad.runs[0].first_row = -1;
  EXPECT_THAT(reason(bad), HasSubstr("runs[0]: first_row -1"));
  bad = good;
  bad.runs[0].row_stride = 2;
  EXPECT_EQ(reason(bad), "runs[0]: row_stride 2, expected 1");
  bad = good;
  bad.row_offsets.clear();
  EXPECT_THAT(reason(bad, ValidationLevel::sizes), HasSubstr("row_offsets: 0 entries"));
}

TEST(ValidateSegment, RejectsCellsThatDoNotExist) {
  SegmentMask mask = sample_segment();
  for (TileSegment& segment : mask.segments) {  // any bitmap that reaches beyond key 100
    if (segment.kind == SegmentKind::bitmap) {
      for (auto& word : mask.bitmaps) word = ~std::uint64_t{0};
    }
  }
  EXPECT_THAT(reason(mask), HasSubstr("of its cells exist"));
}

TEST(ValidateSegment, StructureMayStillNotBeCanonical) {
  SegmentMask mask = sample_segment();
  mask.bitmaps.insert(mask.bitmaps.end(), mask.bitmaps.begin(), mask.bitmaps.begin() + 4);
  EXPECT_EQ(reason(mask), "valid");
  EXPECT_THAT(reason(mask, ValidationLevel::canonical),
              HasSubstr("entries, but the canonical form of these cells has "));
}

TEST(ValidateColumns, NamesArrayIndexExpectedAndGot) {
  const ColumnIntervals good = columns_from_segment(sample_segment());
  ASSERT_EQ(reason(good, ValidationLevel::canonical), "valid");
  ColumnIntervals bad = good;
  bad.intervals[5] = {3, 71};
  EXPECT_EQ(reason(bad),
            "intervals[5]: [3, 71), expected a range inside [0, 70) that is not empty");
  bad = good;
  bad.intervals[5] = {3, 3};
  EXPECT_THAT(reason(bad), HasSubstr("intervals[5]: [3, 3)"));
  bad = good;
  bad.offsets[4] = -1;
  EXPECT_THAT(reason(bad), HasSubstr("offsets[4]: -1, expected at least 3"));
}

TEST(ValidateDense, RejectsPaddingBits) {
  DenseBits mask = dense_of(sample_cells());
  mask.words[3] |= std::uint64_t{1} << 40;
  EXPECT_EQ(reason(mask).substr(0, 10), "words[3]: ");
}

TEST(ValidateParametric, RejectsWhatWouldOverflow) {
  ParametricMask mask;
  mask.q_len = mask.kv_len = mask.kv_end = 10;
  EXPECT_EQ(reason(mask, ValidationLevel::canonical), "valid");
  mask.pos_offset = std::numeric_limits<std::int64_t>::min();
  EXPECT_THAT(reason(mask), HasSubstr("pos_offset: -9223372036854775808, expected "));
  mask.pos_offset = 0;
  mask.kv_begin = 11;
  EXPECT_EQ(reason(mask), "kv_begin: 11, expected 0 to 10");
  mask.kv_begin = 0;
  mask.cu_seqlens = {0, 5, 4};
  EXPECT_EQ(reason(mask), "cu_seqlens[2]: 4, expected at least 5, the entry before it");
  mask.cu_seqlens = {0};
  EXPECT_EQ(reason(mask, ValidationLevel::sizes),
            "cu_seqlens: 1 entry, expected none or at least 2");
}

TEST(ValidateParametric, TakesDistancesOfAnySize) {
  ParametricMask mask;
  mask.q_len = mask.kv_len = mask.kv_end = 40;
  for (const std::int64_t far : {std::numeric_limits<std::int64_t>::min(), kUnbounded,
                                 kUnbounded - 1, std::int64_t{-1} << 62}) {
    mask.left = far;
    mask.right = kUnbounded - 1;
    EXPECT_EQ(reason(mask), "valid");
    const Cells cells = testing::cells_of(segment_from_parametric(mask, {16, 16}));
    EXPECT_EQ(cells.get(20, 20), far > 0);
  }
}

TEST(ValidateBlockMask, ChecksCountsGroupsAndLengths) {
  std::mt19937 rng(2);
  const SegmentMask a = sample_segment();
  const SegmentMask b = segment_from_dense(dense_of(Cells(70, 100)), {16, 16});
  const std::vector<std::int32_t> of{0, 1, 1, 0};
  const BlockMask good = make_block_mask({2, 2, {70}, {100}}, {16, 16}, {a, b}, of);
  ASSERT_EQ(reason(good, ValidationLevel::canonical), "valid");
  BlockMask bad = good;
  bad.group_of = {1, 0, 0, 1};
  EXPECT_THAT(reason(bad), HasSubstr("group_of[0]: 1, expected at most 0"));
  bad = good;
  bad.group_of = {0, 0, 0, 0};
  EXPECT_THAT(reason(bad), HasSubstr("groups: 2 entries, expected 1"));
  bad = good;
  bad.group_of[3] = 2;
  EXPECT_EQ(reason(bad), "group_of[3]: 2, expected 0 to 1");
  bad = good;
  bad.shape.q_lens = {70, 71};
  EXPECT_THAT(reason(bad), HasSubstr("lengths 70 x 100, but batch element 1 that uses it has 71"));
  bad = good;
  bad.shape.num_heads = std::int64_t{1} << 40;
  EXPECT_THAT(reason(bad, ValidationLevel::sizes), HasSubstr("num_batches * num_heads: "));
  bad = good;
  bad.block = {32, 16};
  EXPECT_THAT(reason(bad, ValidationLevel::sizes), HasSubstr("group 0: block 16 x 16"));
  bad = good;
  std::get<std::vector<SegmentMask>>(bad.groups)[1].kv_len = -5;
  EXPECT_EQ(reason(bad), "group 1: kv_len: -5, expected 0 to 2147483647");
  bad = good;
  std::get<std::vector<SegmentMask>>(bad.groups)[1] = a;
  EXPECT_EQ(reason(bad), "valid");
  EXPECT_EQ(reason(bad, ValidationLevel::canonical),
            "group 1: equal to group 0, expected to be stored once");
}

// Calls every function that reads a mask and is safe on any mask of valid structure.
void use(const BlockMask& mask) {
  for (const MaskFormat format : kMaskFormats) {
    const auto converted = convert(mask, format, {32, 16});
    if (!converted) continue;
    for (std::int64_t g = 0; g < converted->num_groups(); ++g) {
      (void)testing::cells_of(*converted, g);
    }
  }
  (void)draw(mask, 0);
  (void)mask_hash(mask);
  (void)content_hash(mask);
  (void)crop(mask, {mask.shape.q_len(0) / 3, mask.shape.q_len(0), mask.shape.kv_len(0) / 2,
                    mask.shape.kv_len(0), 0, 1, 0, 1});
}

template <class T>
void mutate_array(std::mt19937& rng, std::vector<T>& values) {
  if (values.empty() || pick(rng, 0, 7) == 0) {
    if (pick(rng, 0, 1)) {
      values.resize(values.size() + 1);
    } else if (!values.empty()) {
      values.pop_back();
    }
    return;
  }
  auto& value =
      values[static_cast<std::size_t>(pick(rng, 0, static_cast<std::int64_t>(values.size()) - 1))];
  // One number of the element changes.
  constexpr std::size_t width =
      std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::uint64_t> ? 8 : 4;
  const std::size_t fields = sizeof(T) / width;
  char* bytes =
      reinterpret_cast<char*>(&value) +
      width * static_cast<std::size_t>(pick(rng, 0, static_cast<std::int64_t>(fields) - 1));
  std::int64_t number = 0;
  std::copy_n(bytes, width, reinterpret_cast<char*>(&number));
  switch (pick(rng, 0, 5)) {
    case 0:
      number = static_cast<std::int64_t>(static_cast<std::uint64_t>(number) +
                                         static_cast<std::uint64_t>(pick(rng, -2, 2)));
      break;
    case 1:
      number = pick(rng, -3, 20);
      break;
    case 2:
      number = std::numeric_limits<std::int32_t>::max() - pick(rng, 0, 1);
      break;
    case 3:
      number = std::numeric_limits<std::int32_t>::min() + pick(rng, 0, 1);
      break;
    case 4:
      number = std::numeric_limits<std::int64_t>::max() - pick(rng, 0, 1);
      break;
    default:
      number ^= std::int64_t{1} << pick(rng, 0, 8 * static_cast<std::int64_t>(width) - 2);
      break;
  }
  std::copy_n(reinterpret_cast<const char*>(&number), width, bytes);
}

void mutate(std::mt19937& rng, SegmentMask& m) {
  if (m.has_patterns() && pick(rng, 0, 1) == 0) {
    switch (pick(rng, 0, 2)) {
      case 0:
        return mutate_array(rng, m.patterns);
      case 1:
        return mutate_array(rng, m.pattern_offsets);
      default:
        return mutate_array(rng, m.pattern_tiles);
    }
  }
  switch (pick(rng, 0, 7)) {
    case 0:
      return mutate_array(rng, m.runs);
    case 1:
    case 2:
      return mutate_array(rng, m.segments);
    case 3:
      return mutate_array(rng, m.bitmaps);
    case 4:
      return mutate_array(rng, m.row_offsets);
    case 5:
      return mutate_array(rng, m.row_intervals);
    case 6:
      return mutate_array(rng, m.column_offsets);
    default:
      return mutate_array(rng, m.column_intervals);
  }
}
void mutate(std::mt19937& rng, ParametricMask& m) {
  std::vector<std::int64_t> fields{m.pos_offset, m.left,     m.right, m.prefix,
                                   m.sink,       m.kv_begin, m.kv_end};
  if (pick(rng, 0, 2) == 0) return mutate_array(rng, m.cu_seqlens);
  mutate_array(rng, fields);
  fields.resize(7);
  m.pos_offset = fields[0], m.left = fields[1], m.right = fields[2], m.prefix = fields[3];
  m.sink = fields[4], m.kv_begin = fields[5], m.kv_end = fields[6];
}
void mutate(std::mt19937& rng, BlockBitset& m) {
  switch (pick(rng, 0, 4)) {
    case 0:
      return mutate_array(rng, m.active);
    case 1:
      return mutate_array(rng, m.full);
    case 2:
      return mutate_array(rng, m.partial_offsets);
    case 3:
      return mutate_array(rng, m.bitmap_index);
    default:
      return mutate_array(rng, m.bitmaps);
  }
}
void mutate(std::mt19937& rng, BcsrMask& m) {
  switch (pick(rng, 0, 3)) {
    case 0:
      return mutate_array(rng, m.row_offsets);
    case 1:
      return mutate_array(rng, m.col_indices);
    case 2:
      return mutate_array(rng, m.bitmap_index);
    default:
      return mutate_array(rng, m.bitmaps);
  }
}
void mutate(std::mt19937& rng, ColumnIntervals& m) {
  pick(rng, 0, 1) ? mutate_array(rng, m.offsets) : mutate_array(rng, m.intervals);
}
void mutate(std::mt19937& rng, DenseBits& m) { mutate_array(rng, m.words); }

struct Verdicts {
  int accepted = 0, refused = 0;
};

// Changes a valid mask in one or two places, many times. What still passes is used.
void corrupt_and_use(std::mt19937& rng, const BlockMask& good, Verdicts& verdicts) {
  RC_ASSERT(validate(good, ValidationLevel::canonical).has_value());
  for (int trial = 0; trial < 20; ++trial) {
    BlockMask bad = good;
    std::visit(
        [&](auto& groups) {
          for (std::int64_t n = pick(rng, 1, 2); n > 0; --n) mutate(rng, groups[0]);
        },
        bad.groups);
    const auto valid = validate(bad, ValidationLevel::structure);
    if (valid) {
      ++verdicts.accepted;
      use(bad);
      (void)validate(bad, ValidationLevel::canonical);
    } else {
      ++verdicts.refused;
      RC_ASSERT(valid.error().code == ErrorCode::corrupt_file);
      RC_ASSERT(!validate(bad, ValidationLevel::canonical).has_value());
    }
  }
}

TEST(Validate, WhatPassesAfterAnyCorruptionIsSafeToUse) {
  Verdicts verdicts;
  EXPECT_TRUE(rc::check("mutations", [&](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const Cells cells = testing::random_cells(rng, pick(rng, 1, 150), pick(rng, 1, 150));
    const BlockMask origin = testing::block_mask_of(cells, testing::random_block(rng));
    for (const MaskFormat format : kMaskFormats) {
      const auto good = convert(origin, format, testing::random_block(rng));
      if (good) corrupt_and_use(rng, *good, verdicts);
    }
  }));
  EXPECT_GT(verdicts.accepted, 100);
  EXPECT_GT(verdicts.refused, 100);
}

TEST(Validate, WhatPassesOfPatternsAfterAnyCorruptionIsSafeToUse) {
  Verdicts verdicts;
  EXPECT_TRUE(rc::check("mutations of patterns", [&](std::uint32_t seed) {
    std::mt19937 rng(seed);
    for (int i = 0; i < 5; ++i) {
      const SegmentMask good = testing::random_pattern_case(rng).mask;
      if (!good.has_patterns()) continue;
      const MaskShape shape{1, 1, {good.q_len}, {good.kv_len}};
      corrupt_and_use(rng, make_block_mask(shape, good.block, {good}), verdicts);
    }
  }));
  EXPECT_GT(verdicts.accepted, 100);
  EXPECT_GT(verdicts.refused, 100);
}

TEST(Validate, CanonicalAcceptsOneFormOnly) {
  EXPECT_TRUE(rc::check("one form", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const Cells cells = testing::random_cells(rng, pick(rng, 1, 100), pick(rng, 1, 100));
    const BlockMask origin = testing::block_mask_of(cells, testing::random_block(rng));
    for (const MaskFormat format : {MaskFormat::segment, MaskFormat::bitset, MaskFormat::bcsr}) {
      const BlockMask good = *convert(origin, format, testing::random_block(rng));
      for (int trial = 0; trial < 20; ++trial) {
        BlockMask other = good;
        std::visit([&](auto& groups) { mutate(rng, groups[0]); }, other.groups);
        if (other.groups == good.groups) continue;
        if (!validate(other, ValidationLevel::canonical)) continue;
        RC_ASSERT(testing::cells_of(other, 0) != cells);  // then it is another mask
      }
    }
  }));
}

}  // namespace
}  // namespace fdma
