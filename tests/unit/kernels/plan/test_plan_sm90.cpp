// Tests plans for sm90 as far as a CPU can: cells, the order of bitmaps, refusals, and the answer
// of a backend fixture without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "backend/backend_cases.hpp"
#include "fdma/kernels/plan.hpp"
#include "mask_suite.hpp"
#include "plan/bitmap_order.hpp"
#include "plan/plan_cells.hpp"
#include "plan/plan_forms.hpp"
#include "plan/thread_cells.hpp"

namespace fdma {
namespace {

using testing::Cells;
using ::testing::HasSubstr;
using testing::MaskCase;
using testing::segments_of;

constexpr BlockShape kTile{128, 128};

bool bit_of(const std::vector<std::uint64_t>& words, std::size_t bit) {
  return (words[bit / 64] >> (bit % 64) & 1) != 0;
}

// Returns the bit of each cell (row, col) among the words of the 256 threads, by mask_cell, which
// defines it.
std::vector<std::size_t> bits_of_cells() {
  std::vector<std::size_t> bits(128 * 128);
  for (int thread = 0; thread < 256; ++thread) {
    for (int word = 0; word < 2; ++word) {
      for (int bit = 0; bit < 32; ++bit) {
        const gpu::FragmentCell cell = gpu::mask_cell(thread % 128, word, bit);
        bits[static_cast<std::size_t>((thread / 128 * 64 + cell.row) * 128 + cell.col)] =
            static_cast<std::size_t>((2 * thread + word) * 32 + bit);
      }
    }
  }
  return bits;
}

TEST(ThreadFragments, HaveEachCellWhereItsThreadLooks) {
  const std::vector<std::size_t> bits = bits_of_cells();
  std::mt19937_64 rng(1);
  for (int test_case = 0; test_case < 20; ++test_case) {
    std::vector<std::uint64_t> row_major(256), thread_fragments(256, ~std::uint64_t{0});
    for (std::uint64_t& word : row_major)
      word = test_case == 0 ? 0 : test_case % 2 == 0 ? rng() : rng() & rng() & rng();
    thread_fragments_from_row_major(row_major.data(), thread_fragments.data());
    for (std::size_t cell = 0; cell < bits.size(); ++cell) {
      ASSERT_EQ(bit_of(thread_fragments, bits[cell]), bit_of(row_major, cell))
          << "row " << cell / 128 << " column " << cell % 128;
    }
  }
}

TEST(ThreadFragments, MoveOneCellAtATime) {
  const std::vector<std::size_t> bits = bits_of_cells();
  for (std::size_t cell = 0; cell < bits.size(); cell += 37) {
    std::vector<std::uint64_t> row_major(256, 0), thread_fragments(256), expected(256, 0);
    row_major[cell / 64] = std::uint64_t{1} << (cell % 64);
    expected[bits[cell] / 64] = std::uint64_t{1} << (bits[cell] % 64);
    thread_fragments_from_row_major(row_major.data(), thread_fragments.data());
    ASSERT_EQ(thread_fragments, expected) << cell;
  }
}

AttentionShape half_shape(const BlockMask& mask, std::int64_t batch, std::int32_t heads_q,
                          std::int32_t heads_kv) {
  AttentionShape shape = testing::shape_for(mask, batch, heads_q, heads_kv);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::float16;
  return shape;
}

PlanOptions for_sm90() {
  PlanOptions options;
  options.backend = Backend::sm90;
  return options;
}

// Returns the plan with its bitmaps in the order of the CPU.
AttentionPlan with_key_major_bitmaps(AttentionPlan plan) {
  const std::vector<std::size_t> bits = bits_of_cells();
  for (std::int64_t i = 0; i < segments_of(plan).num_bitmaps(plan.words_per_bitmap()); ++i) {
    const auto first = segments_of(plan).bitmaps.begin() + i * 256;
    const std::vector<std::uint64_t> words(first, first + 256);
    std::fill(first, first + 256, 0);
    for (std::size_t cell = 0; cell < bits.size(); ++cell) {
      if (!bit_of(words, bits[cell])) continue;
      const std::size_t bit = cell % 128 * 128 + cell / 128;
      first[static_cast<std::ptrdiff_t>(bit / 64)] |= std::uint64_t{1} << (bit % 64);
    }
  }
  return plan;
}

std::string plan_error(const MaskCase& mask, const AttentionShape& shape,
                       ColumnMode columns = ColumnMode::automatic) {
  PlanOptions options = for_sm90();
  options.columns = columns;
  const auto plan = make_plan(mask.mask, shape, {}, options);
  if (!plan) return mask.name + ": " + plan.error().message;
  if (plan->backend != Backend::sm90 || plan->tile.block_kv != 128 ||
      plan->tile.block_q * plan->heads_per_tile != 128)
    return "not a plan of sm90";
  if (columns == ColumnMode::scan && !segments_of(*plan).kv_index_lists.empty())
    return "kv index lists";
  if (const auto valid = validate(*plan); !valid) return mask.name + ": " + valid.error().message;
  return testing::check_plan(*plan, mask);
}

TEST(PlanForSm90, HasTheCellsOfTheMaskSuite) {
  for (const auto& [q_len, kv_len] : {std::pair{300, 300}, {171, 390}, {390, 171}}) {
    for (const MaskCase& mask : testing::suite_cases(q_len, kv_len, {64, 64}))
      EXPECT_EQ(plan_error(mask, half_shape(mask.mask, 2, 4, 2)), "");
  }
}

TEST(PlanForSm90, HasTheCellsOfEveryKindOfSegment) {
  for (const testing::BackendCase& test_case : testing::random_backend_cases(3, 25)) {
    EXPECT_EQ(
        plan_error(*test_case.mask, half_shape(test_case.mask->mask, test_case.heads.batch,
                                               test_case.heads.heads_q, test_case.heads.heads_kv)),
        "");
  }
  for (const testing::BackendCase& test_case : testing::tile_count_cases())
    EXPECT_EQ(plan_error(*test_case.mask, half_shape(test_case.mask->mask, 1, 2, 1)), "");
}

// The rows of lists are the queries of a tile. The rows of a tile are those of one head or of
// several.
TEST(PlanForSm90, HasTheCellsOfGatheredColumns) {
  std::mt19937 rng(6);
  for (const auto& [q_len, heads_q, heads_kv] :
       {std::tuple{300, 2, 1}, {40, 8, 2}, {16, 6, 2}, {128, 1, 1}}) {
    const MaskCase mask =
        testing::case_of("live ranges", testing::random_live_ranges(rng, q_len, 700, 2), kTile);
    EXPECT_EQ(plan_error(mask, half_shape(mask.mask, 2, heads_q, heads_kv), ColumnMode::gather),
              "");
  }
}

// Both backends compute the same tiles if rows are neither split nor shared. Only the order of bits
// in a bitmap differs.
TEST(PlanForSm90, DiffersFromThatOfTheCpuInBitmapsAlone) {
  std::mt19937 rng(4);
  const MaskCase mask = testing::combined(
      "both", 1, 2, {testing::tile_case(rng, 300, 900), testing::column_case(rng, 300, 900)},
      kTile);
  const AttentionShape shape = half_shape(mask.mask, 1, 2, 1);
  PlanOptions cpu_options;
  cpu_options.columns = ColumnMode::scan;
  const auto cpu = make_plan(mask.mask, shape, {}, cpu_options);
  PlanOptions options = for_sm90();
  options.columns = ColumnMode::scan;
  options.split = SplitMode::never;
  options.pack = PackMode::never;
  const auto sm90 = make_plan(mask.mask, shape, {}, options);
  ASSERT_TRUE(cpu && sm90);
  AttentionPlan same = with_key_major_bitmaps(*sm90);
  same.backend = Backend::cpu;
  same.worker_bytes = cpu->worker_bytes;
  EXPECT_EQ(same, *cpu);
}

TEST(PlanForSm90, IsCheckedByValidate) {
  std::mt19937 rng(8);
  const MaskCase noise = testing::case_of(
      "noise",
      testing::make_cells(100, 100, [&](auto, auto) { return testing::pick(rng, 0, 1) == 1; }),
      kTile);
  const auto plan = make_plan(noise.mask, half_shape(noise.mask, 1, 1, 1), {}, for_sm90());
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->counts.bitmap_tiles, 1);
  ASSERT_TRUE(validate(*plan));
  // Each of these bits belongs to a row or key that does not exist.
  const std::vector<std::size_t> bits = bits_of_cells();
  for (const auto& [row, col] : {std::pair{100, 0}, {127, 127}, {0, 100}, {99, 127}, {64, 101}}) {
    AttentionPlan changed = *plan;
    const std::size_t bit = bits[static_cast<std::size_t>(row * 128 + col)];
    segments_of(changed).bitmaps[bit / 64] |= std::uint64_t{1} << (bit % 64);
    const auto checked = validate(changed);
    ASSERT_FALSE(checked) << row << " " << col;
    EXPECT_EQ(checked.error().code, ErrorCode::internal);
  }
  AttentionPlan shorter = *plan;
  segments_of(shorter).bitmaps.pop_back();
  EXPECT_FALSE(validate(shorter));
}

TEST(PlanForSm90, IsRefusedByNameOfWhatIsNotSupported) {
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(40, 40, [](auto q, auto k) { return k <= q; }), kTile);
  const auto expect_refused = [&](const std::function<void(AttentionShape&, PlanOptions&)>& change,
                                  std::initializer_list<const char*> named) {
    AttentionShape shape = half_shape(mask.mask, 1, 2, 1);
    PlanOptions options = for_sm90();
    change(shape, options);
    const auto plan = make_plan(mask.mask, shape, {}, options);
    ASSERT_FALSE(plan) << *named.begin();
    EXPECT_EQ(plan.error().code, ErrorCode::unsupported) << plan.error().message;
    for (const char* text : named) EXPECT_THAT(plan.error().message, HasSubstr(text));
  };
  expect_refused([](auto&, auto& options) { options.tile = {64, 128}; }, {"tile", "64 x 128"});
  expect_refused([](auto&, auto& options) { options.tile = {128, 256}; }, {"tile", "128 x 256"});
  for (const std::int32_t head_dim : {4, 65, 100}) {
    expect_refused([=](auto& shape, auto&) { shape.head_dim = head_dim; },
                   {"head_dim", "multiples of 8"});
    expect_refused([=](auto& shape, auto&) { shape.head_dim_v = head_dim; },
                   {"head_dim_v", "multiples of 8"});
  }
  expect_refused(
      [](auto& shape, auto& options) {
        shape.head_dim = 192;
        options.columns = ColumnMode::gather;
      },
      {"columns", "up to 128", "use scan"});
  expect_refused(
      [](auto& shape, auto&) {
        shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::float32;
      },
      {"dtype", "float32"});
  expect_refused([](auto& shape, auto&) { shape.k_dtype = DType::bfloat16; },
                 {"dtype", "bfloat16", "float16"});
  expect_refused([](auto& shape, auto&) { shape.out_dtype = DType::float32; },
                 {"dtype", "float32"});
  for (const std::int32_t head_dim : {8, 64, 80, 128, 192, 256}) {
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      AttentionShape shape = half_shape(mask.mask, 1, 2, 1);
      shape.head_dim = shape.head_dim_v = head_dim;
      shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
      PlanOptions options = for_sm90();
      options.tile = kTile;
      options.columns = ColumnMode::scan;
      const auto plan = make_plan(mask.mask, shape, {.key_bias = true}, options);
      EXPECT_TRUE(plan) << plan.error().message;
    }
  }
}

TEST(PlanForSm90, IsNotRunByTheCpu) {
  const MaskCase mask = testing::case_of("one", Cells(1, 1), kTile);
  const auto plan = make_plan(mask.mask, half_shape(mask.mask, 1, 1, 1), {}, for_sm90());
  ASSERT_TRUE(plan);
  const auto ran = attention_forward(*plan, {});
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::unsupported);
  EXPECT_THAT(ran.error().message, HasSubstr("sm90"));
}

}  // namespace
}  // namespace fdma
