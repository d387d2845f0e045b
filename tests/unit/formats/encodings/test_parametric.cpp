// Tests the meaning of closed forms, and that they are found again from the cells.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>

#include "cell_oracle.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::cells_of;
using testing::pick;

ParametricMask everything(std::int64_t q_len, std::int64_t kv_len) {
  ParametricMask mask;
  mask.q_len = q_len;
  mask.kv_len = mask.kv_end = kv_len;
  mask.pos_offset = kv_len - q_len;
  return mask;
}

std::vector<std::int64_t> random_documents(std::mt19937& rng, std::int64_t kv_len) {
  std::vector<std::int64_t> cu{0};
  const std::int64_t scale = pick(rng, 1, 3) == 1 ? 4 : 60;
  while (cu.back() < kv_len) cu.push_back(std::min(kv_len, cu.back() + pick(rng, 1, scale)));
  if (cu.size() > 2 && pick(rng, 0, 3) == 0) cu.pop_back();  // padding at the end
  return cu;
}

// Returns any closed form that validates, crops included.
ParametricMask random_parametric(std::mt19937& rng) {
  ParametricMask mask = everything(pick(rng, 0, 150), pick(rng, 0, 150));
  const auto distance = [&] { return pick(rng, 0, 2) == 0 ? kUnbounded : pick(rng, -30, 120); };
  mask.left = distance();
  mask.right = distance();
  if (pick(rng, 0, 2) == 0) mask.prefix = pick(rng, 0, mask.kv_len);
  if (pick(rng, 0, 2) == 0) mask.sink = pick(rng, 0, mask.kv_len);
  if (pick(rng, 0, 2) == 0) mask.kv_begin = pick(rng, 0, mask.kv_len);
  if (pick(rng, 0, 2) == 0) mask.kv_end = pick(rng, mask.kv_begin, mask.kv_len);
  if (pick(rng, 0, 1) == 0) mask.cu_seqlens = random_documents(rng, mask.kv_len);
  if (pick(rng, 0, 3) == 0) {
    mask.pos_offset += pick(rng, -40, 40);
    for (std::int64_t& border : mask.cu_seqlens) border -= 20;
  }
  return mask;
}

TEST(SegmentFromParametric, IsItsDefinition) {
  EXPECT_TRUE(rc::check("cells", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    for (int trial = 0; trial < 10; ++trial) {
      const ParametricMask mask = random_parametric(rng);
      if (mask.cu_seqlens.size() == 1) continue;
      const auto valid = validate(mask, ValidationLevel::structure);
      RC_ASSERT(valid.has_value());
      const Cells cells = cells_of(mask);
      const BlockShape block = testing::random_block(rng);
      const SegmentMask segments = segment_from_parametric(mask, block);
      RC_ASSERT(cells_of(segments) == cells);
      RC_ASSERT(segments == segment_from_dense(dense_of(cells), block));
      const auto found = parametric_from_segment(segments);
      if (!found) {
        RC_ASSERT(found.error().code == ErrorCode::unsupported);
        continue;
      }
      RC_ASSERT(cells_of(*found) == cells);
      // The form is a function of the cells: other blocks give the same form, and so does the form
      // itself.
      const auto again =
          parametric_from_segment(segment_from_parametric(*found, testing::random_block(rng)));
      RC_ASSERT(again.has_value());
      RC_ASSERT(*again == *found);
    }
  }));
}

TEST(ParametricFromSegment, FindsEveryNamedFamily) {
  EXPECT_TRUE(rc::check("families", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    for (int trial = 0; trial < 10; ++trial) {
      ParametricMask mask = everything(pick(rng, 1, 200), pick(rng, 1, 200));
      const std::int64_t family = pick(rng, 0, 9);
      const std::int64_t width = pick(rng, 1, 60);
      switch (family) {
        case 0:  // full
          break;
        case 1:  // empty
          mask.kv_end = 0;
          break;
        case 2:  // causal
          mask.right = 0;
          break;
        case 3:  // window, two-sided
          mask.left = width;
          mask.right = pick(rng, 0, 60);
          break;
        case 4:  // window, one-sided
          (pick(rng, 0, 1) ? mask.left : mask.right) = width;
          break;
        case 5:  // causal & window
          mask.left = width;
          mask.right = 0;
          break;
        case 6:  // causal & (window | sink)
          mask.left = width;
          mask.right = 0;
          mask.sink = pick(rng, 1, mask.kv_len);
          break;
        case 7:  // causal | prefix
          mask.right = 0;
          mask.prefix = pick(rng, 1, mask.kv_len);
          break;
        case 8:  // documents
        case 9:  // documents, causal, perhaps with a window
          mask.cu_seqlens = random_documents(rng, mask.kv_len);
          if (family == 9) {
            mask.right = 0;
            if (pick(rng, 0, 1)) mask.left = width;
          }
          break;
      }
      if (family != 1) {
        if (pick(rng, 0, 3) == 0) mask.kv_begin = pick(rng, 0, mask.kv_len / 2);
        if (pick(rng, 0, 3) == 0) mask.kv_end = pick(rng, mask.kv_begin, mask.kv_len);
      }
      const auto found =
          parametric_from_segment(segment_from_parametric(mask, testing::random_block(rng)));
      if (!found) {
        RC_LOG() << "family " << family << ", " << mask.q_len << " x " << mask.kv_len << ", left "
                 << mask.left << ", right " << mask.right << ", prefix " << mask.prefix << ", sink "
                 << mask.sink << ", keys [" << mask.kv_begin << ", " << mask.kv_end
                 << "): " << found.error().message << "; documents";
        for (const std::int64_t border : mask.cu_seqlens) RC_LOG() << " " << border;
      }
      RC_ASSERT(found.has_value());
      RC_ASSERT(cells_of(*found) == cells_of(mask));
    }
  }));
}

TEST(ParametricFromSegment, GivesBackTheParametersThatMatter) {
  ParametricMask causal = everything(1000, 1500);
  causal.right = 0;
  ParametricMask sinks = everything(3000, 3000);
  sinks.left = 255;
  sinks.right = 0;
  sinks.sink = 4;
  ParametricMask packed = everything(2048, 2048);
  packed.right = 0;
  packed.cu_seqlens = {0, 700, 2000, 2048};
  for (const ParametricMask& mask : {everything(300, 200), causal, sinks, packed}) {
    const auto found = parametric_from_segment(segment_from_parametric(mask, {64, 64}));
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(*found, mask);
  }
}

TEST(ParametricFromSegment, RejectsWhatHasNoClosedFormAndSaysWhatToUse) {
  const Cells cells = testing::make_cells(
      100, 100, [](std::int64_t q, std::int64_t k) { return (q + k) % 3 == 0; });
  const auto found = parametric_from_segment(segment_from_dense(dense_of(cells), {16, 16}));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::unsupported);
  EXPECT_EQ(found.error().message,
            "parametric: these cells have no closed form: query row 0 sees 34 separate ranges of "
            "keys, and such a form has at most 2; use segment, bcsr or columns");
}

TEST(ParametricFromSegment, OneChangedCellIsNeverLost) {
  std::mt19937 rng(17);
  for (int trial = 0; trial < 300; ++trial) {
    ParametricMask mask = everything(pick(rng, 1, 100), pick(rng, 1, 100));
    mask.right = 0;
    if (pick(rng, 0, 1)) mask.left = pick(rng, 0, 20);
    if (pick(rng, 0, 1)) mask.cu_seqlens = random_documents(rng, mask.kv_len);
    if (mask.cu_seqlens.size() == 1) continue;
    Cells cells = cells_of(mask);
    char& cell = cells.at(pick(rng, 0, cells.q_len - 1), pick(rng, 0, cells.kv_len - 1));
    cell = cell ? 0 : 1;
    const auto found =
        parametric_from_segment(segment_from_dense(dense_of(cells), testing::random_block(rng)));
    if (found) {
      EXPECT_EQ(cells_of(*found), cells);
    }
  }
}

}  // namespace
}  // namespace fdma
