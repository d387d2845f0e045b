// Tests savings reports: counts against single cells, structure at a million tokens, choices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "backend/mask_cases.hpp"
#include "estimate/work_tile_counts.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/estimate.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"
#include "plan/plan_forms.hpp"

namespace fdma::testing {
namespace {

using ::testing::HasSubstr;

/// Returns a profile with these tile shapes and costs that are easy to add up.
DeviceProfile profile_of(std::vector<BlockShape> tiles, std::int32_t num_workers = 4) {
  DeviceProfile profile;
  profile.name = "test";
  profile.num_workers = num_workers;
  profile.memory_bytes_per_us = 1e12;
  profile.stripe_rows = 16;
  profile.skips_dead_keys = true;
  KernelCosts kernel{Direction::forward, DType::float32, 64, 1, {}};
  for (const BlockShape tile : tiles) {
    const double us = tile.block_q * tile.block_kv / 256.0;
    kernel.tiles.push_back({tile, {0, us}, {1, us}, {2, us}, {1, us}, {1, 1.2 * us}, 3});
  }
  profile.kernels.push_back(kernel);
  for (TileCosts& costs : kernel.tiles) costs.gather = {};
  kernel.direction = Direction::backward;
  profile.kernels.push_back(kernel);
  return profile;
}

AttentionShape with_head_dim(AttentionShape shape, std::int32_t head_dim) {
  shape.head_dim = shape.head_dim_v = head_dim;
  return shape;
}

BlockMask compiled(const std::string& spec, std::int64_t n) {
  MaskShape shape;
  shape.q_lens = {n};
  shape.kv_lens = {n};
  const Result<MaskExpr> expr = parse_mask(spec);
  EXPECT_TRUE(expr) << spec;
  Result<BlockMask> mask = compile(*expr, {}, shape);
  EXPECT_TRUE(mask) << spec;
  return *std::move(mask);
}

AttentionShape square_shape(std::int64_t n, std::int32_t heads, std::int32_t head_dim) {
  AttentionShape shape;
  shape.heads_q = shape.heads_kv = heads;
  shape.q_lens = {n};
  shape.kv_lens = {n};
  shape.head_dim = shape.head_dim_v = head_dim;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  return shape;
}

struct CellCounts {
  std::int64_t allowed = 0, total = 0, full = 0, partial = 0, empty = 0, dead = 0;
};

/// Counts cells by definition, one by one, over all pairs of the shape.
CellCounts count_by_cells(const MaskCase& mask, const AttentionShape& shape, BlockShape tile) {
  CellCounts counts;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads_q; ++h) {
      const Cells& cells = mask.at(b, h);
      counts.total += cells.q_len * cells.kv_len;
      for (std::int64_t q = 0; q < cells.q_len; q += tile.block_q) {
        for (std::int64_t k = 0; k < cells.kv_len; k += tile.block_kv) {
          std::int64_t live = 0, existing = 0;
          for (std::int64_t r = q; r < std::min(q + tile.block_q, cells.q_len); ++r) {
            for (std::int64_t c = k; c < std::min(k + tile.block_kv, cells.kv_len); ++c) {
              live += cells.get(r, c) ? 1 : 0;
              ++existing;
            }
          }
          counts.allowed += live;
          counts.full += live == existing ? 1 : 0;
          counts.empty += live == 0 ? 1 : 0;
          counts.partial += live > 0 && live < existing ? 1 : 0;
          counts.dead += live > 0 ? existing - live : 0;
        }
      }
    }
  }
  return counts;
}

/// Counts the cells of one tile that the rule of DeviceProfile::skips_dead_keys computes.
std::int64_t computed_by_cells(const Cells& cells, std::int64_t q, std::int64_t k, BlockShape tile,
                               std::int64_t stripe_rows) {
  const std::int64_t q_end = std::min(q + tile.block_q, cells.q_len);
  const std::int64_t k_end = std::min(k + tile.block_kv, cells.kv_len);
  std::int64_t computed = 0;
  for (std::int64_t s = q; s < q_end; s += stripe_rows) {
    std::int64_t first = -1, last = -1;
    for (std::int64_t c = k; c < k_end; ++c) {
      for (std::int64_t r = s; r < std::min(s + stripe_rows, q_end); ++r) {
        if (!cells.get(r, c)) continue;
        if (first < 0) first = c;
        last = c;
      }
    }
    if (first < 0) continue;
    for (std::int64_t c = first; c <= last; ++c) {
      bool is_live = false;
      for (std::int64_t r = q; r < q_end; ++r) is_live = is_live || cells.get(r, c);
      computed += is_live ? stripe_rows : 0;
    }
  }
  return computed;
}

TEST(Estimate, CountsAreThoseOfTheCells) {
  std::mt19937 rng(1);
  const BlockShape tiles[] = {{16, 16}, {32, 80}, {64, 32}, {128, 128}};
  for (int trial = 0; trial < 60; ++trial) {
    const BlockShape tile = tiles[trial % 4];
    const std::int64_t batch = pick(rng, 1, 2);
    const std::int32_t heads = trial % 3 == 0 ? 1 : 2;
    const MaskCase mask = random_case(rng, batch, heads, 150, random_block(rng));
    const AttentionShape shape =
        with_head_dim(shape_for(mask.mask, batch, heads == 1 ? 4 : heads, 1), 64);
    const Result<SavingsReport> report = estimate(mask.mask, shape, profile_of({tile}));
    ASSERT_TRUE(report) << report.error().message;
    const CellCounts counts = count_by_cells(mask, shape, tile);
    EXPECT_EQ(report->allowed_pairs, counts.allowed);
    EXPECT_EQ(report->total_pairs, counts.total);
    EXPECT_EQ(report->full_tiles, counts.full);
    EXPECT_EQ(report->partial_tiles, counts.partial);
    EXPECT_EQ(report->empty_tiles, counts.empty);
    EXPECT_EQ(report->partial_dead_cells, counts.dead);
    EXPECT_EQ(report->masked.work.of(PlanSegmentKind::full).tiles, counts.full);
    EXPECT_DOUBLE_EQ(report->flops, 4.0 * 64 * static_cast<double>(counts.allowed));
    EXPECT_DOUBLE_EQ(report->dense_flops, 4.0 * 64 * static_cast<double>(counts.total));
    EXPECT_GE(report->wasted_share, 0);
    EXPECT_LE(report->wasted_share, 1);
  }
}

TEST(Estimate, ComputedCellsFollowTheRuleOfStripes) {
  std::mt19937 rng(2);
  for (int trial = 0; trial < 60; ++trial) {
    const BlockShape tile = trial % 2 == 0 ? BlockShape{32, 48} : BlockShape{64, 64};
    // All stripes are whole, so that no stripe is narrower than the others.
    const std::int64_t q_len = 16 * pick(rng, 1, 10);
    const MaskCase mask = case_of("random", random_cells(rng, q_len, pick(rng, 1, 150)), tile);
    const AttentionShape shape = with_head_dim(shape_for(mask.mask, 1, 1, 1), 64);
    PlanOptions options;
    options.tile = tile;
    options.columns = ColumnMode::scan;
    const Result<AttentionPlan> plan = make_plan(mask.mask, shape, {}, options);
    ASSERT_TRUE(plan) << plan.error().message;
    const WorkCounter counter(*plan, segments_of(*plan), 16, true);
    for (const WorkTile& work_tile : segments_of(*plan).work_tiles) {
      const PlanWork work = counter.of(work_tile);
      EXPECT_EQ(work.tiles(), work_tile.num_tiles);
      std::array<StepWork, 5> walked{};
      TileStep step{};
      for (SegmentIterator it(segments_of(*plan).segments.data(), work_tile);
           it.next(step, segments_of(*plan).pattern_arrays());) {
        StepWork& sum = walked[static_cast<std::size_t>(step.kind)];
        ++sum.tiles;
        if (step.kind == PlanSegmentKind::columns) continue;
        sum.cells += computed_by_cells(mask.cells[0], std::int64_t{work_tile.q_tile} * tile.block_q,
                                       std::int64_t{step.tile} * tile.block_kv, tile, 16);
      }
      for (std::size_t kind = 0; kind < walked.size(); ++kind) {
        EXPECT_EQ(work.steps[kind].tiles, walked[kind].tiles);
        if (kind == static_cast<std::size_t>(PlanSegmentKind::columns)) continue;
        EXPECT_EQ(work.steps[kind].cells, walked[kind].cells) << "kind " << kind;
      }
    }
  }
}

TEST(Estimate, TilesCountWholeWhereKeysAreNotSkipped) {
  std::mt19937 rng(3);
  const MaskCase mask = random_case(rng, 1, 1, 150, {16, 16});
  DeviceProfile profile = profile_of({{32, 48}});
  profile.skips_dead_keys = false;
  EstimateOptions options;
  options.columns = ColumnMode::scan;
  const AttentionShape shape = with_head_dim(shape_for(mask.mask, 1, 2, 1), 64);
  const SavingsReport report = *estimate(mask.mask, shape, profile, options);
  EXPECT_EQ(report.masked.work.cells(), (report.full_tiles + report.partial_tiles) * 32 * 48);
}

TEST(Estimate, BackwardCountsTheSameTiles) {
  std::mt19937 rng(4);
  for (int trial = 0; trial < 20; ++trial) {
    const MaskCase mask = random_case(rng, 2, 2, 150, {16, 16});
    const AttentionShape shape = with_head_dim(shape_for(mask.mask, 2, 2, 2), 64);
    EstimateOptions options;
    options.direction = Direction::backward;
    const Result<SavingsReport> report =
        estimate(mask.mask, shape, profile_of({{32, 48}, {16, 16}}), options);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->columns, ColumnMode::scan);
    EXPECT_EQ(report->masked.work.tiles(), report->full_tiles + report->partial_tiles);
    EXPECT_EQ(
        report->masked.schedule.num_work_tiles, report->shape.heads_q * [&] {
          std::int64_t tiles = 0;
          for (std::int64_t b = 0; b < 2; ++b) tiles += ceil_div(shape.kv_len(b), 48);
          return tiles;
        }());
    EXPECT_DOUBLE_EQ(report->flops, 10.0 * 64 * static_cast<double>(report->allowed_pairs));
  }
}

TEST(Estimate, TimeIsThatOfTheCosts) {
  // The plan has 2 query tiles, of 2 full tiles and of 1. A tile costs 64 us, a work tile 3 us and
  // a launch 1 us.
  const Cells cells =
      make_cells(256, 256, [](std::int64_t q, std::int64_t k) { return k < 128 || q >= 128; });
  const MaskCase mask = case_of("steps", cells, {128, 128});
  const AttentionShape shape = with_head_dim(shape_for(mask.mask, 1, 1, 1), 64);
  const SavingsReport one = *estimate(mask.mask, shape, profile_of({{128, 128}}, 1));
  EXPECT_DOUBLE_EQ(one.masked.time_us, 1 + 3 * 64 + 2 * 3);
  EXPECT_DOUBLE_EQ(one.dense.time_us, 1 + 4 * 64 + 2 * 3);
  EXPECT_DOUBLE_EQ(one.speedup, 263.0 / 199.0);
  EXPECT_DOUBLE_EQ(one.masked.schedule.balance(), 1);
  const SavingsReport two = *estimate(mask.mask, shape, profile_of({{128, 128}}, 2));
  EXPECT_DOUBLE_EQ(two.masked.time_us, 1 + 2 * 64 + 3);
  EXPECT_DOUBLE_EQ(two.masked.schedule.longest_item_us, 2 * 64 + 3);
  EXPECT_DOUBLE_EQ(two.masked.schedule.balance(), 198.0 / (2 * 131));
  DeviceProfile slow = profile_of({{128, 128}}, 1);
  slow.memory_bytes_per_us = 1;
  const SavingsReport bound = *estimate(mask.mask, shape, slow);
  EXPECT_TRUE(bound.masked.is_memory_bound());
  EXPECT_DOUBLE_EQ(bound.masked.time_us, 1 + static_cast<double>(bound.masked.memory_bytes));
}

TEST(Estimate, KeysThatMissL2CostMore) {
  // 2 heads of 256 keys of 512 bytes are 256 KiB between two visits, halfway from 128 to 512 KiB.
  const Cells cells = make_cells(256, 256, [](std::int64_t, std::int64_t) { return true; });
  const MaskCase mask = case_of("full", cells, {128, 128});
  const AttentionShape shape = with_head_dim(shape_for(mask.mask, 1, 2, 2), 64);
  DeviceProfile profile = profile_of({{128, 128}}, 1);
  const double near_us = (*estimate(mask.mask, shape, profile)).masked.time_us;
  profile.kernels[0].tiles[0].far_key_us = 0.25;
  EXPECT_DOUBLE_EQ((*estimate(mask.mask, shape, profile)).masked.time_us, near_us);
  profile.near_bytes = 128 << 10;
  profile.far_bytes = 512 << 10;
  EXPECT_NEAR((*estimate(mask.mask, shape, profile)).masked.time_us, near_us + 4 * 256 * 0.5 * 0.25,
              1e-9);
  profile.near_bytes = 64 << 10;
  profile.far_bytes = 256 << 10;
  EXPECT_NEAR((*estimate(mask.mask, shape, profile)).masked.time_us, near_us + 4 * 256 * 0.25,
              1e-9);
  profile.near_bytes = 256 << 10;
  profile.far_bytes = 512 << 10;
  EXPECT_DOUBLE_EQ((*estimate(mask.mask, shape, profile)).masked.time_us, near_us);
}

TEST(Estimate, AMillionTokensCostNoMoreThanTheirWorkTiles) {
  // Code whose cost grows with cells or tiles would not finish here: there are 2^40 cells, and 67
  // million tiles for each head.
  constexpr std::int64_t kLen = 1 << 20;
  const AttentionShape shape = square_shape(kLen, 32, 128);
  const DeviceProfile h200 = *shipped_profile("h200");
  for (const char* spec : {"causal", "causal & window(4096)", "true"}) {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      EstimateOptions options;
      options.direction = direction;
      const Result<SavingsReport> report = estimate(compiled(spec, kLen), shape, h200, options);
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_LT(report->plan_bytes, 64 << 20) << spec;
      EXPECT_EQ(report->masked.work.tiles(), report->full_tiles + report->partial_tiles);
      EXPECT_EQ(report->total_pairs, 32 * kLen * kLen);
      EXPECT_LE(report->candidates.size(), 3U);
      for (const FormatSize& size : report->formats) EXPECT_TRUE(size.bytes) << spec;
    }
  }
  const SavingsReport causal = *estimate(compiled("causal", kLen), shape, h200);
  EXPECT_EQ(causal.allowed_pairs, 32 * (kLen * (kLen + 1) / 2));
  EXPECT_EQ(causal.partial_tiles, 32 * (kLen / 128));
  EXPECT_EQ(causal.best_format, MaskFormat::parametric);
  EXPECT_EQ(causal.dense_float_bytes, 4 * kLen * kLen);
  EXPECT_NEAR(causal.speedup, 2, 0.01);
  EXPECT_GT(causal.masked.schedule.balance(), 0.99);
}

TEST(Estimate, H200FiguresAreThoseThatItsConstantsCameFrom) {
  // Measured TFLOP/s on allowed pairs of the sm90 kernels, for 32 heads of 8192 tokens. Calibration
  // did not use these masks.
  const DeviceProfile h200 = *shipped_profile("h200");
  AttentionShape shape = square_shape(8192, 32, 128);
  struct Figure {
    const char* spec;
    Direction direction;
    double teraflops;
  };
  for (const Figure& figure :
       {Figure{"true", Direction::forward, 745}, Figure{"causal", Direction::forward, 752},
        Figure{"causal & window(512)", Direction::forward, 482},
        Figure{"true", Direction::backward, 560}, Figure{"causal", Direction::backward, 538},
        Figure{"causal & window(512)", Direction::backward, 332}}) {
    EstimateOptions options;
    options.direction = figure.direction;
    shape.batch = 16;
    const SavingsReport report = *estimate(compiled(figure.spec, 8192), shape, h200, options);
    const double teraflops = report.flops / report.masked.time_us / 1e6;
    EXPECT_NEAR(teraflops / figure.teraflops, 1, 0.06) << figure.spec;
    EXPECT_FALSE(report.is_provisional);
  }
}

TEST(Estimate, CallsWithoutAPauseTakeWhatThePowerLimitTakes) {
  const DeviceProfile h200 = *shipped_profile("h200");
  const BlockMask mask = compiled("causal", 4096);
  const double slowdown = h200.kernels[1].sustained_slowdown;
  ASSERT_EQ(h200.kernels[1].head_dim, 128);
  const PlanEstimate one = (*estimate(mask, square_shape(4096, 32, 128), h200)).masked;
  ASSERT_LT(one.schedule.makespan_us, h200.burst_us);
  EXPECT_DOUBLE_EQ(one.time_us, one.launch_us + one.schedule.makespan_us);
  EXPECT_DOUBLE_EQ(one.sustained_time_us,
                   one.launch_us + (1 + slowdown) * one.schedule.makespan_us);
  // A long call is slow by itself, so both times are equal. A processor without such a limit is
  // never slowed.
  AttentionShape many = square_shape(4096, 32, 128);
  many.batch = 2048;
  const PlanEstimate all = (*estimate(mask, many, h200)).masked;
  ASSERT_GT(all.schedule.makespan_us, h200.sustained_us);
  EXPECT_DOUBLE_EQ(all.time_us, all.sustained_time_us);
  const PlanEstimate cpu =
      (*estimate(mask, square_shape(4096, 32, 128), *shipped_profile("cpu"))).masked;
  EXPECT_DOUBLE_EQ(cpu.time_us, cpu.sustained_time_us);
}

TEST(Estimate, ComparesTilesAndColumnModesFastestFirst) {
  std::mt19937 rng(5);
  const MaskCase mask = case_of("live ranges", random_live_ranges(rng, 400, 600, 2), {32, 32});
  const AttentionShape shape = with_head_dim(shape_for(mask.mask, 1, 2, 1), 64);
  const DeviceProfile profile = profile_of({{64, 64}, {128, 64}});
  EstimateOptions options;
  const SavingsReport report = *estimate(mask.mask, shape, profile, options);
  ASSERT_EQ(report.candidates.size(), 6U);
  EXPECT_TRUE(
      std::is_sorted(report.candidates.begin(), report.candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.time_us < b.time_us; }));
  for (const Candidate& candidate : report.candidates) {
    EstimateOptions same;
    same.tile = candidate.tile;
    same.columns = candidate.columns;
    same.compare = false;
    const SavingsReport alone = *estimate(mask.mask, shape, profile, same);
    EXPECT_DOUBLE_EQ(alone.masked.time_us, *candidate.time_us);
    EXPECT_TRUE(alone.candidates.empty());
  }
  options.max_kv_index_bytes = 0;
  const SavingsReport bounded = *estimate(mask.mask, shape, profile, options);
  EXPECT_TRUE(bounded.candidates[3].time_us);
  EXPECT_FALSE(bounded.candidates[4].time_us);
  EXPECT_THAT(bounded.candidates[4].reason, HasSubstr("kv index lists would take"));
  options.direction = Direction::backward;
  const SavingsReport backward = *estimate(mask.mask, shape, profile, options);
  EXPECT_THAT(backward.candidates[2].reason, HasSubstr("does not gather"));
  EXPECT_THAT(backward.candidates.back().reason, HasSubstr("do not reorder"));
}

TEST(Estimate, FormatSizesAreThoseOfConversions) {
  std::mt19937 rng(6);
  for (int trial = 0; trial < 10; ++trial) {
    const MaskCase mask = random_case(rng, 1, 2, 120, {16, 32});
    const AttentionShape shape = with_head_dim(shape_for(mask.mask, 1, 2, 1), 64);
    const SavingsReport report = *estimate(mask.mask, shape, profile_of({{32, 32}}));
    ASSERT_EQ(report.formats.size(), 6U);
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (const FormatSize& size : report.formats) {
      const Result<BlockMask> converted = convert(mask.mask, size.format, mask.mask.block);
      ASSERT_EQ(converted.has_value(), size.bytes.has_value()) << to_string(size.format);
      EXPECT_EQ(size.reason.empty(), size.bytes.has_value());
      if (!converted) continue;
      EXPECT_EQ(converted->size_bytes(), *size.bytes) << to_string(size.format);
      best = std::min(best, *size.bytes);
    }
    EXPECT_EQ(*report.formats[static_cast<std::size_t>(report.best_format)].bytes, best);
    EXPECT_EQ(report.dense_float_bytes, 4 * report.dense_bool_bytes);
  }
}

TEST(Estimate, EmptyMasksAndEmptyLengthsHaveATime) {
  const Cells none = make_cells(100, 70, [](std::int64_t, std::int64_t) { return false; });
  const MaskCase mask = case_of("none", none, {32, 32});
  const AttentionShape shape = with_head_dim(shape_for(mask.mask, 1, 1, 1), 64);
  const SavingsReport report = *estimate(mask.mask, shape, profile_of({{32, 32}}));
  EXPECT_EQ(report.allowed_pairs, 0);
  EXPECT_EQ(report.wasted_share, 0);
  EXPECT_DOUBLE_EQ(report.masked.time_us, 1 + 3);
  const MaskCase empty = case_of("empty", Cells(0, 0), {32, 32});
  const SavingsReport nothing = *estimate(
      empty.mask, with_head_dim(shape_for(empty.mask, 1, 1, 1), 64), profile_of({{32, 32}}));
  EXPECT_EQ(nothing.masked.schedule.num_work_tiles, 0);
  EXPECT_EQ(nothing.masked.schedule.balance(), 1);
  EXPECT_DOUBLE_EQ(nothing.speedup, 1);
}

TEST(Estimate, BackwardCallsTakeLongerInOrderOrWithAPassOverTheKeys) {
  const BlockMask mask = compiled("causal", 256);
  const auto time_us = [&](const char* device, Direction direction, std::int32_t head_dim,
                           const BackwardExtras& extras) {
    AttentionShape shape = square_shape(256, 2, head_dim);
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
    const DeviceProfile profile = *shipped_profile(device);
    PlanOptions options;
    options.direction = direction;
    options.backend = profile.backend;
    const PlanEstimate found =
        *estimate_plan(*make_plan(mask, shape, {}, options), profile, extras);
    EXPECT_GE(found.time_us, found.schedule.makespan_us + found.extra_us);
    return std::pair(found.time_us, found.extra_us / found.schedule.makespan_us);
  };
  const BackwardExtras in_order{.is_deterministic = true}, by_keys{.corrects_delta = true};
  for (const char* device : {"h200", "h100", "cpu"}) {
    const auto plain = time_us(device, Direction::backward, 64, {});
    EXPECT_EQ(plain.second, 0);
    const bool is_gpu = device != std::string("cpu");
    const auto ordered = time_us(device, Direction::backward, 64, in_order);
    EXPECT_EQ(ordered.first > plain.first, is_gpu);
    const auto exact = time_us(device, Direction::backward, 64, by_keys);
    EXPECT_GT(exact.first, plain.first);
    const auto both = time_us(device, Direction::backward, 64, {true, true});
    EXPECT_NEAR(both.second, ordered.second + exact.second, 1e-9);
    EXPECT_EQ(time_us(device, Direction::forward, 64, {true, true}).second, 0);
  }
  EXPECT_LT(time_us("h200", Direction::backward, 256, by_keys).second,
            time_us("h200", Direction::backward, 128, by_keys).second);
}

TEST(Estimate, RejectsWhatTheProfileOrThePlanCannotServe) {
  const BlockMask mask = compiled("causal", 256);
  const AttentionShape shape = square_shape(256, 2, 64);
  const DeviceProfile cpu = *shipped_profile("cpu");
  EstimateOptions options;
  options.direction = Direction::backward;
  EXPECT_TRUE(estimate(mask, shape, cpu, options));
  DeviceProfile forward = cpu;
  std::erase_if(forward.kernels,
                [](const KernelCosts& each) { return each.direction == Direction::backward; });
  EXPECT_EQ(estimate(mask, shape, forward, options).error().code, ErrorCode::unsupported);
  options.direction = Direction::forward;
  options.tile = {32, 32};
  EXPECT_THAT(estimate(mask, shape, cpu, options).error().message,
              HasSubstr("tile: device profile 'cpu' has costs for 128x128, 64x128"));
  options.tile = {0, 0};
  EXPECT_EQ(estimate(mask, square_shape(300, 2, 64), cpu, options).error().code,
            ErrorCode::shape_mismatch);
  AttentionShape odd = shape;
  odd.heads_kv = 3;
  EXPECT_EQ(estimate(mask, odd, cpu, options).error().code, ErrorCode::invalid_argument);
  std::mt19937 rng(7);
  const MaskCase columns = case_of("live ranges", random_live_ranges(rng, 256, 256, 1), {128, 128});
  PlanOptions gathered;
  gathered.columns = ColumnMode::gather;
  const AttentionShape float32_shape = with_head_dim(shape_for(columns.mask, 1, 1, 1), 64);
  const Result<AttentionPlan> plan = make_plan(columns.mask, float32_shape, {}, gathered);
  ASSERT_TRUE(plan) << plan.error().message;
  DeviceProfile no_gather = profile_of({{128, 128}});
  no_gather.kernels.front().tiles.front().gather = {};
  EXPECT_THAT(estimate_plan(*plan, no_gather).error().message, HasSubstr("does not gather"));
}

}  // namespace
}  // namespace fdma::testing
