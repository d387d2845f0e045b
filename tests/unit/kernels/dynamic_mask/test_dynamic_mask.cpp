// Tests Dynamic Mask Attention on the CPU, and the plans of calls on a GPU.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>

#include "backend/backend_dynamic_mask_case.hpp"
#include "dynamic_mask/device_kv_worklist.hpp"
#include "dynamic_mask/kv_index_list_room.hpp"
#include "dynamic_mask/selection_plan.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "fdma/kernels/device_topk.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using dynamic_mask::SelectionPlan;
using dynamic_mask::TileRoom;
using ::testing::HasSubstr;
using testing::segments_of;

TEST(DynamicMaskAttention, EqualsFloat64OnTheCpu) {
  testing::CpuFixture fixture;
  for (const testing::BackendDynamicMaskCase& test_case : testing::dynamic_mask_cases()) {
    if (test_case.reading == SelectionReading::scan) continue;  // the same on the CPU
    EXPECT_EQ(testing::run_dynamic_mask(fixture, test_case), "");
  }
}

ColumnIntervals causal(std::int32_t length) {
  ColumnIntervals mask{length, length, {0}, {}};
  for (std::int32_t key = 0; key < length; ++key) {
    mask.intervals.push_back({key, length});
    mask.offsets.push_back(key + 1);
  }
  return mask;
}

TEST(TileRooms, CausalHasWAndOneForEachFurtherQuery) {
  const std::vector<TileRoom> rooms = dynamic_mask::tile_rooms(causal(1000), 300, 128);
  ASSERT_EQ(rooms.size(), 8U);
  EXPECT_EQ(rooms[0].num_entries, 1 + 127);
  EXPECT_EQ(rooms[1].num_entries, 129 + 127);
  EXPECT_EQ(rooms[3].num_entries, 300 + 127);
  EXPECT_EQ(rooms[7].num_entries, 300 + 103);  // 104 queries
  EXPECT_EQ(rooms[7].most_visible, 1000);
  EXPECT_EQ(rooms[7].keys, (Interval{0, 1000}));
}

TEST(TileRooms, KeysThatAppearTogetherCountWAtMost) {
  // Every query of a document of 100 tokens sees all of its keys and keeps 20.
  ColumnIntervals mask{300, 300, {0}, {}};
  for (std::int32_t key = 0; key < 300; ++key) {
    mask.intervals.push_back({key / 100 * 100, key / 100 * 100 + 100});
    mask.offsets.push_back(key + 1);
  }
  const std::vector<TileRoom> rooms = dynamic_mask::tile_rooms(mask, 20, 128);
  ASSERT_EQ(rooms.size(), 3U);
  EXPECT_EQ(rooms[0].num_entries, 40);
  EXPECT_EQ(rooms[0].keys, (Interval{0, 200}));
  EXPECT_EQ(rooms[1].num_entries, 40);
  EXPECT_EQ(rooms[1].keys, (Interval{100, 300}));
  EXPECT_EQ(rooms[2].keys, (Interval{200, 300}));
  EXPECT_EQ(rooms[2].most_visible, 100);
}

DynamicMaskSpec spec_of(std::int64_t length, std::int64_t w, std::int32_t heads_q,
                        std::int32_t heads_kv) {
  DynamicMaskSpec spec;
  spec.shape.heads_q = heads_q;
  spec.shape.heads_kv = heads_kv;
  spec.shape.q_lens = spec.shape.kv_lens = {length};
  spec.shape.q_dtype = spec.shape.k_dtype = spec.shape.v_dtype = spec.shape.out_dtype =
      DType::bfloat16;
  spec.w = w;
  spec.backend = Backend::sm90;
  return spec;
}

SelectionPlan planned(const DynamicMaskSpec& spec) {
  TopkRows rows{spec.shape.batch,
                spec.shape.heads_kv,
                spec.shape.max_kv_len(),
                {causal(static_cast<std::int32_t>(spec.shape.max_kv_len()))},
                {}};
  rows.mask_of.assign(static_cast<std::size_t>(rows.num_rows()), 0);
  auto made = dynamic_mask::plan_selection(spec, rows);
  EXPECT_TRUE(made) << made.error().message;
  return made ? *std::move(made) : SelectionPlan{};
}

TEST(PlanSelection, IsMadeByTheCostsOfTheProfile) {
  DynamicMaskSpec spec = spec_of(16384, 819, 8, 8);
  EXPECT_EQ(planned(spec).plan.report.profile, "h200");
  DeviceProfile dear = *shipped_profile("h100");
  spec.profile = std::make_shared<const DeviceProfile>(dear);
  EXPECT_EQ(planned(spec).plan.report.profile, "h100");
  EXPECT_EQ(planned(spec).reading, SelectionReading::gather);
  for (KernelCosts& kernel : dear.kernels) kernel.list_launch_us = 1e6;
  spec.profile = std::make_shared<const DeviceProfile>(dear);
  EXPECT_EQ(planned(spec).reading, SelectionReading::scan);
  spec.shape.k_dtype = DType::float32;
  spec.profile = std::make_shared<const DeviceProfile>(*shipped_profile("cpu"));
  spec.shape.q_dtype = spec.shape.v_dtype = spec.shape.out_dtype = DType::float32;
  spec.backend = Backend::cpu;
  EXPECT_TRUE(DynamicMaskAttention::make(spec));
  spec.profile = std::make_shared<const DeviceProfile>(dear);
  const auto refused = DynamicMaskAttention::make(spec);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("device profile 'h100' has no costs"));
}

TEST(PlanSelection, LongRowsAreGatheredShortOnesScanned) {
  EXPECT_EQ(planned(spec_of(16384, 819, 8, 8)).reading, SelectionReading::gather);
  EXPECT_EQ(planned(spec_of(4096, 3500, 8, 8)).reading, SelectionReading::scan);
  EXPECT_EQ(planned(spec_of(4096, 4096, 8, 8)).reading, SelectionReading::all);
  DynamicMaskSpec large = spec_of(16384, 819, 8, 8);
  large.shape.head_dim = 192;
  EXPECT_EQ(planned(large).reading, SelectionReading::scan);
  DynamicMaskSpec dropping = spec_of(4096, 4096, 8, 8);
  dropping.drops_zero_scores = true;
  EXPECT_NE(planned(dropping).reading, SelectionReading::all);
}

TEST(PlanSelection, ListsHaveRoomOneAfterTheOther) {
  const SelectionPlan made = planned(spec_of(16384, 1000, 8, 2));
  const std::int64_t num_lists = 2 * made.num_tiles;
  ASSERT_EQ(made.first_entries.size(), static_cast<std::size_t>(num_lists) + 1);
  EXPECT_EQ(made.num_tiles * made.plan.tile.block_q, 16384);
  EXPECT_EQ(made.plan.tile.block_q * made.plan.heads_per_tile, 128);
  EXPECT_EQ(made.most_entries, 1000 + made.plan.tile.block_q - 1);
  const std::int64_t sets = 4 / made.plan.heads_per_tile;
  ASSERT_EQ(static_cast<std::int64_t>(segments_of(made.plan).work_tiles.size()), num_lists * sets);
  for (const WorkTile& work_tile : segments_of(made.plan).work_tiles) {
    ASSERT_EQ(work_tile.num_segments, 1);
    const PlanSegment& segment =
        segments_of(made.plan).segments[static_cast<std::size_t>(work_tile.first_segment)];
    EXPECT_EQ(segment.kind, PlanSegmentKind::gather);
    const auto list = static_cast<std::size_t>(segment.data_index);
    EXPECT_EQ(segment.data_index, work_tile.head / 4 * made.num_tiles + work_tile.q_tile);
    const std::int64_t room = made.first_entries[list + 1] - made.first_entries[list];
    EXPECT_GE(room, work_tile.num_entries);
    EXPECT_GE(segment.end_tile * 128, work_tile.num_entries);
    EXPECT_EQ(made.first_entries[list] % 32, 0);
  }
}

TEST(PlanSelection, ScansReadOneIntervalAKey) {
  DynamicMaskSpec spec = spec_of(1000, 900, 4, 2);
  spec.reading = SelectionReading::scan;
  const SelectionPlan made = planned(spec);
  EXPECT_EQ(segments_of(made.plan).column_tables, (std::vector<std::int64_t>{0, 1000}));
  ASSERT_EQ(segments_of(made.plan).column_offsets.size(), 2001U);
  for (const WorkTile& work_tile : segments_of(made.plan).work_tiles) {
    const PlanSegment& segment =
        segments_of(made.plan).segments[static_cast<std::size_t>(work_tile.first_segment)];
    EXPECT_EQ(segment.kind, PlanSegmentKind::columns);
    EXPECT_EQ(segment.data_index, work_tile.head / 2);
    const std::int32_t last_query =
        std::min((work_tile.q_tile + 1) * made.plan.tile.block_q, 1000) - 1;
    EXPECT_EQ(segment.end_tile, last_query / 128 + 1);
  }
}

TEST(PlanSelection, SaysWhatItDoesNotTake) {
  DynamicMaskSpec spec = spec_of(1000, 900, 4, 2);
  spec.reading = SelectionReading::all;
  TopkRows rows{1, 2, 1000, {causal(1000)}, {0, 0}};
  const auto all = dynamic_mask::plan_selection(spec, rows);
  ASSERT_FALSE(all);
  EXPECT_THAT(all.error().message, HasSubstr("reading: all is for masks that show no query more"));
  spec = spec_of(1000, 900, 4, 2);
  spec.shape.q_dtype = DType::float32;
  const auto dtype = dynamic_mask::plan_selection(spec, rows);
  ASSERT_FALSE(dtype);
  EXPECT_THAT(dtype.error().message, HasSubstr("dtype: sm90 computes"));
}

TEST(DynamicMaskAttention, RejectsWhatDoesNotFit) {
  DynamicMaskSpec spec = spec_of(100, 0, 4, 2);
  spec.backend = Backend::cpu;
  const auto error_of = [](const DynamicMaskSpec& wrong) {
    auto made = DynamicMaskAttention::make(wrong);
    return made ? std::string() : made.error().message;
  };
  EXPECT_THAT(error_of(spec), HasSubstr("keep_window_size: expected at least 1, got 0"));
  spec.w = 10;
  EXPECT_EQ(error_of(spec), "");
  spec.mask_of = {0};
  EXPECT_THAT(error_of(spec), HasSubstr("mask_of: expected 2 masks"));
  spec.masks = {causal(100)};
  spec.mask_of = {0, 1};
  EXPECT_THAT(error_of(spec), HasSubstr("mask_of[1]: expected an index below 1, got 1"));
  spec.masks = {causal(99)};
  spec.mask_of = {};
  EXPECT_THAT(error_of(spec), HasSubstr("masks[0]: expected 100 queries and 100 keys"));
  EXPECT_FALSE(parse_score_bias("sum"));
}

TEST(DynamicMaskAttention, NamesTheTensorThatIsWrong) {
  DynamicMaskSpec spec = spec_of(20, 3, 2, 1);
  spec.backend = Backend::cpu;
  spec.shape.head_dim = spec.shape.head_dim_v = 8;
  spec.shape.q_dtype = spec.shape.k_dtype = spec.shape.v_dtype = spec.shape.out_dtype =
      DType::float32;
  const auto made = DynamicMaskAttention::make(spec);
  ASSERT_TRUE(made) << made.error().message;
  std::vector<float> memory(20 * 2 * 8, 0.5f), scores(20, 1), out(20 * 2 * 8);
  const auto view = [](std::vector<float>& data, std::vector<std::int64_t> extents) {
    return make_contiguous_mutable_view(data.data(), DType::float32,
                                        static_cast<int>(extents.size()), extents.data());
  };
  DynamicMaskTensors tensors{};
  tensors.q = view(memory, {1, 20, 2, 8}).view();
  tensors.kv.k = tensors.kv.v = view(memory, {1, 20, 1, 8}).view();
  tensors.out = view(out, {1, 20, 2, 8});
  const auto error = [&] {
    const Result<void> done = made->run(tensors);
    return done ? std::string() : done.error().message;
  };
  EXPECT_THAT(error(),
              HasSubstr("scores: expected either scores, or dt_proj and a_coef, got none"));
  tensors.scores = view(scores, {1, 1, 20}).view();
  EXPECT_EQ(error(), "");
  tensors.a_coef = view(scores, {1}).view();
  EXPECT_THAT(error(), HasSubstr("got scores and others"));
  tensors.a_coef = {};
  tensors.scores = view(scores, {1, 1, 19}).view();
  EXPECT_THAT(error(),
              HasSubstr("scores: expected float32 [batch, heads_kv, kv_len] = [1, 1, 20]"));
  tensors.scores = view(scores, {1, 1, 20}).view();
  scores[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(error(), HasSubstr("batch element 0, KV head 0: "));
  tensors.q = view(memory, {1, 19, 2, 8}).view();
  EXPECT_THAT(error(), HasSubstr("q: expected [batch, q_len"));
}

TEST(DynamicMaskAttention, BackwardNamesTheTensorThatIsWrong) {
  DynamicMaskSpec spec = spec_of(20, 3, 2, 1);
  spec.backend = Backend::cpu;
  spec.shape.head_dim = spec.shape.head_dim_v = 8;
  spec.shape.q_dtype = spec.shape.k_dtype = spec.shape.v_dtype = spec.shape.out_dtype =
      DType::float32;
  const auto without = DynamicMaskAttention::make(spec);
  spec.has_gradients = true;
  const auto made = DynamicMaskAttention::make(spec);
  ASSERT_TRUE(without && made);
  EXPECT_EQ(made->backward_workspace_bytes(), 0);
  std::vector<float> memory(20 * 2 * 8, 0.5f), scores(20, 1), gradients[4];
  for (std::vector<float>& each : gradients) each.resize(20 * 2 * 8);
  std::vector<std::int32_t> kept(40, 0);
  const auto view = [](auto& data, DType dtype, std::vector<std::int64_t> extents) {
    return make_contiguous_mutable_view(data.data(), dtype, static_cast<int>(extents.size()),
                                        extents.data());
  };
  const auto floats = [&](std::vector<float>& data, std::vector<std::int64_t> extents) {
    return view(data, DType::float32, std::move(extents));
  };
  DynamicMaskBackwardTensors tensors;
  tensors.q = tensors.out = tensors.dout = floats(memory, {1, 20, 2, 8}).view();
  tensors.kv.k = tensors.kv.v = floats(memory, {1, 20, 1, 8}).view();
  tensors.scores = floats(scores, {1, 1, 20}).view();
  tensors.dq = floats(gradients[0], {1, 20, 2, 8});
  tensors.dk = floats(gradients[1], {1, 20, 1, 8});
  tensors.dv = floats(gradients[2], {1, 20, 1, 8});
  const auto error = [&](const DynamicMaskAttention& attention) {
    const Result<void> done = attention.backward(tensors);
    return done ? std::string() : done.error().message;
  };
  EXPECT_THAT(error(*without), HasSubstr("set DynamicMaskSpec::has_gradients"));
  EXPECT_THAT(error(*made), HasSubstr("lse: is missing"));
  tensors.lse = floats(memory, {1, 2, 20}).view();
  EXPECT_EQ(error(*made), "");
  tensors.dscores = floats(gradients[3], {1, 1, 19});
  EXPECT_THAT(error(*made),
              HasSubstr("dkey_bias: expected [batch, heads_kv, kv_len] = [1, 1, 20]"));
  tensors.dscores = floats(gradients[3], {1, 1, 20});
  tensors.kept = view(kept, DType::int32, {1, 1, 20, 2}).view();
  EXPECT_EQ(error(*made), "");
  EXPECT_THAT(gradients[0], ::testing::Each(0.0f));  // nobody keeps anything
  tensors.kept = view(kept, DType::int32, {1, 1, 10, 2}).view();
  EXPECT_THAT(error(*made), HasSubstr("kept: expected int32"));
  tensors.kept = {};
  tensors.da_coef = floats(gradients[3], {1});
  EXPECT_THAT(error(*made), HasSubstr("dt_proj: expected dt_proj and a_coef of the forward call"));
}

TEST(KvWorklistRoom, SegmentsSuitTheNumberOfWorkTiles) {
  const dynamic_mask::KvWorklistRoom large =
      dynamic_mask::kv_worklist_room(32, 131072, 131072, 2048, 1);
  EXPECT_EQ(large.segment_tiles, 32);
  EXPECT_EQ(large.num_segments(), 32);
  EXPECT_EQ(large.sum_rows(), 31 * 2048);
  EXPECT_EQ(large.work_tiles_capacity(), 32 * (1024 + 31 * 16));
  EXPECT_EQ(dynamic_mask::kv_worklist_room(8, 131072, 131072, 2048, 4).segment_tiles, 16);
  const dynamic_mask::KvWorklistRoom small = dynamic_mask::kv_worklist_room(4, 2048, 2048, 100, 1);
  EXPECT_EQ(small.segment_tiles, 8);  // for want of work tiles
  EXPECT_EQ(small.sum_rows(), 100);
  // The value is at least a step of live ranges, which is 1,024 queries here.
  EXPECT_EQ(dynamic_mask::kv_worklist_room(1, 1 << 20, 1 << 20, 2048, 64).segment_tiles, 8);
  // With an order each work tile has a position at each tile. Two entries of a key share an
  // accumulator row, so there are no more of these rows unless keys are cut often.
  dynamic_mask::KvWorklistRoom ordered = large;
  ordered.has_order = true;
  EXPECT_EQ(large.positions_capacity(), 0);
  EXPECT_EQ(ordered.positions_capacity(), large.work_tiles_capacity() * 1024);
  EXPECT_EQ(ordered.sum_rows(), large.sum_rows());
  ordered.w = 16384;
  EXPECT_EQ(ordered.sum_rows(), 131072 + 31 * 16384 / 2);
  const dynamic_mask::KvWorklistRoom none = dynamic_mask::kv_worklist_room(1, 0, 0, 5, 1);
  EXPECT_EQ(none.keys_capacity() + none.work_tiles_capacity() + none.accum_capacity(), 0);
}

}  // namespace
}  // namespace fdma
