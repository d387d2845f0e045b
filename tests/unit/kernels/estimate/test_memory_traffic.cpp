// Tests the bytes that estimates take main memory to move: the keys that a forward plan reads, and
// the rows of queries that work tiles of kv worklists read again.
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <utility>

#include "backend/scattered_cases.hpp"
#include "estimate/memory_traffic.hpp"
#include "fdma/kernels/estimate.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"
#include "plan/plan_forms.hpp"
#include "plan/query_passes.hpp"

namespace fdma {
namespace {

using testing::closed_forms_of;
using testing::segments_of;

constexpr BlockShape kTile{128, 128};

AttentionShape half_shape(const BlockMask& mask, std::int64_t batch, std::int32_t heads) {
  AttentionShape shape = testing::shape_for(mask, 1, heads, heads);
  shape.batch = batch;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  shape.head_dim = shape.head_dim_v = 128;
  return shape;
}

AttentionPlan plan_of(const BlockMask& mask, const AttentionShape& shape, PlanOptions options) {
  options.backend = Backend::sm90;
  auto plan = make_plan(mask, shape, {}, options);
  if (!plan) throw std::runtime_error(plan.error().message);
  return *std::move(plan);
}

BlockMask compiled(const char* spec, std::int64_t q_len, std::int64_t kv_len) {
  suite::SuiteMask mask = suite::make_square(spec, spec, kv_len);
  mask.shape.q_lens = {q_len};
  return testing::compiled_case(mask, kTile).mask;
}

BlockMask suite_mask(const std::string& name, std::int64_t tokens) {
  for (const suite::SuiteMask& each : suite::mask_suite(tokens)) {
    if (each.name == name) return testing::compiled_case(each, kTile).mask;
  }
  throw std::runtime_error("the suite has no such mask");
}

TEST(BiasBytes, AreThoseOfComputedCellsAndBackwardOfEveryGradient) {
  const BlockMask mask = compiled("causal", 256, 256);
  const AttentionShape shape = half_shape(mask, 2, 3);
  const DeviceProfile h200 = *shipped_profile("h200");
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    PlanOptions options;
    options.direction = direction;
    AttentionPlan plan = plan_of(mask, shape, options);
    EXPECT_EQ(bias_bytes(plan, 1000), 0);
    const PlanEstimate without = *estimate_plan(plan, h200);
    plan.score.bias = true;
    const std::int64_t visited = 6 * 3 * 128 * 128;  // three of four tiles of each head
    const std::int64_t written = direction == Direction::forward ? 0 : 6 * 256 * 256;
    EXPECT_EQ(without.work.cells(), visited);
    EXPECT_EQ(bias_bytes(plan, visited), 2 * (visited + written));
    EXPECT_EQ(estimate_plan(plan, h200)->memory_bytes,
              without.memory_bytes + 2 * (visited + written));
  }
}

TEST(KeysRead, AreThoseOfVisitedTilesInEveryForm) {
  const struct {
    const char* spec;
    std::int64_t keys;  // of 1024, seen by the last 256 queries
  } cases[] = {{"true", 1024}, {"causal & window(64)", 384}, {"k < 100", 128}};
  for (const auto& each : cases) {
    const BlockMask mask = compiled(each.spec, 256, 1024);
    const AttentionShape shape = half_shape(mask, 2, 3);
    PlanOptions options;
    options.columns = ColumnMode::scan;
    const AttentionPlan segments = plan_of(mask, shape, options);
    EXPECT_EQ(keys_read(segments, segments_of(segments)), 6 * each.keys) << each.spec;
    options.form = PlanForm::parametric;
    const AttentionPlan closed = plan_of(mask, shape, options);
    EXPECT_EQ(keys_read(closed, closed_forms_of(closed)), 6 * each.keys) << each.spec;
  }
}

TEST(KeysRead, OfIndexListsAreTheKeysThatSomeListHas) {
  const BlockMask mask = suite_mask("zoh_topk", 2048);
  PlanOptions options;
  options.columns = ColumnMode::gather;
  const AttentionPlan plan = plan_of(mask, half_shape(mask, 1, 4), options);
  const SegmentPlan& segments = segments_of(plan);
  std::set<std::int32_t> keys;
  for (const KvIndexList& list : segments.kv_index_lists) {
    for (std::int64_t i = 0; i < list.num_entries; ++i) {
      keys.insert(segments.kv_index_entries[static_cast<std::size_t>(list.first_entry + i)].key);
    }
  }
  ASSERT_LT(keys.size(), 1024U);
  EXPECT_GE(keys_read(plan, segments), 4 * static_cast<std::int64_t>(keys.size()));
  EXPECT_LT(keys_read(plan, segments), 4 * static_cast<std::int64_t>(keys.size()) + 4 * 128);
}

// Forward learned top-k of 8K was predicted to be bound by reading keys that no query sees.
TEST(WorkTileBytes, OfForwardCallsLeaveOutKeysThatNoQuerySees) {
  const BlockMask few = compiled("k < 128", 256, 1024), all = compiled("true", 256, 1024);
  const AttentionPlan less = plan_of(few, half_shape(few, 1, 8), {});
  const AttentionPlan more = plan_of(all, half_shape(all, 1, 8), {});
  EXPECT_EQ(work_tile_bytes(more, 132) - more.size_bytes() -
                (work_tile_bytes(less, 132) - less.size_bytes()),
            8 * (1024 - 128) * 512);
}

TEST(WorkTileBytes, OfWorklistsCountWhatL2MissesReadAgain) {
  const BlockMask mask = suite_mask("zoh_topk", 8192);
  PlanOptions options;
  options.direction = Direction::backward;
  options.columns = ColumnMode::reorder;
  const auto bytes_of_head = [&](std::int64_t batch, std::int32_t heads) {
    const AttentionPlan plan = plan_of(mask, half_shape(mask, batch, heads), options);
    const std::int64_t bytes = work_tile_bytes(plan, 132) - plan.size_bytes();
    return static_cast<double>(bytes) / static_cast<double>(batch * heads);
  };
  // A visit of a query tile moves q, dout, two float32 and the sums of dq in and out: 197,632 bytes.
  // Four heads fit in L2, and each of the 64 query tiles is read once.
  const double visits = 162, tile_bytes = 128 * (512 + 8 + 1024);
  EXPECT_NEAR(bytes_of_head(1, 4), 64 * tile_bytes, 0.15 * 64 * tile_bytes);
  // Work tiles of 19 heads run at the same time, and each visit reads its tile again.
  EXPECT_NEAR(bytes_of_head(16, 32), visits * tile_bytes, 0.06 * visits * tile_bytes);
}

// The kernels over kv worklists copy no keys. They zero and store gradients of k and v.
TEST(EstimatePlan, OfWorklistsHasThePassesOfKeys) {
  const BlockMask mask = suite_mask("zoh_topk", 8192);
  const DeviceProfile h200 = *shipped_profile("h200");
  const AttentionShape shape = half_shape(mask, 16, 32);
  PlanOptions options;
  options.direction = Direction::backward;
  const AttentionPlan plan = plan_of(mask, shape, options);
  ASSERT_TRUE(testing::has_worklist(plan));
  const PlanEstimate estimate = *estimate_plan(plan, h200);
  EXPECT_EQ(estimate.move_us, 0);
  // 64 thousand accumulator rows of 1 KiB are zeroed, read and stored.
  EXPECT_EQ(key_pass_bytes(shape, 512 * 128),
            std::int64_t{512} * 8192 * 512 + std::int64_t{512} * 128 * (2 * 1024 + 512));
  EXPECT_DOUBLE_EQ(estimate.query_us,
                   static_cast<double>(query_pass_bytes(shape) + key_pass_bytes(shape, 512 * 128)) /
                       h200.memory_bytes_per_us);
  EXPECT_TRUE(estimate.is_memory_bound());
  EXPECT_DOUBLE_EQ(estimate.time_us, estimate.launch_us + estimate.query_us + estimate.memory_us);
}

}  // namespace
}  // namespace fdma
