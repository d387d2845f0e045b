// Tests every pair of representations: the six stored formats and the layouts of other systems. A
// mask goes through one and then the other and comes back cell for cell. The content of the second
// one does not depend on the way there, to the bit.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>
#include <set>

#include "cell_oracle.hpp"
#include "fdma/formats/validate.hpp"
#include "fdma/io/interop/cu_seqlens_group.hpp"
#include "fdma/io/interop/hf_mask_group.hpp"
#include "fdma/io/interop/hf_padding_group.hpp"
#include "interop_masks.hpp"

namespace fdma {
namespace {

using testing::compiled;
using testing::pick;

// What a mask is in some representation: the arrays, and the mask that they are read as.
struct Passed {
  std::map<std::string, std::vector<std::byte>> arrays;
  BlockMask mask;
};

struct Representation {
  std::string name;
  std::function<Result<Passed>(const BlockMask&)> pass;
};

Passed passed(const InteropGroup& group, BlockMask mask) {
  Passed result{{}, std::move(mask)};
  for (const auto& [name, array] : group.arrays) {
    result.arrays.emplace(name + " " + std::string(to_string(array.dtype)), array.bytes);
  }
  return result;
}

constexpr BlockShape kBlock{32, 16};

Result<Passed> pass_flex(const BlockMask& mask) {
  FlexExportOptions options;
  options.block = kBlock;
  FDMA_TRY(const FlexBlockMask flex, flex_from_block_mask(mask, options));
  const InteropGroup group = group_from_flex(flex);
  FDMA_TRY(const FlexBlockMask read, flex_from_group(group));
  FDMA_TRY(BlockMask back, block_mask_from_flex(read));
  return passed(group, std::move(back));
}

Result<Passed> pass_flash_mask(const BlockMask& mask) {
  FDMA_TRY(const FlashMask flash, flash_mask_from_block_mask(mask));
  const InteropGroup group = group_from_flash_mask(flash);
  FDMA_TRY(const FlashMask read, flash_mask_from_group(group));
  FDMA_TRY(BlockMask back, block_mask_from_flash_mask(read, kBlock));
  return passed(group, std::move(back));
}

Result<Passed> pass_bsr(const BlockMask& mask) {
  BsrExportOptions options;
  options.block = kBlock;
  FDMA_TRY(const BsrMatrix matrix, bsr_from_block_mask(mask, options));
  const InteropGroup group = group_from_bsr(matrix);
  FDMA_TRY(const BsrMatrix read, bsr_from_group(group));
  FDMA_TRY(BlockMask back, block_mask_from_bsr(read, kBlock));
  return passed(group, std::move(back));
}

Result<Passed> pass_cu_seqlens(const BlockMask& mask) {
  FDMA_TRY(const CuSeqlens sequences, cu_seqlens_from_block_mask(mask));
  const InteropGroup group = group_from_cu_seqlens(sequences);
  FDMA_TRY(const CuSeqlens read, cu_seqlens_from_group(group));
  FDMA_TRY(BlockMask back, block_mask_from_cu_seqlens(read, kBlock));
  return passed(group, std::move(back));
}

Result<Passed> pass_hf_padding(const BlockMask& mask) {
  FDMA_TRY(const HfPadding padding, hf_padding_from_block_mask(mask));
  const InteropGroup group = group_from_hf_padding(padding);
  FDMA_TRY(const HfPadding read, hf_padding_from_group(group));
  FDMA_TRY(BlockMask back, block_mask_from_hf_padding(read, kBlock));
  return passed(group, std::move(back));
}

Result<Passed> pass_hf_mask(const BlockMask& mask, DType dtype) {
  HfMaskExportOptions options;
  options.dtype = dtype;
  FDMA_TRY(const HfMask array, hf_mask_from_block_mask(mask, options));
  const InteropGroup group = group_from_hf_mask(array);
  FDMA_TRY(const HfMask read, hf_mask_from_group(group));
  FDMA_TRY(BlockMask back, block_mask_from_hf_mask(read, kBlock));
  return passed(group, std::move(back));
}

std::vector<Representation> representations() {
  std::vector<Representation> all;
  for (const MaskFormat format : kMaskFormats) {
    all.push_back({std::string(to_string(format)), [format](const BlockMask& mask) {
                     return [&]() -> Result<Passed> {
                       FDMA_TRY(BlockMask converted, convert(mask, format, kBlock));
                       return Passed{{}, std::move(converted)};
                     }();
                   }});
  }
  all.push_back({"flex", pass_flex});
  all.push_back({"flash_mask", pass_flash_mask});
  all.push_back({"bsr", pass_bsr});
  all.push_back({"cu_seqlens", pass_cu_seqlens});
  all.push_back({"hf_padding", pass_hf_padding});
  all.push_back(
      {"hf_mask", [](const BlockMask& mask) { return pass_hf_mask(mask, DType::boolean); }});
  all.push_back({"hf_mask_additive",
                 [](const BlockMask& mask) { return pass_hf_mask(mask, DType::float32); }});
  return all;
}

// Takes the mask through all pairs; the names of what can hold it.
std::set<std::string> check_pairs(const BlockMask& mask, const std::string& label) {
  std::set<std::string> holding;
  std::vector<std::pair<const Representation*, Passed>> held;
  static const std::vector<Representation> all = representations();
  for (const Representation& representation : all) {
    Result<Passed> alone = representation.pass(mask);
    if (!alone) {
      EXPECT_EQ(alone.error().code, ErrorCode::unsupported)
          << label << ", " << representation.name << ": " << alone.error().message;
      continue;
    }
    EXPECT_TRUE(equal_cells(alone->mask, mask)) << label << ", " << representation.name;
    EXPECT_TRUE(validate(alone->mask, ValidationLevel::canonical)) << label;
    holding.insert(representation.name);
    held.emplace_back(&representation, *std::move(alone));
  }
  for (const auto& [first, from] : held) {
    for (const auto& [second, to] : held) {
      const Result<Passed> both = second->pass(from.mask);
      const std::string place = label + ", " + first->name + " to " + second->name;
      EXPECT_TRUE(both) << place << ": " << both.error().message;
      if (!both) continue;
      EXPECT_TRUE(equal_cells(both->mask, mask)) << place;
      EXPECT_TRUE(both->arrays == to.arrays) << place << ": other arrays";
    }
  }
  return holding;
}

TEST(RoundTrips, TakeTheMaskSuiteThroughEveryPair) {
  const std::set<std::string> anything{"segment", "bitset", "bcsr",    "columns",         "dense",
                                       "flex",    "bsr",    "hf_mask", "hf_mask_additive"};
  for (const auto& [name, mask] : testing::compiled_suite(320)) {
    std::set<std::string> holding = check_pairs(mask, name);
    for (const std::string& each : anything) EXPECT_EQ(holding.count(each), 1u) << name << each;
    EXPECT_EQ(holding.count("flash_mask"), 1u) << name;
    const bool is_window = name == "full" || name == "causal" || name == "sliding_window" ||
                           name == "causal_document" || name == "document";
    EXPECT_EQ(holding.count("cu_seqlens"), is_window ? 1u : 0u) << name;
    EXPECT_EQ(holding.count("hf_padding"), name == "full" || name == "causal" ? 1u : 0u) << name;
  }
}

TEST(RoundTrips, TakeRandomMasksThroughEveryPair) {
  EXPECT_TRUE(rc::check("batch elements and heads", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const BlockMask mask = testing::random_block_mask(rng, pick(rng, 0, 120), pick(rng, 0, 120),
                                                      testing::random_block(rng));
    const std::set<std::string> holding = check_pairs(mask, "random");
    ASSERT_TRUE(holding.count("flex") == 1 && holding.count("hf_mask") == 1);
    ASSERT_EQ(holding.count("bsr"), mask.shape.num_batches * mask.shape.num_heads == 1 ? 1u : 0u);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Masks of each layout's own class, so that every pair that can meet does.
TEST(RoundTrips, TakeMasksOfNarrowClassesThroughEveryPair) {
  EXPECT_TRUE(rc::check("padding, and windows over sequences", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    HfPadding padding;
    padding.q_len = pick(rng, 1, 90);
    padding.kv_len = pick(rng, 1, 90);
    padding.num_batches = pick(rng, 1, 3);
    padding.num_heads = pick(rng, 1, 2);
    padding.is_causal = pick(rng, 0, 1) == 1;
    for (std::int64_t i = 0; i < padding.num_batches; ++i) {
      const std::int64_t tokens = pick(rng, 0, padding.kv_len);
      const bool is_left = pick(rng, 0, 1) == 1;
      for (std::int64_t k = 0; k < padding.kv_len; ++k) {
        padding.attention_mask.push_back((is_left ? k >= padding.kv_len - tokens : k < tokens) ? 1
                                                                                               : 0);
      }
    }
    ASSERT_EQ(check_pairs(*block_mask_from_hf_padding(padding), "padding").count("hf_padding"), 1u);
    CuSeqlens sequences;
    sequences.cu_seqlens_q = sequences.cu_seqlens_k = {0};
    for (std::int64_t i = pick(rng, 1, 4); i > 0; --i) {
      sequences.cu_seqlens_q.push_back(sequences.cu_seqlens_q.back() +
                                       static_cast<std::int32_t>(pick(rng, 0, 40)));
      sequences.cu_seqlens_k.push_back(sequences.cu_seqlens_k.back() +
                                       static_cast<std::int32_t>(pick(rng, 0, 40)));
    }
    sequences.window_left = pick(rng, -1, 20);
    sequences.window_right = pick(rng, -1, 20);
    const BlockMask mask = *block_mask_from_cu_seqlens(sequences);
    const std::set<std::string> holding = check_pairs(mask, "sequences");
    ASSERT_EQ(holding.count("cu_seqlens"), 1u);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Our formats and cu_seqlens hold lengths per batch element. The other layouts have one pair of
// lengths, and their errors say so.
TEST(RoundTrips, TakeRaggedLengthsWhereALayoutHasThem) {
  EXPECT_TRUE(rc::check("ragged", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    CuSeqlens sequences;
    sequences.is_packed = false;
    sequences.is_causal = pick(rng, 0, 1) == 1;
    sequences.window_left = pick(rng, -1, 20);
    sequences.num_heads = pick(rng, 1, 2);
    sequences.cu_seqlens_q = {0, 7};
    sequences.cu_seqlens_k = {0, 9};
    for (std::int64_t i = pick(rng, 1, 3); i > 0; --i) {
      sequences.cu_seqlens_q.push_back(sequences.cu_seqlens_q.back() +
                                       static_cast<std::int32_t>(pick(rng, 8, 80)));
      sequences.cu_seqlens_k.push_back(sequences.cu_seqlens_k.back() +
                                       static_cast<std::int32_t>(pick(rng, 10, 80)));
    }
    const std::set<std::string> holding =
        check_pairs(*block_mask_from_cu_seqlens(sequences), "ragged");
    for (const char* name : {"segment", "bitset", "bcsr", "columns", "dense", "cu_seqlens"}) {
      ASSERT_EQ(holding.count(name), 1u) << name;
    }
    for (const char* name : {"flex", "flash_mask", "bsr", "hf_padding", "hf_mask"}) {
      ASSERT_EQ(holding.count(name), 0u) << name;
    }
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

}  // namespace
}  // namespace fdma
