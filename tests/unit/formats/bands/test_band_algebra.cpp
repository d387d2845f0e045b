// Tests masks as bands of rows, and compares set operations on bands with those on tiles.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "algebra/combine_segments.hpp"
#include "bands/from_segment.hpp"
#include "cell_oracle.hpp"
#include "fdma/formats/band_algebra.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::pick;

constexpr SetOperation kOperations[] = {SetOperation::intersection, SetOperation::union_of,
                                        SetOperation::difference,
                                        SetOperation::symmetric_difference};

/// Returns bands with bounds of slope -1, 0, 1 or 2, unions of a few of them, or any cells.
Cells random_banded_cells(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len) {
  if (pick(rng, 0, 5) == 0) return testing::random_cells(rng, q_len, kv_len);
  Cells cells(q_len, kv_len);
  for (std::int64_t part = pick(rng, 0, 4); part >= 0; --part) {
    const std::int64_t lo = pick(rng, -150, 250), hi = lo + pick(rng, 1, 150);
    const std::int64_t lo_slope = pick(rng, -1, 2), hi_slope = pick(rng, -1, 2);
    const std::int64_t q_begin = pick(rng, -50, q_len), q_end = pick(rng, q_begin, q_len + 50);
    for (std::int64_t q = std::max<std::int64_t>(q_begin, 0); q < std::min(q_end, q_len); ++q) {
      const std::int64_t begin = std::max<std::int64_t>(lo + lo_slope * (q - q_begin), 0);
      const std::int64_t end = std::min(hi + hi_slope * (q - q_begin), kv_len);
      for (std::int64_t k = begin; k < end; ++k) cells.at(q, k) = 1;
    }
  }
  return cells;
}

/// Checks the invariants of RowBands.
void check_invariants(const RowBands& bands) {
  std::int64_t done = 0;
  for (const RowBand& band : bands.bands) {
    RC_ASSERT(band.q_begin >= done);
    RC_ASSERT(band.q_begin < band.q_end);
    RC_ASSERT(band.num_intervals > 0);
    done = band.q_end;
    for (std::int64_t q = band.q_begin; q < band.q_end; ++q) {
      std::int64_t free = 0;
      for (std::int32_t i = 0; i < band.num_intervals; ++i) {
        const AffineInterval& keys =
            bands.intervals[static_cast<std::size_t>(band.first_interval + i)];
        const std::int64_t lo = keys.lo_base + keys.lo_slope * q;
        const std::int64_t hi = keys.hi_base + keys.hi_slope * q;
        RC_ASSERT(lo >= free);
        RC_ASSERT(lo < hi);
        free = hi + 1;  // at least one key between neighbours
      }
      RC_ASSERT(free <= bands.kv_len + 1);
    }
  }
  RC_ASSERT(done <= bands.q_len);
}

struct Sample {
  Cells cells;
  SegmentMask mask;
  std::optional<RowBands> bands;
};

Sample random_sample(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len, BlockShape block) {
  Sample sample{random_banded_cells(rng, q_len, kv_len), {}, {}};
  sample.mask = segment_from_dense(testing::dense_of(sample.cells), block);
  sample.bands = bands_from_segment(sample.mask);
  return sample;
}

TEST(BandsFromSegment, LowersToTheSameMaskInAnyBlocks) {
  EXPECT_TRUE(rc::check("bands", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 700), kv_len = pick(rng, 0, 500);
    const Sample sample = random_sample(rng, q_len, kv_len, testing::random_block(rng));
    if (!sample.bands) return;
    check_invariants(*sample.bands);
    RC_ASSERT(segment_from_bands(*sample.bands, sample.mask.block) == sample.mask);
    const BlockShape other = testing::random_block(rng);
    RC_ASSERT(segment_from_bands(*sample.bands, other) ==
              segment_from_dense(testing::dense_of(sample.cells), other));
  }));
}

/// Returns the same cells as a valid mask that is not canonical. Segments and runs are cut at
/// random places, and full and empty tiles are stored as bitmaps.
SegmentMask uncanonical(std::mt19937& rng, const SegmentMask& mask) {
  SegmentMask made = mask;
  made.runs.clear();
  made.segments.clear();
  const std::int32_t period = row_period(mask.block);
  const auto words = static_cast<std::size_t>(mask.words_per_bitmap());
  const auto empty = static_cast<std::int32_t>(mask.num_bitmaps());
  made.bitmaps.resize(made.bitmaps.size() + words);
  const bool has_ragged_tiles =
      mask.q_len % mask.block.block_q != 0 || mask.kv_len % mask.block.block_kv != 0;
  if (!has_ragged_tiles) made.bitmaps.resize(made.bitmaps.size() + words, ~std::uint64_t{0});
  struct Row {
    std::vector<TileSegment> segments;
    bool is_done = false;
  };
  std::vector<Row> rows;
  for_each_tile_row(mask, [&](std::int32_t, std::span<const TileSegment> segments) {
    Row row;
    std::int32_t free = 0;
    for (const TileSegment& segment : segments) {
      if (segment.first_tile > free && pick(rng, 0, 3) == 0) {
        row.segments.push_back({free, segment.first_tile, 0, 0, SegmentKind::bitmap, empty});
      }
      free = segment.end_tile;
      TileSegment part = segment;
      if (part.kind == SegmentKind::full && !has_ragged_tiles && pick(rng, 0, 2) == 0) {
        part.kind = SegmentKind::bitmap;
        part.data_index = empty + 1;
      }
      if (part.end_tile - part.first_tile > 1 && part.kind != SegmentKind::rows &&
          part.kind != SegmentKind::columns && pick(rng, 0, 2) == 0) {
        TileSegment left = part;
        left.end_tile =
            static_cast<std::int32_t>(pick(rng, part.first_tile + 1, part.end_tile - 1));
        part.first_tile = left.end_tile;
        row.segments.push_back(left);
      }
      row.segments.push_back(part);
    }
    rows.push_back(std::move(row));
  });
  const auto steps = [](const Row& a, const Row& b, std::vector<TileSegment>* out) {
    if (a.segments.size() != b.segments.size()) return false;
    std::vector<TileSegment> moved = a.segments;
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const TileSegment& next = b.segments[i];
      if (moved[i].kind != next.kind || moved[i].data_index != next.data_index) return false;
      const bool is_panel = moved[i].kind == SegmentKind::rows;
      moved[i].step_first = next.first_tile - moved[i].first_tile;
      moved[i].step_end = next.end_tile - moved[i].end_tile;
      if (is_panel && moved[i].step_first != moved[i].step_end) return false;
    }
    if (out != nullptr) *out = moved;
    return true;
  };
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].is_done) continue;
    TileRun run{static_cast<std::int32_t>(row), period, 1, 0, std::ssize(made.segments)};
    std::vector<TileSegment> segments = rows[row].segments;
    const auto stride = static_cast<std::size_t>(period);
    for (std::size_t next = row + stride; next < rows.size(); next += stride) {
      std::vector<TileSegment> moved;
      if (pick(rng, 0, 15) == 0 || !steps(rows[next - stride], rows[next], &moved)) break;
      bool fits = true;
      for (std::size_t i = 0; i < moved.size(); ++i) {
        if (run.num_rows == 1) {
          segments[i].step_first = moved[i].step_first;
          segments[i].step_end = moved[i].step_end;
        }
        fits = fits && segments[i].step_first == moved[i].step_first &&
               segments[i].step_end == moved[i].step_end;
      }
      if (!fits) break;
      rows[next].is_done = true;
      ++run.num_rows;
    }
    if (run.num_rows == 1) {
      for (TileSegment& segment : segments) segment.step_first = segment.step_end = 0;
    }
    run.num_segments = static_cast<std::int32_t>(segments.size());
    made.segments.insert(made.segments.end(), segments.begin(), segments.end());
    made.runs.push_back(run);
  }
  return made;
}

TEST(BandsFromSegment, TakesValidMasksThatAreNotCanonical) {
  std::int64_t num_bands = 0;
  EXPECT_TRUE(rc::check("uncanonical", [&num_bands](std::uint32_t seed) {
    std::mt19937 rng(seed);
    BlockShape block = testing::random_block(rng);
    std::int64_t q_len = pick(rng, 1, 1500), kv_len = pick(rng, 1, 300);
    if (pick(rng, 0, 1) == 0) {  // whole tiles
      q_len = std::max<std::int64_t>(q_len / block.block_q, 1) * block.block_q;
      kv_len = std::max<std::int64_t>(kv_len / block.block_kv, 1) * block.block_kv;
    }
    const Sample sample = random_sample(rng, q_len, kv_len, block);
    const SegmentMask mask = uncanonical(rng, sample.mask);
    const auto valid = validate(mask, ValidationLevel::structure);
    RC_ASSERT(valid.has_value());
    if (const auto bands = bands_from_segment(mask)) {
      ++num_bands;
      check_invariants(*bands);
      RC_ASSERT(segment_from_bands(*bands, block) == sample.mask);
    }
    RC_ASSERT(segment_from_segment(mask, block) == sample.mask);
    RC_ASSERT(complement_segment(mask) == complement_segment(sample.mask));
    RC_ASSERT(transpose_segment(mask) == transpose_segment(sample.mask));
  }));
  EXPECT_GT(num_bands, 20);
}

TEST(BandsFromSegment, SkipsRowsThatMoveInStep) {
  for (const BlockShape block : {BlockShape{128, 128}, BlockShape{64, 256}, BlockShape{96, 32}}) {
    const std::int64_t n = 1 << 20;
    const RowBands causal{n, n, {{0, 1 << 20, 0, 1}}, {{0, 1, 0, 1}}};
    const auto bands = bands_from_segment(segment_from_bands(causal, block));
    ASSERT_TRUE(bands);
    ASSERT_EQ(bands->bands.size(), 1u);
    EXPECT_EQ(bands->intervals, causal.intervals);
  }
}

TEST(BandsFromSegment, GivesUpWhereTilesAreTheBetterForm) {
  const std::int64_t n = 1 << 15;
  RowBands steps{n, n, {}, {}};  // block_causal(64): two bands in each of 256 tile rows of a run
  for (std::int64_t q = 0; q < n; q += 64) {
    steps.bands.push_back({static_cast<std::int32_t>(q), static_cast<std::int32_t>(q + 64),
                           std::ssize(steps.intervals), 1});
    steps.intervals.push_back({0, q + 64, 0, 0});
  }
  EXPECT_FALSE(bands_from_segment(segment_from_bands(steps, {})));
  const Cells stripes = testing::make_cells(64, 64, [](auto, auto k) { return k % 2 == 0; });
  EXPECT_FALSE(bands_from_segment(segment_from_dense(testing::dense_of(stripes), {})));
}

TEST(BandAlgebra, CombinesAsTilesDo) {
  EXPECT_TRUE(rc::check("combine", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 400), kv_len = pick(rng, 0, 400);
    const BlockShape block = testing::random_block(rng);
    const Sample a = random_sample(rng, q_len, kv_len, block);
    const Sample b = random_sample(rng, q_len, kv_len, block);
    for (const SetOperation operation : kOperations) {
      const TruthTable table = truth_table(operation);
      const Cells expected =
          testing::make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
            return holds(table, a.cells.get(q, k), b.cells.get(q, k));
          });
      const SegmentMask cells = segment_from_dense(testing::dense_of(expected), block);
      RC_ASSERT(combine_segments(a.mask, b.mask, operation) == cells);
      if (!a.bands || !b.bands) continue;
      const RowBands both = combine_bands(table, *a.bands, *b.bands);
      check_invariants(both);
      RC_ASSERT(segment_from_bands(both, block) == cells);
    }
    const Cells rest = testing::make_cells(
        q_len, kv_len, [&](std::int64_t q, std::int64_t k) { return !a.cells.get(q, k); });
    const SegmentMask expected = segment_from_dense(testing::dense_of(rest), block);
    RC_ASSERT(complement_segment(a.mask) == expected);
    if (!a.bands) return;
    const RowBands not_a = combine_bands(kNotA, *a.bands, {q_len, kv_len, {}, {}});
    check_invariants(not_a);
    RC_ASSERT(segment_from_bands(not_a, block) == expected);
  }));
}

TEST(BandAlgebra, ComplementsAMaskWithoutKeysToNothing) {
  const RowBands none{5, 0, {}, {}};
  const RowBands rest = combine_bands(kNotA, none, none);
  EXPECT_TRUE(rest.bands.empty());
  EXPECT_TRUE(rest.intervals.empty());
}

TEST(BandAlgebra, MovesAsTilesDo) {
  EXPECT_TRUE(rc::check("move", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 400), kv_len = pick(rng, 0, 400);
    const BlockShape block = testing::random_block(rng);
    const Sample a = random_sample(rng, q_len, kv_len, block);
    const std::int64_t dq = pick(rng, -420, 420), dk = pick(rng, -420, 420);
    const Cells expected = testing::make_cells(q_len, kv_len, [&](std::int64_t q, std::int64_t k) {
      const std::int64_t from_q = q - dq, from_k = k - dk;
      return from_q >= 0 && from_q < q_len && from_k >= 0 && from_k < kv_len &&
             a.cells.get(from_q, from_k);
    });
    const SegmentMask cells = segment_from_dense(testing::dense_of(expected), block);
    RC_ASSERT(shift_segment(a.mask, dq, dk) == cells);
    if (!a.bands) return;
    const RowBands moved = move_bands(*a.bands, dq, dk, q_len, kv_len);
    check_invariants(moved);
    RC_ASSERT(segment_from_bands(moved, block) == cells);
    const std::int64_t q_begin = pick(rng, 0, q_len), q_end = pick(rng, q_begin, q_len);
    const std::int64_t k_begin = pick(rng, 0, kv_len), k_end = pick(rng, k_begin, kv_len);
    const RowBands cut = move_bands(*a.bands, -q_begin, -k_begin, q_end - q_begin, k_end - k_begin);
    check_invariants(cut);
    RC_ASSERT(segment_from_bands(cut, block) ==
              segment_from_dense(
                  testing::dense_of(testing::crop_cells(a.cells, q_begin, q_end, k_begin, k_end)),
                  block));
  }));
}

TEST(BandAlgebra, TransposesAsTilesDo) {
  std::int64_t num_transposed = 0;
  EXPECT_TRUE(rc::check("transpose", [&num_transposed](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 0, 400), kv_len = pick(rng, 0, 400);
    const BlockShape block = testing::random_block(rng), turned{block.block_kv, block.block_q};
    const Sample a = random_sample(rng, q_len, kv_len, block);
    const Cells expected = testing::make_cells(
        kv_len, q_len, [&](std::int64_t q, std::int64_t k) { return a.cells.get(k, q); });
    const SegmentMask cells = segment_from_dense(testing::dense_of(expected), turned);
    RC_ASSERT(transpose_segment(a.mask) == cells);
    if (!a.bands) return;
    const std::optional<RowBands> bands = transpose_bands(*a.bands);
    if (!bands) return;  // a steep bound, or one that goes back
    ++num_transposed;
    check_invariants(*bands);
    RC_ASSERT(segment_from_bands(*bands, turned) == cells);
  }));
  EXPECT_GT(num_transposed, 5);
}

}  // namespace
}  // namespace fdma
