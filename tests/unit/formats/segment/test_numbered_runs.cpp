// Tests that the builder stores tiles with numbers as it stores tiles without, and looks at the
// cells of a segment with known numbers no more.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "fdma/formats/segment_builder.hpp"
#include "segment/bitmaps_run.hpp"

namespace fdma {
namespace {

constexpr BlockShape kBlock{32, 128};
constexpr std::int64_t kWords = std::int64_t{kBlock.block_q} * kBlock.block_kv / 64;

using Bitmap = std::vector<std::uint64_t>;

// Tiles by the indices of their bitmaps. `numbers_of` has the number of each; without it the tiles
// have no numbers.
class CountedRun final : public PartialRun {
 public:
  CountedRun(SegmentBuilder& builder, const std::vector<Bitmap>& bitmaps,
             const std::vector<std::size_t>& tiles, const std::vector<std::int32_t>& numbers_of,
             int& num_panels)
      : num_panels_(num_panels) {
    for (const std::size_t tile : tiles) {
      words_.insert(words_.end(), bitmaps[tile].begin(), bitmaps[tile].end());
      if (numbers_of.empty()) continue;
      const auto end = static_cast<std::int32_t>(std::ssize(words_) / kWords);
      if (!numbers_.empty() && numbers_.back().number == numbers_of[tile]) {
        numbers_.back().end = end;
      } else {
        numbers_.push_back({numbers_of[tile], end});
      }
    }
    cells_.emplace_back(builder, words_, kBlock);
  }
  std::span<const NumberedTiles> numbers() override { return numbers_; }
  std::int64_t num_intervals(std::int64_t limit) override {
    return cells_.front().num_intervals(limit);
  }
  std::uint64_t bitmap_hash(std::int64_t tile) override { return cells_.front().bitmap_hash(tile); }
  std::int32_t intern(std::int64_t tile, std::uint64_t hash) override {
    return cells_.front().intern(tile, hash);
  }
  void write_panel(std::vector<std::int64_t>& offsets, std::vector<Interval>& intervals) override {
    ++num_panels_;
    cells_.front().write_panel(offsets, intervals);
  }

 private:
  std::vector<std::uint64_t> words_;
  std::vector<NumberedTiles> numbers_;
  std::vector<BitmapsRun> cells_;
  int& num_panels_;
};

// A tile whose rows have one interval, which a panel stores in fewer bytes, or random cells.
Bitmap bitmap(std::uint64_t seed, bool is_random) {
  std::mt19937_64 random(seed);
  Bitmap words(static_cast<std::size_t>(kWords));
  for (std::size_t r = 0; r < words.size(); ++r) {
    words[r] = is_random ? random() : r < 8 ? ~std::uint64_t{0} << (seed % 32) : 0;
  }
  return words;
}

// One tile row for each entry of `rows`, which begins at tile 0.
SegmentMask build(const std::vector<Bitmap>& bitmaps,
                  const std::vector<std::vector<std::size_t>>& rows,
                  const std::vector<std::vector<std::int32_t>>& numbers, int& num_panels) {
  SegmentBuilder builder(std::ssize(rows) * kBlock.block_q, 8 * kBlock.block_kv, kBlock);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    CountedRun run(builder, bitmaps, rows[row],
                   numbers.empty() ? std::vector<std::int32_t>{} : numbers[row % numbers.size()],
                   num_panels);
    std::vector<TileSegment> segments;
    builder.add_partial_run(0, static_cast<std::int32_t>(rows[row].size()), 0, run, segments);
    const auto tile_row = static_cast<std::int32_t>(row);
    builder.add_rows(tile_row, 1, segments);
    builder.skip_to(tile_row + 1);
  }
  return builder.finish();
}

TEST(NumberedRuns, AreStoredAsRunsWithoutNumbers) {
  std::mt19937 random(1);
  std::int64_t num_panels = 0;
  for (int round = 0; round < 50; ++round) {
    std::vector<Bitmap> bitmaps;
    for (std::uint64_t i = 0; i < 6; ++i) bitmaps.push_back(bitmap(i, i % 3 == 2));
    bitmaps.push_back(bitmaps[0]);  // equal cells of two numbers
    std::vector<std::vector<std::size_t>> rows(60);
    for (auto& row : rows) {
      row.resize(1 + random() % 5);
      for (std::size_t& tile : row) tile = random() % bitmaps.size();
    }
    int ignored = 0;
    const SegmentMask plain = build(bitmaps, rows, {}, ignored);
    num_panels += plain.num_row_panels();
    const std::vector<std::int32_t> first{0, 1, 2, 3, 4, 5, 6}, second{7, 8, 9, 10, 11, 12, 13};
    EXPECT_EQ(build(bitmaps, rows, {first}, ignored), plain);
    EXPECT_EQ(build(bitmaps, rows, {first, second}, ignored), plain);  // as of two threads
    EXPECT_EQ(build(bitmaps, rows, {first, {}}, ignored), plain);
  }
  EXPECT_GT(num_panels, 50);
}

TEST(NumberedRuns, WriteAPanelOnce) {
  const std::vector<Bitmap> bitmaps{bitmap(3, false), bitmap(5, false)};
  const std::vector<std::vector<std::size_t>> rows{{0}, {1, 0}, {0}, {1, 0}, {0}, {1, 0}, {1}};
  int with_numbers = 0, without = 0;
  const SegmentMask mask = build(bitmaps, rows, {{0, 1}}, with_numbers);
  EXPECT_EQ(mask, build(bitmaps, rows, {}, without));
  EXPECT_EQ(mask.num_row_panels(), 2);
  EXPECT_EQ(with_numbers, 2);
  EXPECT_GT(without, with_numbers);
}

}  // namespace
}  // namespace fdma
