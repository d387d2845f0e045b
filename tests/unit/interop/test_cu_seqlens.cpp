// Compares FlashAttention's packed sequences with their definition. They are exact both ways, and
// the error of every kind of damage names it.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/interop/cu_seqlens.hpp"
#include "fdma/formats/validate.hpp"
#include "interop_masks.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::compiled;
using testing::pick;

using Lengths = std::vector<std::int32_t>;

// The rule of cu_seqlens.hpp for row i and key j of a sequence.
bool sees(const CuSeqlens& sequences, std::size_t b, std::int64_t i, std::int64_t j) {
  const auto used = [&](const Lengths& offsets, const std::optional<Lengths>& given) {
    return std::int64_t{given ? (*given)[b] : offsets[b + 1] - offsets[b]};
  };
  const std::int64_t sq = used(sequences.cu_seqlens_q, sequences.seqused_q);
  const std::int64_t sk = used(sequences.cu_seqlens_k, sequences.seqused_k);
  if (i >= sq || j >= sk) return false;
  const std::int64_t left = sequences.window_left;
  const std::int64_t right = sequences.is_causal ? 0 : sequences.window_right;
  return (left < 0 || j >= i + sk - sq - left) && (right < 0 || j <= i + sk - sq + right);
}

// Returns the cells of batch element `batch` of the mask.
Cells cells_of(const CuSeqlens& sequences, std::size_t batch) {
  const auto& q = sequences.cu_seqlens_q;
  const auto& k = sequences.cu_seqlens_k;
  if (!sequences.is_packed) {
    return testing::make_cells(q[batch + 1] - q[batch], k[batch + 1] - k[batch],
                               [&](auto i, auto j) { return sees(sequences, batch, i, j); });
  }
  Cells cells(q.back(), k.back());
  for (std::size_t b = 0; b + 1 < q.size(); ++b) {
    for (std::int64_t i = q[b]; i < q[b + 1]; ++i) {
      for (std::int64_t j = k[b]; j < k[b + 1]; ++j) {
        cells.at(i, j) = sees(sequences, b, i - q[b], j - k[b]) ? 1 : 0;
      }
    }
  }
  return cells;
}

CuSeqlens random_sequences(std::mt19937& rng) {
  CuSeqlens sequences;
  sequences.cu_seqlens_q = {0};
  sequences.cu_seqlens_k = {0};
  const bool is_square = pick(rng, 0, 1) == 1;
  const std::int64_t count = pick(rng, 1, 6);
  Lengths used_q, used_k;
  for (std::int64_t b = 0; b < count; ++b) {
    const auto length = [&] {
      return static_cast<std::int32_t>(pick(rng, 0, 3) == 0 ? pick(rng, 0, 2) : pick(rng, 0, 60));
    };
    const std::int32_t q = length(), k = is_square ? q : length();
    sequences.cu_seqlens_q.push_back(sequences.cu_seqlens_q.back() + q);
    sequences.cu_seqlens_k.push_back(sequences.cu_seqlens_k.back() + k);
    used_q.push_back(static_cast<std::int32_t>(pick(rng, 0, q)));
    used_k.push_back(static_cast<std::int32_t>(pick(rng, 0, k)));
  }
  if (pick(rng, 0, 3) == 0) sequences.seqused_q = used_q;
  if (pick(rng, 0, 3) == 0) sequences.seqused_k = used_k;
  sequences.is_causal = pick(rng, 0, 2) == 0;
  sequences.window_left = pick(rng, 0, 1) == 0 ? -1 : pick(rng, 0, 30);
  sequences.window_right = pick(rng, 0, 1) == 0 ? -1 : pick(rng, 0, 30);
  sequences.is_packed = pick(rng, 0, 2) != 0;
  sequences.num_heads = pick(rng, 1, 3);
  return sequences;
}

TEST(BlockMaskFromCuSeqlens, HasTheCellsOfTheRuleAndGoesBack) {
  EXPECT_TRUE(rc::check("rule and round trip", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const CuSeqlens sequences = random_sequences(rng);
    const auto mask = block_mask_from_cu_seqlens(sequences, testing::random_block(rng));
    ASSERT_TRUE(mask) << mask.error().message;
    ASSERT_TRUE(validate(*mask, ValidationLevel::canonical));
    ASSERT_EQ(mask->shape.num_heads, sequences.num_heads);
    for (std::int64_t b = 0; b < mask->shape.num_batches; ++b) {
      for (std::int64_t h = 0; h < sequences.num_heads; ++h) {
        ASSERT_EQ(testing::cells_of(*mask, mask->group(b, h)),
                  cells_of(sequences, static_cast<std::size_t>(b)));
      }
    }
    const auto exported = cu_seqlens_from_block_mask(*mask);
    ASSERT_TRUE(exported) << exported.error().message;
    const auto back = block_mask_from_cu_seqlens(*exported, testing::random_block(rng));
    ASSERT_TRUE(back) << back.error().message;
    ASSERT_TRUE(equal_cells(*mask, *back));
    ASSERT_EQ(*cu_seqlens_from_block_mask(*back), *exported);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Whatever the mask, the answer is arguments that give it back, or an error that names a cell; and
// every mask one cell away from a mask of the class is judged rightly.
TEST(CuSeqlensFromBlockMask, IsExactOrAnErrorThatNamesACell) {
  EXPECT_TRUE(rc::check("one cell changed", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    CuSeqlens sequences = random_sequences(rng);
    sequences.is_packed = true;
    Cells cells = cells_of(sequences, 0);
    if (cells.q_len == 0 || cells.kv_len == 0) return;
    char& cell = cells.at(pick(rng, 0, cells.q_len - 1), pick(rng, 0, cells.kv_len - 1));
    cell = cell == 0 ? 1 : 0;
    const BlockMask mask = testing::block_mask_of(cells, {});
    const auto exported = cu_seqlens_from_block_mask(mask);
    if (exported) {
      ASSERT_EQ(cells_of(*exported, 0), cells);
    } else {
      ASSERT_EQ(exported.error().code, ErrorCode::unsupported);
      ASSERT_NE(exported.error().message.find("batch 0, head 0, query row "), std::string::npos);
    }
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// All masks of 4 x 3 cells are tried. Exactly those that some arguments describe are exported.
TEST(CuSeqlensFromBlockMask, FindsEveryMaskOfTheClass) {
  constexpr std::int64_t kRows = 4, kKeys = 3;
  std::vector<char> is_possible(1 << (kRows * kKeys), 0);
  const auto code_of = [](const Cells& cells) {
    std::size_t code = 0;
    for (const char cell : cells.values) code = 2 * code + static_cast<std::size_t>(cell);
    return code;
  };
  // Up to four sequences have their borders at every place of rows and keys.
  CuSeqlens sequences;
  const auto visit = [&](auto&& self, Lengths q, Lengths k) -> void {
    if (q.size() == 5) {
      q.push_back(kRows);
      k.push_back(kKeys);
      sequences.cu_seqlens_q = q;
      sequences.cu_seqlens_k = k;
      for (std::int64_t left = -1; left < 4; ++left) {
        for (std::int64_t right = -1; right < 5; ++right) {
          sequences.window_left = left;
          sequences.window_right = right;
          is_possible[code_of(cells_of(sequences, 0))] = 1;
        }
      }
      return;
    }
    for (std::int32_t i = q.back(); i <= kRows; ++i) {
      for (std::int32_t j = k.back(); j <= kKeys; ++j) {
        q.push_back(i);
        k.push_back(j);
        self(self, q, k);
        q.pop_back();
        k.pop_back();
      }
    }
  };
  visit(visit, {0}, {0});
  std::size_t num_possible = 0;
  for (std::size_t code = 0; code < is_possible.size(); ++code) {
    const Cells cells = testing::make_cells(kRows, kKeys, [&](std::int64_t q, std::int64_t k) {
      return (code >> (kRows * kKeys - 1 - (q * kKeys + k)) & 1) != 0;
    });
    ASSERT_EQ(code_of(cells), code);
    const auto exported = cu_seqlens_from_block_mask(testing::block_mask_of(cells, {16, 16}));
    EXPECT_EQ(exported.has_value(), is_possible[code] != 0) << "mask " << code;
    if (exported) {
      EXPECT_EQ(cells_of(*exported, 0), cells) << "mask " << code;
    }
    num_possible += static_cast<std::size_t>(is_possible[code]);
  }
  EXPECT_GT(num_possible, 100u);
}

TEST(CuSeqlensFromBlockMask, GivesTheArgumentsOfItsExample) {
  const auto sequences = cu_seqlens_from_block_mask(compiled("k <= q & (q < 2 | k >= 2)", 5, 5));
  ASSERT_TRUE(sequences);
  EXPECT_EQ(sequences->cu_seqlens_q, (Lengths{0, 2, 5}));
  EXPECT_EQ(sequences->cu_seqlens_k, (Lengths{0, 2, 5}));
  EXPECT_TRUE(sequences->is_causal);
  EXPECT_EQ(sequences->window_left, -1);
  EXPECT_EQ(sequences->window_right, 0);
}

// One sequence is exported where one is enough. Rows and keys that a bottom-right window hides
// belong to it.
TEST(CuSeqlensFromBlockMask, KeepsOneSequenceWhole) {
  const auto expect = [](const std::string& spec, std::int64_t q_len, std::int64_t kv_len,
                         std::int64_t left, std::int64_t right) {
    const auto sequences = cu_seqlens_from_block_mask(compiled(spec, q_len, kv_len));
    ASSERT_TRUE(sequences) << spec << sequences.error().message;
    EXPECT_EQ(sequences->cu_seqlens_q, (Lengths{0, static_cast<std::int32_t>(q_len)})) << spec;
    EXPECT_EQ(sequences->cu_seqlens_k, (Lengths{0, static_cast<std::int32_t>(kv_len)})) << spec;
    EXPECT_EQ(sequences->window_left, left) << spec;
    EXPECT_EQ(sequences->window_right, right) << spec;
  };
  expect("true", 30, 50, -1, -1);
  expect("k <= q - 20", 50, 30, -1, 0);
  expect("k <= q + 20", 30, 50, -1, 0);
  expect("k <= q + 20 & k >= q + 17", 30, 50, 3, 0);
  expect("abs(q - k) <= 3", 50, 50, 3, 3);
  expect("k == q", 50, 50, 0, 0);
  expect("k == q + 20", 30, 50, 0, 0);
  expect("true", 0, 50, -1, -1);
  expect("true", 0, 0, -1, -1);
}

TEST(CuSeqlensFromBlockMask, WritesOneSequencePerBatchElement) {
  CuSeqlens sequences;
  sequences.cu_seqlens_q = {0, 3, 10, 10};
  sequences.cu_seqlens_k = {0, 5, 9, 12};
  sequences.seqused_k = {{4, 4, 0}};
  sequences.is_causal = true;
  sequences.window_right = 0;
  sequences.is_packed = false;
  const auto mask = block_mask_from_cu_seqlens(sequences);
  ASSERT_TRUE(mask);
  EXPECT_EQ(mask->shape.q_lens, (std::vector<std::int64_t>{3, 7, 0}));
  EXPECT_EQ(mask->shape.kv_lens, (std::vector<std::int64_t>{5, 4, 3}));
  const auto again = cu_seqlens_from_block_mask(*mask);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->cu_seqlens_q, sequences.cu_seqlens_q);
  EXPECT_EQ(again->seqused_k, (Lengths{4, 4, 3}));  // no row asks for the last ones
  EXPECT_TRUE(equal_cells(*block_mask_from_cu_seqlens(*again), *mask));
}

TEST(CuSeqlensFromBlockMask, HoldsItsPartOfTheMaskSuite) {
  std::vector<std::string> held;
  for (const auto& [name, mask] : testing::compiled_suite(1024)) {
    const auto sequences = cu_seqlens_from_block_mask(mask);
    if (!sequences) {
      EXPECT_NE(sequences.error().message.find("query row"), std::string::npos) << name;
      continue;
    }
    held.push_back(name);
    EXPECT_TRUE(equal_cells(mask, *block_mask_from_cu_seqlens(*sequences))) << name;
  }
  EXPECT_EQ(held, (std::vector<std::string>{"full", "causal", "sliding_window", "causal_document",
                                            "document"}));
}

// Closed forms stay closed: a window over a million tokens is a few runs.
TEST(BlockMaskFromCuSeqlens, StaysClosedAtAMillionTokens) {
  CuSeqlens sequences;
  sequences.cu_seqlens_q = sequences.cu_seqlens_k = {0, 1 << 20};
  sequences.is_causal = true;
  sequences.window_left = 4095;
  const auto mask = block_mask_from_cu_seqlens(sequences);
  ASSERT_TRUE(mask);
  EXPECT_TRUE(equal_cells(*mask, compiled("causal & window(4096)", 1 << 20, 1 << 20)));
  EXPECT_LT(mask->size_bytes(), 10000);
  const auto again = cu_seqlens_from_block_mask(*mask);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->cu_seqlens_q, sequences.cu_seqlens_q);
  EXPECT_EQ(again->window_left, 4095);
}

TEST(CuSeqlensFromBlockMask, RejectsWhatNoWindowHolds) {
  const auto message = [](const BlockMask& mask) {
    const auto sequences = cu_seqlens_from_block_mask(mask);
    EXPECT_FALSE(sequences);
    return sequences ? std::string() : sequences.error().message;
  };
  EXPECT_NE(message(compiled("causal | k < 5", 40, 40)).find("query row 1, key 5"),
            std::string::npos)
      << message(compiled("causal | k < 5", 40, 40));
  EXPECT_NE(message(compiled("k != 7", 40, 40)).find("query row 0, key 7 is masked between"),
            std::string::npos);
  EXPECT_NE(message(compiled("k <= q * (h + 1)", 40, 40, {}, 2)).find("head 1, query row 1, key 2"),
            std::string::npos);
}

TEST(BlockMaskFromCuSeqlens, RejectsDamagedArguments) {
  CuSeqlens good;
  good.cu_seqlens_q = {0, 2, 5};
  good.cu_seqlens_k = {0, 3, 3};
  ASSERT_TRUE(block_mask_from_cu_seqlens(good));
  const auto expect = [&](const char* message, void (*damage)(CuSeqlens&)) {
    CuSeqlens sequences = good;
    damage(sequences);
    const auto result = block_mask_from_cu_seqlens(sequences);
    ASSERT_FALSE(result) << message;
    EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().message;
  };
  expect("cu_seqlens_q: 1 entries", [](CuSeqlens& s) { s.cu_seqlens_q = {0}; });
  expect("cu_seqlens_q: 0 entries", [](CuSeqlens& s) { s.cu_seqlens_q = {}; });
  expect("cu_seqlens_k: 2 entries", [](CuSeqlens& s) { s.cu_seqlens_k.pop_back(); });
  expect("cu_seqlens_q[0]: 1", [](CuSeqlens& s) { s.cu_seqlens_q[0] = 1; });
  expect("cu_seqlens_k[2]: 2 after 3", [](CuSeqlens& s) { s.cu_seqlens_k[2] = 2; });
  expect("cu_seqlens_k[1]: -2147483648", [](CuSeqlens& s) { s.cu_seqlens_k[1] = INT32_MIN; });
  expect("window_size: -2 keys to the left", [](CuSeqlens& s) { s.window_left = -2; });
  expect("window_size: -9 keys to the right", [](CuSeqlens& s) { s.window_right = -9; });
  expect("seqused_q: 1 entries", [](CuSeqlens& s) { s.seqused_q = {{0}}; });
  expect("seqused_q[1]: 4, expected 0 to 3", [](CuSeqlens& s) { s.seqused_q = {{0, 4}}; });
  expect("seqused_k[0]: -1", [](CuSeqlens& s) { s.seqused_k = {{-1, 0}}; });
  expect("batch elements and heads: 1 x 0", [](CuSeqlens& s) { s.num_heads = 0; });
}

}  // namespace
}  // namespace fdma
