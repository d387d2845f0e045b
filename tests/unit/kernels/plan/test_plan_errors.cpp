// Tests what make_plan and validate refuse, and the names in their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "backend/mask_cases.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/plan_forms.hpp"
#include "plan/plan_mutations.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::expect_caught;
using ::testing::HasSubstr;
using testing::MaskCase;
using testing::segments_of;

MaskCase causal_case(std::int64_t q_len, std::int64_t kv_len) {
  return testing::case_of("causal",
                          testing::make_cells(q_len, kv_len, [](auto q, auto k) { return k <= q; }),
                          {16, 16});
}

void expect_error(const Result<AttentionPlan>& plan, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(plan.has_value()) << text;
  EXPECT_EQ(plan.error().code, code) << plan.error().message;
  EXPECT_THAT(plan.error().message, HasSubstr(text));
}

TEST(MakePlan, TakesEveryPartOfAScoreOnTheCpu) {
  const MaskCase each = causal_case(40, 40);
  const AttentionShape shape = testing::shape_for(each.mask, 1, 1, 1);
  PlanOptions options;
  options.backend = Backend::sm90;
  expect_error(make_plan(each.mask, shape, {}, options), ErrorCode::unsupported, "sm90");
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    PlanOptions on_cpu;
    on_cpu.direction = direction;
#define FDMA_SCORE_PART(name, meaning) \
  EXPECT_TRUE(make_plan(each.mask, shape, {.name = true}, on_cpu)) << #name;
#include "fdma/formats/score_parts.def"
  }
  EXPECT_TRUE(make_plan(each.mask, shape, {.softcap = true, .key_bias = true}));
  EXPECT_TRUE(make_plan(each.mask, shape, {.key_bias = true}));
}

// Scores that ask for the places of pairs: what sm90 does not compute beside them it says by name, and
// masks that it would gather, permute or list run by tiles.
TEST(MakePlan, KeepsTheOrderOfKeysForPlaces) {
  const MaskCase each =
      testing::case_of("keys",
                       testing::make_cells(1024, 4096,
                                           [](auto q, auto k) {
                                             const auto first = k * 37 % 800;
                                             return k % 16 == 0 && q >= first && q < first + 200;
                                           }),
                       {128, 128});
  AttentionShape shape = testing::shape_for(each.mask, 1, 8, 8);
  shape.head_dim = shape.head_dim_v = 128;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (const ColumnMode columns : {ColumnMode::automatic, ColumnMode::reorder}) {
      PlanOptions options;
      options.backend = Backend::sm90;
      options.direction = direction;
      options.columns = columns;
      PlanOptions scan = options;
      scan.columns = ColumnMode::scan;
      const auto plan = make_plan(each.mask, shape, {.alibi = true}, options);
      const auto scanned = make_plan(each.mask, shape, {.alibi = true}, scan);
      ASSERT_TRUE(plan) << plan.error().message;
      ASSERT_TRUE(scanned) << scanned.error().message;
      EXPECT_EQ(plan->counts, scanned->counts);
      EXPECT_EQ(plan->counts.gather_chunks + plan->counts.moved_keys, 0);
      const auto other = make_plan(each.mask, shape, {}, options);
      ASSERT_TRUE(other) << other.error().message;
      EXPECT_FALSE(other->counts == scanned->counts && other->form == scanned->form);
    }
  }
  PlanOptions options;
  options.backend = Backend::sm90;
  expect_error(make_plan(each.mask, shape, {.softcap = true, .bias = true}, options),
               ErrorCode::unsupported, "score: sm90 does not compute softcap together with bias");
  shape.head_dim = 192;
  expect_error(
      make_plan(each.mask, shape, {.alibi = true}, options), ErrorCode::unsupported,
      "score: sm90 computes alibi with head_dim and head_dim_v up to 128, got 192 and 128");
}

TEST(MakePlan, RejectsTheMaskOfOneHeadOrElementForSeveral) {
  MaskCase one = causal_case(40, 50);
  const AttentionShape shape = testing::shape_for(one.mask, 2, 4, 2);
  EXPECT_TRUE(make_plan(one.mask, shape));
  one.mask.is_per_head = true;
  expect_error(make_plan(one.mask, shape), ErrorCode::shape_mismatch,
               "mask: it was written with h and compiled for one head, the tensors have 4; compile "
               "it with heads=4");
  EXPECT_TRUE(make_plan(one.mask, testing::shape_for(one.mask, 2, 1, 1)));
  one.mask.is_per_head = false;
  one.mask.is_per_batch = true;
  expect_error(make_plan(one.mask, shape), ErrorCode::shape_mismatch, "compile it with batch=2");
  EXPECT_TRUE(make_plan(one.mask, testing::shape_for(one.mask, 1, 4, 2)));
}

TEST(MakePlan, RejectsMasksOfAnotherShape) {
  const MaskCase one = causal_case(40, 50);
  AttentionShape shape = testing::shape_for(one.mask, 1, 4, 2);
  shape.q_lens = {41};
  expect_error(make_plan(one.mask, shape), ErrorCode::shape_mismatch, "41");
  shape.q_lens = {40};
  shape.kv_lens = {49};
  expect_error(make_plan(one.mask, shape), ErrorCode::shape_mismatch, "49");
  shape.kv_lens = {50};
  EXPECT_TRUE(make_plan(one.mask, shape));

  const MaskCase heads = testing::combined("heads", 1, 2, {one, one}, {16, 16});
  expect_error(make_plan(heads.mask, shape), ErrorCode::shape_mismatch, "heads");
  const MaskCase batches = testing::combined("batches", 2, 1, {one, causal_case(30, 20)}, {16, 16});
  shape.batch = 3;
  expect_error(make_plan(batches.mask, shape), ErrorCode::shape_mismatch, "batch");
  shape.batch = 2;
  expect_error(make_plan(batches.mask, shape), ErrorCode::shape_mismatch, "batch element 1");
  shape.q_lens = {40, 30};
  shape.kv_lens = {50, 20};
  EXPECT_TRUE(make_plan(batches.mask, shape));
}

// Lengths per element in the shape may say the same as uniform lengths in the mask.
TEST(MakePlan, AcceptsUniformLengthsHoweverTheyAreSpelled) {
  const MaskCase one = causal_case(40, 50);
  AttentionShape shape = testing::shape_for(one.mask, 3, 2, 2);
  shape.q_lens = {40, 40, 40};
  shape.kv_lens = {50, 50, 50};
  EXPECT_TRUE(make_plan(one.mask, shape));
}

TEST(MakePlan, RejectsBadShapesAndTiles) {
  const MaskCase each = causal_case(40, 40);
  const AttentionShape good = testing::shape_for(each.mask, 1, 6, 2);
  const auto rejected = [&](const std::function<void(AttentionShape&)>& change, const char* named) {
    AttentionShape shape = good;
    change(shape);
    const auto plan = make_plan(each.mask, shape);
    ASSERT_FALSE(plan.has_value()) << named;
    EXPECT_THAT(plan.error().message, HasSubstr(named));
  };
  rejected([](auto& shape) { shape.heads_kv = 4; }, "heads_q");
  rejected([](auto& shape) { shape.heads_kv = 0; }, "heads_kv");
  rejected([](auto& shape) { shape.head_dim = 0; }, "head_dim");
  rejected([](auto& shape) { shape.head_dim = 257; }, "head_dim");
  rejected([](auto& shape) { shape.head_dim_v = 257; }, "head_dim_v");
  rejected([](auto& shape) { shape.batch = 0; }, "batch");
  rejected([](auto& shape) { shape.q_lens = {40, 40}; }, "q_lens");
  rejected([](auto& shape) { shape.kv_lens = {-1}; }, "kv_lens");
  rejected([](auto& shape) { shape.q_dtype = DType::float64; }, "q_dtype");
  rejected([](auto& shape) { shape.k_dtype = DType::int8; }, "k_dtype");
  rejected([](auto& shape) { shape.v_dtype = DType::boolean; }, "v_dtype");
  rejected([](auto& shape) { shape.out_dtype = DType::int32; }, "out_dtype");

  for (const BlockShape tile : {BlockShape{24, 16}, {16, 24}, {0, 16}, {2048, 16}, {-16, 16}}) {
    PlanOptions options;
    options.tile = tile;
    const auto plan = make_plan(each.mask, good, {}, options);
    ASSERT_FALSE(plan.has_value()) << tile.block_q << "x" << tile.block_kv;
    EXPECT_EQ(plan.error().code, ErrorCode::invalid_argument);
  }
  PlanOptions options;
  options.l2_bytes = -1;
  expect_error(make_plan(each.mask, good, {}, options), ErrorCode::invalid_argument, "l2_bytes");
}

TEST(MakePlan, NamesItsOptions) {
  EXPECT_EQ(to_string(Backend::cpu), "cpu");
  EXPECT_EQ(*parse_backend("sm90"), Backend::sm90);
  EXPECT_THAT(parse_backend("gpu").error().message, HasSubstr("'gpu'"));
  EXPECT_EQ(to_string(ColumnMode::automatic), "automatic");
  EXPECT_EQ(to_string(ColumnMode::scan), "scan");
  for (const ColumnMode mode :
       {ColumnMode::automatic, ColumnMode::scan, ColumnMode::gather, ColumnMode::reorder}) {
    EXPECT_EQ(*parse_column_mode(to_string(mode)), mode);
  }
  EXPECT_THAT(parse_column_mode("x").error().message,
              HasSubstr("columns: expected automatic, scan, gather or reorder, got 'x'"));
}

TEST(ValidatePlan, RejectsOneChangedFieldOfWorkTiles) {
  const MaskCase each = causal_case(100, 100);
  PlanOptions options;
  options.tile = {32, 32};
  const auto plan = make_plan(each.mask, testing::shape_for(each.mask, 2, 2, 1), {}, options);
  ASSERT_TRUE(plan);
  const auto last = segments_of(*plan).work_tiles.size() - 1;
  std::size_t moving = 0;
  while (
      segments_of(*plan)
          .segments[static_cast<std::size_t>(segments_of(*plan).work_tiles[moving].first_segment)]
          .step_end == 0)
    ++moving;
  expect_caught(
      *plan,
      {{"a work tile less", [](auto& p) { segments_of(p).work_tiles.pop_back(); }},
       {"a work tile twice",
        [](auto& p) { segments_of(p).work_tiles[1] = segments_of(p).work_tiles[0]; }},
       {"batch", [](auto& p) { segments_of(p).work_tiles[0].batch = 2; }},
       {"negative batch", [](auto& p) { segments_of(p).work_tiles[0].batch = -1; }},
       {"head", [](auto& p) { segments_of(p).work_tiles[0].head = 2; }},
       {"negative head", [](auto& p) { segments_of(p).work_tiles[0].head = -1; }},
       {"q_tile", [](auto& p) { segments_of(p).work_tiles[0].q_tile = 4; }},
       {"negative q_tile", [](auto& p) { segments_of(p).work_tiles[0].q_tile = -1; }},
       {"step", [moving](auto& p) { segments_of(p).work_tiles[moving].step += 1; }},
       {"negative step", [last](auto& p) { segments_of(p).work_tiles[last].step = -1; }},
       {"first_segment", [](auto& p) { segments_of(p).work_tiles[0].first_segment = 1000; }},
       {"negative first_segment", [](auto& p) { segments_of(p).work_tiles[0].first_segment = -1; }},
       {"num_segments", [](auto& p) { segments_of(p).work_tiles[0].num_segments = 1000; }},
       {"negative num_segments", [](auto& p) { segments_of(p).work_tiles[0].num_segments = -1; }},
       {"num_tiles", [](auto& p) { segments_of(p).work_tiles[0].num_tiles += 1; }},
       {"num_entries", [](auto& p) { segments_of(p).work_tiles[0].num_entries += 1; }},
       {"counts.full_tiles", [](auto& p) { p.counts.full_tiles += 1; }},
       {"counts.empty_items", [](auto& p) { p.counts.empty_items += 1; }},
       {"tile", [](auto& p) { p.tile.block_q = 24; }, ErrorCode::invalid_argument},
       {"a tile of other bitmaps", [](auto& p) { p.tile.block_kv = 48; }},
       {"heads", [](auto& p) { p.shape.heads_q = 3; }},
       {"lengths", [](auto& p) { p.shape.kv_lens = {60}; }}});
}

TEST(ValidatePlan, RejectsOneChangedFieldOfSegments) {
  const MaskCase each = causal_case(100, 100);
  PlanOptions options;
  options.tile = {32, 32};
  const auto plan = make_plan(each.mask, testing::shape_for(each.mask, 1, 1, 1), {}, options);
  ASSERT_TRUE(plan);
  std::size_t full = 0;
  while (segments_of(*plan).segments[full].kind != PlanSegmentKind::full) ++full;
  expect_caught(
      *plan,
      {{"first_tile", [full](auto& p) { segments_of(p).segments[full].first_tile = -1; }},
       {"end_tile", [full](auto& p) { segments_of(p).segments[full].end_tile += 4; }},
       {"step_first", [full](auto& p) { segments_of(p).segments[full].step_first -= 1; }},
       {"step_end", [full](auto& p) { segments_of(p).segments[full].step_end += 4; }},
       {"kind",
        [full](auto& p) { segments_of(p).segments[full].kind = static_cast<PlanSegmentKind>(9); }},
       {"negative kind",
        [full](auto& p) { segments_of(p).segments[full].kind = static_cast<PlanSegmentKind>(-1); }},
       {"data index", [full](auto& p) { segments_of(p).segments[full].data_index = 1000; }},
       {"negative data index", [full](auto& p) { segments_of(p).segments[full].data_index = -1; }},
       {"a bitmap less",
        [](auto& p) { segments_of(p).bitmaps.resize(segments_of(p).bitmaps.size() - 1); }}});
}

// Bits of a bitmap or panel for keys and rows that do not exist would be read beyond a tensor.
TEST(ValidatePlan, RejectsCellsBeyondTheLengths) {
  const Cells noise = testing::make_cells(
      40, 40, [](auto q, auto k) { return (q * 7 + k * k * 3 + q * k) % 5 < 2; });
  const MaskCase bitmaps = testing::case_of("noise", noise, {32, 32});
  PlanOptions options;
  options.tile = {32, 32};
  const auto plan = make_plan(bitmaps.mask, testing::shape_for(bitmaps.mask, 1, 1, 1), {}, options);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->counts.bitmap_tiles, 4);
  // The last bit of a tile is cell (31, 31), which only the first of the four tiles has.
  expect_caught(*plan, {{"bits past the lengths", [](auto& p) {
                           for (std::uint64_t& word : segments_of(p).bitmaps)
                             word |= std::uint64_t{1} << 63;
                         }}});

  // The runs are thin and differ from row to row, so row panels take the fewest bytes.
  const Cells tile_runs = testing::make_cells(
      40, 200, [](auto q, auto k) { return q * 3 <= k && k < 40 + q * 3 + q % 3; });
  const MaskCase rows = testing::case_of("rows", tile_runs, {128, 128});
  const auto row_plan = make_plan(rows.mask, testing::shape_for(rows.mask, 1, 1, 1));
  ASSERT_TRUE(row_plan);
  ASSERT_GT(row_plan->counts.row_tiles, 0);
  expect_caught(
      *row_plan,
      {{"an interval past the keys",
        [](auto& p) { segments_of(p).row_intervals.back().end = 1000; }},
       {"a negative interval", [](auto& p) { segments_of(p).row_intervals.front().begin = -1; }},
       {"an empty interval",
        [](auto& p) {
          segments_of(p).row_intervals.front().end = segments_of(p).row_intervals.front().begin;
        }},
       {"descending offsets",
        [](auto& p) { segments_of(p).row_offsets[1] = segments_of(p).row_offsets[2] + 1; }},
       {"offsets past the intervals", [](auto& p) { segments_of(p).row_offsets.back() += 1; }},
       {"a panel less", [](auto& p) { segments_of(p).row_offsets.pop_back(); }},
       {"no offsets", [](auto& p) { segments_of(p).row_offsets.clear(); }}});
}

TEST(ValidatePlan, RejectsOneChangedFieldOfColumns) {
  std::mt19937 rng(3);
  Cells cells(300, 1024);
  for (std::int64_t k = 0; k < 1024; k += 7) {
    const std::int64_t begin = k % 3 == 0 ? 0 : testing::pick(rng, 0, 299);
    for (std::int64_t q = begin; q < std::min<std::int64_t>(300, begin + 200); ++q)
      cells.at(q, k) = 1;
  }
  const MaskCase each = testing::case_of("live ranges", cells, {128, 128});
  const AttentionShape shape = testing::shape_for(each.mask, 1, 1, 1);
  PlanOptions options;
  options.columns = ColumnMode::scan;
  const auto scan = make_plan(each.mask, shape, {}, options);
  ASSERT_TRUE(scan);
  ASSERT_GT(scan->counts.column_tiles, 0);
  expect_caught(
      *scan, {{"a table less", [](auto& p) { segments_of(p).column_tables.clear(); }},
              {"a table past the offsets", [](auto& p) { segments_of(p).column_tables[0] = 1; }},
              {"a negative table", [](auto& p) { segments_of(p).column_tables[0] = -1; }},
              {"an offset less", [](auto& p) { segments_of(p).column_offsets.pop_back(); }},
              {"descending offsets", [](auto& p) { segments_of(p).column_offsets[1] = 1 << 20; }},
              {"an interval less", [](auto& p) { segments_of(p).column_intervals.pop_back(); }},
              {"num_entries", [](auto& p) { segments_of(p).work_tiles[0].num_entries += 1; }},
              {"counts.column_entries", [](auto& p) { p.counts.column_entries += 1; }}});

  options.columns = ColumnMode::gather;
  const auto gather = make_plan(each.mask, shape, {}, options);
  ASSERT_TRUE(gather);
  ASSERT_GT(gather->counts.gather_chunks, 0);
  ASSERT_GT(segments_of(*gather).kv_index_lists[0].num_full, 1);
  ASSERT_NE(segments_of(*gather).kv_index_lists[0].num_entries % kKvIndexAlignment, 0);
  expect_caught(
      *gather,
      {{"key", [](auto& p) { segments_of(p).kv_index_entries[0].key = 1024; }},
       {"negative key", [](auto& p) { segments_of(p).kv_index_entries[0].key = -1; }},
       {"row_begin", [](auto& p) { segments_of(p).kv_index_entries[0].row_begin = 1; }},
       {"row_end", [](auto& p) { segments_of(p).kv_index_entries[0].row_end = 129; }},
       {"no rows", [](auto& p) { segments_of(p).kv_index_entries[0].row_end = 0; }},
       {"descending keys",
        [](auto& p) {
          std::swap(segments_of(p).kv_index_entries[0].key, segments_of(p).kv_index_entries[1].key);
        }},
       {"a key twice",
        [](auto& p) {
          segments_of(p).kv_index_entries[1].key = segments_of(p).kv_index_entries[0].key;
        }},
       {"an entry in the gap",
        [](auto& p) {
          segments_of(p).kv_index_entries[static_cast<std::size_t>(
              segments_of(p).kv_index_lists[0].num_entries)] = {1, 0, 128};
        }},
       {"first_entry in the gap",
        [](auto& p) { segments_of(p).kv_index_lists[0].first_entry = 1; }},
       {"num_full", [](auto& p) { segments_of(p).kv_index_lists[0].num_full -= 1; }},
       {"num_entries of a list",
        [](auto& p) { segments_of(p).kv_index_lists[0].num_entries += 1; }},
       {"negative num_entries", [](auto& p) { segments_of(p).kv_index_lists[0].num_entries = -1; }},
       {"first_entry", [](auto& p) { segments_of(p).kv_index_lists[0].first_entry = 1 << 30; }},
       {"negative first_entry", [](auto& p) { segments_of(p).kv_index_lists[0].first_entry = -1; }},
       {"an entry less", [](auto& p) { segments_of(p).kv_index_entries.pop_back(); }},
       {"num_entries", [](auto& p) { segments_of(p).work_tiles[0].num_entries += 1; }},
       {"counts.gather_entries", [](auto& p) { p.counts.gather_entries += 1; }}});

  options.columns = ColumnMode::reorder;
  const auto reorder = make_plan(each.mask, shape, {}, options);
  ASSERT_TRUE(reorder);
  ASSERT_EQ(segments_of(*reorder).kv_permutations.size(), 1);
  expect_caught(
      *reorder,
      {{"a key of the order", [](auto& p) { segments_of(p).permuted_keys[3] = 1024; }},
       {"a negative key of the order", [](auto& p) { segments_of(p).permuted_keys[3] = -1; }},
       {"a key twice",
        [](auto& p) { segments_of(p).permuted_keys[3] = segments_of(p).permuted_keys[4]; }},
       {"a key less", [](auto& p) { segments_of(p).permuted_keys.pop_back(); }},
       {"first_key", [](auto& p) { segments_of(p).kv_permutations[0].first_key = 1; }},
       {"negative first_key", [](auto& p) { segments_of(p).kv_permutations[0].first_key = -1; }},
       {"num_keys", [](auto& p) { segments_of(p).kv_permutations[0].num_keys -= 1; }},
       {"negative num_keys", [](auto& p) { segments_of(p).kv_permutations[0].num_keys = -1; }},
       {"no orders", [](auto& p) { segments_of(p).kv_permutations.clear(); }},
       {"no order of heads", [](auto& p) { segments_of(p).permutation_of.clear(); }},
       {"order of a head", [](auto& p) { segments_of(p).permutation_of[0] = 1; }},
       {"negative order of a head", [](auto& p) { segments_of(p).permutation_of[0] = -2; }},
       {"a head without the order that work tiles have",
        [](auto& p) { segments_of(p).permutation_of[0] = -1; }},
       {"the order's segment is not the first",
        [](auto& p) { std::swap(segments_of(p).segments[0], segments_of(p).segments[1]); }},
       {"the order's segment has tiles", [](auto& p) { segments_of(p).segments[0].end_tile = 1; }},
       {"another order", [](auto& p) { segments_of(p).segments[0].data_index = 1; }},
       {"counts.moved_keys", [](auto& p) { p.counts.moved_keys += 1; }}});
}

}  // namespace
}  // namespace fdma
