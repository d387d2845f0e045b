// Tests the lowering of bands against cells and against the builder that gets the mask cell by
// cell. The arrays must be equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma {
namespace {

using Cells = std::vector<std::vector<char>>;

Cells cells_of(const RowBands& bands) {
  Cells cells(static_cast<std::size_t>(bands.q_len),
              std::vector<char>(static_cast<std::size_t>(bands.kv_len), 0));
  for (const RowBand& band : bands.bands) {
    for (std::int64_t q = band.q_begin; q < band.q_end; ++q) {
      for (std::int64_t i = band.first_interval; i < band.first_interval + band.num_intervals;
           ++i) {
        const AffineInterval& a = bands.intervals[static_cast<std::size_t>(i)];
        for (std::int64_t k = a.lo_base + a.lo_slope * q; k < a.hi_base + a.hi_slope * q; ++k) {
          cells[static_cast<std::size_t>(q)][static_cast<std::size_t>(k)] = 1;
        }
      }
    }
  }
  return cells;
}

SegmentMask build_from_cells(const Cells& cells, std::int64_t q_len, std::int64_t kv_len,
                             BlockShape block) {
  SegmentBuilder builder(q_len, kv_len, block);
  const auto num_cols = static_cast<std::int32_t>(ceil_div(kv_len, block.block_kv));
  for (std::int64_t row = 0; row < ceil_div(q_len, block.block_q); ++row) {
    const std::vector<TileRange> ranges{{0, num_cols, false}};
    const std::int64_t q_begin = row * block.block_q;
    builder.add_tile_row(
        ranges,
        [&](std::int32_t tile, std::uint64_t* words) {
          const std::int64_t k_begin = std::int64_t{tile} * block.block_kv;
          for (std::int64_t q = q_begin; q < std::min(q_begin + block.block_q, q_len); ++q) {
            for (std::int64_t k = k_begin; k < std::min(k_begin + block.block_kv, kv_len); ++k) {
              const std::int64_t bit = (q - q_begin) * block.block_kv + k - k_begin;
              if (cells[static_cast<std::size_t>(q)][static_cast<std::size_t>(k)])
                set_bits(words, bit, bit + 1);
            }
          }
        },
        true);
  }
  return builder.finish();
}

void expect_cells(const SegmentMask& mask, const Cells& cells) {
  std::vector<Interval> intervals;
  std::int64_t allowed = 0;
  for (std::int64_t q = 0; q < mask.q_len; ++q) {
    row_intervals_of(mask, q, intervals);
    std::vector<char> row(static_cast<std::size_t>(mask.kv_len), 0);
    std::int32_t before = -1;
    for (const Interval& i : intervals) {
      ASSERT_GT(i.begin, before);
      ASSERT_LT(i.begin, i.end);
      before = i.end;
      std::fill(row.begin() + i.begin, row.begin() + i.end, 1);
    }
    ASSERT_EQ(row, cells[static_cast<std::size_t>(q)]) << "row " << q;
    allowed += std::count(row.begin(), row.end(), 1);
  }
  const TileCounts counts = count_tiles(mask);
  EXPECT_EQ(counts.allowed_pairs, allowed);
  // Computes tile classes and tile_cells naively.
  std::int64_t full = 0, partial = 0;
  const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
  std::vector<std::uint64_t> words(static_cast<std::size_t>(mask.words_per_bitmap()));
  for_each_tile_row(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    EXPECT_EQ(segments_of_row(mask, row),
              std::vector<TileSegment>(segments.begin(), segments.end()));
    std::size_t s = 0;
    for (std::int32_t col = 0; col < mask.num_tile_cols(); ++col) {
      while (s < segments.size() && segments[s].end_tile <= col) ++s;
      const bool stored = s < segments.size() && segments[s].first_tile <= col;
      std::int64_t live = 0, existing = 0;
      std::fill(words.begin(), words.end(), 0);
      if (stored) tile_cells(mask, segments[s], row, col, words.data());
      for (std::int64_t r = 0; r < block_q; ++r) {
        for (std::int64_t c = 0; c < block_kv; ++c) {
          const std::int64_t q = row * block_q + r, k = col * block_kv + c;
          const bool bit = read_bits(words.data(), r * block_kv + c, 1) != 0;
          const bool exists = q < mask.q_len && k < mask.kv_len;
          const bool expected =
              exists && cells[static_cast<std::size_t>(q)][static_cast<std::size_t>(k)];
          ASSERT_EQ(bit, expected);
          live += expected;
          existing += exists;
        }
      }
      ASSERT_EQ(stored, live > 0);
      if (stored) {
        ASSERT_EQ(segments[s].kind == SegmentKind::full, live == existing);
        full += live == existing;
        partial += live != existing;
      }
    }
  });
  EXPECT_EQ(counts.full, full);
  EXPECT_EQ(counts.partial, partial);
}

RowBands random_bands(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len, int max_slope) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(rng);
  };
  RowBands bands;
  bands.q_len = q_len;
  bands.kv_len = kv_len;
  std::int64_t q = 0;
  while (q < q_len) {
    const std::int64_t begin = q + (pick(0, 3) == 0 ? pick(0, q_len / 4) : 0);
    std::int64_t end = std::min(q_len, begin + 1 + pick(0, pick(0, 2) == 0 ? 5 : q_len));
    if (begin >= q_len) break;
    RowBand band{static_cast<std::int32_t>(begin), 0,
                 static_cast<std::int64_t>(bands.intervals.size()), 0};
    std::int64_t lo = pick(0, kv_len / 2);
    const int wanted = static_cast<int>(pick(0, 3));
    std::int64_t last_hi = -2, last_slope = 0;
    for (int n = 0; n < wanted && lo < kv_len; ++n) {
      AffineInterval a{};
      const std::int64_t hi = std::min(kv_len, lo + 1 + pick(0, kv_len / 2));
      a.lo_slope = static_cast<std::int32_t>(pick(-max_slope, max_slope));
      a.hi_slope = pick(0, 1) ? a.lo_slope : static_cast<std::int32_t>(pick(-max_slope, max_slope));
      if (pick(0, 1)) a.lo_slope = 0;
      a.lo_base = lo - a.lo_slope * begin;
      a.hi_base = hi - a.hi_slope * begin;
      // Cuts the band where the interval would leave the mask, become empty or meet its neighbour.
      std::int64_t e = begin;
      for (; e < end; ++e) {
        const std::int64_t l = a.lo_base + a.lo_slope * e, h = a.hi_base + a.hi_slope * e;
        if (l < 0 || h > kv_len || l >= h) break;
        if (n > 0 && l <= last_hi + last_slope * (e - begin)) break;
      }
      if (e == begin) break;
      end = e;
      bands.intervals.push_back(a);
      ++band.num_intervals;
      last_hi = hi;
      last_slope = a.hi_slope;
      lo = hi + 1 + pick(0, 40);
    }
    band.q_end = static_cast<std::int32_t>(end);
    bands.bands.push_back(band);
    q = end;
  }
  return bands;
}

TEST(RowBands, CausalIsTwoRunsAndOneBitmapAtOneMillionTokens) {
  const std::int64_t n = std::int64_t{1} << 20;
  const RowBands bands{n, n, {{0, static_cast<std::int32_t>(n), 0, 1}}, {{0, 1, 0, 1}}};
  const SegmentMask mask = segment_from_bands(bands, BlockShape{});
  EXPECT_EQ(mask.runs.size(), 2u);
  EXPECT_EQ(mask.num_bitmaps(), 1);
  EXPECT_LT(mask.size_bytes(), 4096);
  EXPECT_EQ(count_tiles(mask).allowed_pairs, n * (n + 1) / 2);
}

TEST(RowBands, EqualsTheBuilderFedCellByCell) {
  std::mt19937 rng(7);
  const BlockShape blocks[] = {{16, 16},  {32, 16},  {16, 32},   {48, 80},
                               {64, 128}, {128, 64}, {128, 128}, {16, 256}};
  for (int trial = 0; trial < 1500; ++trial) {
    const BlockShape block = blocks[rng() % std::size(blocks)];
    const std::int64_t scale = trial % 10 == 0 ? 700 : 200;
    const auto q_len = static_cast<std::int64_t>(1 + rng() % static_cast<unsigned>(scale));
    const auto kv_len = static_cast<std::int64_t>(1 + rng() % static_cast<unsigned>(scale));
    const RowBands bands = random_bands(rng, q_len, kv_len,
                                        trial % 7 == 0   ? 40
                                        : trial % 3 == 0 ? 2
                                                         : 1);
    const Cells cells = cells_of(bands);
    const SegmentMask mask = segment_from_bands(bands, block);
    ASSERT_NO_FATAL_FAILURE(expect_cells(mask, cells)) << "trial " << trial;
    ASSERT_EQ(mask, build_from_cells(cells, q_len, kv_len, block)) << "trial " << trial;
  }
}

TEST(SegmentFromColumns, EqualsTheBuilderFedCellByCell) {
  std::mt19937 rng(11);
  const BlockShape blocks[] = {{16, 16}, {16, 32}, {48, 80}, {64, 128}, {128, 128}};
  bool has_table = false, has_none = false;
  for (int trial = 0; trial < 400; ++trial) {
    const BlockShape block = blocks[rng() % std::size(blocks)];
    const auto q_len = static_cast<std::int64_t>(1 + rng() % 300);
    const auto kv_len = static_cast<std::int64_t>(1 + rng() % 300);
    Cells cells(static_cast<std::size_t>(q_len),
                std::vector<char>(static_cast<std::size_t>(kv_len), 0));
    std::vector<std::int64_t> offsets{0};
    std::vector<Interval> intervals;
    const unsigned spread = 1 + rng() % 100;
    for (std::int64_t k = 0; k < kv_len; ++k) {
      std::int64_t q = trial % 2 ? k : 0;
      while (rng() % 4 != 0) {
        const std::int64_t begin = q + (trial % 3 == 0 ? 0 : rng() % spread);
        const std::int64_t end = std::min<std::int64_t>(q_len, begin + 1 + rng() % (2 * spread));
        if (begin >= end) break;
        intervals.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
        for (std::int64_t r = begin; r < end; ++r)
          cells[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)] = 1;
        q = end + 1;
      }
      offsets.push_back(static_cast<std::int64_t>(intervals.size()));
    }
    const SegmentMask mask = segment_from_columns(q_len, kv_len, block, offsets, intervals);
    (mask.column_offsets.empty() ? has_none : has_table) = true;
    ASSERT_NO_FATAL_FAILURE(expect_cells(mask, cells)) << "trial " << trial;
    ASSERT_EQ(mask, build_from_cells(cells, q_len, kv_len, block)) << "trial " << trial;
  }
  EXPECT_TRUE(has_table);
  EXPECT_TRUE(has_none);
}

// Equal tile rows lie below each other, with and without a change between them. The count of query
// intervals and their list take such rows together.
TEST(SegmentFromColumns, EqualsTheBuilderWhereTileRowsRepeat) {
  std::mt19937 rng(13);
  const BlockShape blocks[] = {{16, 16}, {16, 32}, {32, 16}, {16, 48}, {48, 80}};
  bool has_table = false, has_none = false;
  for (int trial = 0; trial < 400; ++trial) {
    const BlockShape block = blocks[rng() % std::size(blocks)];
    const auto kv_len = static_cast<std::int64_t>(1 + rng() % (trial % 2 ? 20 : 120));
    Cells cells;
    for (unsigned groups = 1 + rng() % 4; groups > 0; --groups) {
      // The tile rows have one pattern: no cells, all cells, or runs of some length down each key.
      const unsigned density = rng() % 4, length = 1 + rng() % 40;
      Cells tile(static_cast<std::size_t>(block.block_q));
      for (std::size_t r = 0; r < tile.size(); ++r) {
        for (std::int64_t k = 0; k < kv_len; ++k) {
          const bool drawn = density == 3 || (density > 0 && rng() % 3 < density);
          tile[r].push_back(r % length != 0 ? tile[r - 1][static_cast<std::size_t>(k)] : drawn);
        }
      }
      for (unsigned times = 1 + rng() % 12; times > 0; --times) {
        cells.insert(cells.end(), tile.begin(), tile.end());
      }
    }
    if (rng() % 2) cells.resize(cells.size() - rng() % static_cast<unsigned>(block.block_q));
    const auto q_len = static_cast<std::int64_t>(cells.size());
    std::vector<std::int64_t> offsets{0};
    std::vector<Interval> intervals;
    for (std::size_t k = 0; k < static_cast<std::size_t>(kv_len); ++k) {
      for (std::size_t q = 0; q < cells.size(); ++q) {
        if (!cells[q][k]) continue;
        if (q == 0 || !cells[q - 1][k]) intervals.push_back({static_cast<std::int32_t>(q), 0});
        intervals.back().end = static_cast<std::int32_t>(q + 1);
      }
      offsets.push_back(static_cast<std::int64_t>(intervals.size()));
    }
    const SegmentMask mask = build_from_cells(cells, q_len, kv_len, block);
    (mask.column_offsets.empty() ? has_none : has_table) = true;
    ASSERT_NO_FATAL_FAILURE(expect_cells(mask, cells)) << "trial " << trial;
    ASSERT_EQ(mask, segment_from_columns(q_len, kv_len, block, offsets, intervals))
        << "trial " << trial;
    if (!mask.column_offsets.empty()) {
      ASSERT_EQ(mask.column_offsets, offsets) << "trial " << trial;
      ASSERT_EQ(mask.column_intervals, intervals) << "trial " << trial;
    }
  }
  EXPECT_TRUE(has_table);
  EXPECT_TRUE(has_none);
}

// There are few keys, and nearly all of 2^31 rows are empty. No walk may go over 2^27 tile rows.
TEST(RowBands, ManyRowsThatSeeNothingCostNothing) {
  const std::int64_t q_len = (std::int64_t{1} << 31) - 1;
  const RowBands bands{
      q_len, 1, {{166, 167, 0, 1}, {1 << 30, (1 << 30) + 2, 0, 1}}, {{0, 1, 0, 0}}};
  const SegmentMask mask = segment_from_bands(bands, {16, 32});
  EXPECT_EQ(mask.column_offsets, (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(mask.column_intervals, (std::vector<Interval>{{166, 167}, {1 << 30, (1 << 30) + 2}}));
  EXPECT_EQ(count_tiles(mask).allowed_pairs, 3);
  EXPECT_LT(mask.runs.size(), 12u);
}

TEST(RowBands, ManyEqualTilesOfARowCostNothing) {
  const std::int64_t kv_len = (std::int64_t{1} << 31) - 1;
  const auto end = static_cast<std::int32_t>(kv_len);
  // Rows 3 to 6 see every key but the first; row 9 sees the keys in the middle.
  const RowBands bands{
      16, kv_len, {{3, 7, 0, 1}, {9, 10, 1, 1}}, {{1, end, 0, 0}, {1000, end - 1000, 0, 0}}};
  const SegmentMask mask = segment_from_bands(bands, {16, 32});
  EXPECT_EQ(count_tiles(mask).allowed_pairs, 4 * (kv_len - 1) + kv_len - 2000);
  EXPECT_LT(mask.segments.size(), 12u);
}

}  // namespace
}  // namespace fdma
