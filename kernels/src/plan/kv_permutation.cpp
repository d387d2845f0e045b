// Sorts keys by live range. If they are sorted by end alone, a tile's keys end together but began
// at any time; sorted by begin it is the other way round. Sorting by end, and then each block of a
// few tiles by begin, keeps both ends of live ranges together. The best number of tiles per block
// depends on the distribution of live ranges, so a few widths are tried, and the order that visits
// the fewest tiles is taken.
//
// Example     random eviction: the keys of a tile begin within S / width of each other and end
//             within 128 * width queries (S tokens); 16 tiles suit 32,768 tokens, 32 suit 131,072
#include "plan/kv_permutation.hpp"

#include <algorithm>
#include <tuple>

#include "fdma/formats/segment_builder.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kBlockTiles[] = {2, 4, 8, 16, 32};

struct LiveRange {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t key;
};

// Sorts each block of `block` keys by begin.
void sort_blocks(std::vector<LiveRange>& live_ranges, std::size_t block) {
  for (std::size_t i = 0; i < live_ranges.size(); i += block) {
    const std::size_t end = std::min(i + block, live_ranges.size());
    std::sort(live_ranges.begin() + static_cast<std::ptrdiff_t>(i),
              live_ranges.begin() + static_cast<std::ptrdiff_t>(end),
              [](const LiveRange& a, const LiveRange& b) {
                return std::tie(a.begin, a.key) < std::tie(b.begin, b.key);
              });
  }
}

// Number of tile rows between the first and the last query of each tile of keys.
std::int64_t visited_tiles(const std::vector<LiveRange>& live_ranges, BlockShape tile) {
  std::int64_t sum = 0;
  const auto width = static_cast<std::size_t>(tile.block_kv);
  for (std::size_t i = 0; i < live_ranges.size(); i += width) {
    std::int64_t begin = live_ranges[i].begin, end = live_ranges[i].end;
    for (std::size_t k = i; k < std::min(i + width, live_ranges.size()); ++k) {
      begin = std::min<std::int64_t>(begin, live_ranges[k].begin);
      end = std::max<std::int64_t>(end, live_ranges[k].end);
    }
    sum += ceil_div(end, tile.block_q) - begin / tile.block_q;
  }
  return sum;
}

}  // namespace

PermutedMask permute_by_live_range(const SegmentMask& mask) {
  std::vector<LiveRange> live_ranges;
  for (std::int64_t key = 0; key < mask.kv_len; ++key) {
    const auto k = static_cast<std::size_t>(key);
    const std::int64_t first = mask.column_offsets[k], last = mask.column_offsets[k + 1];
    if (first == last) continue;
    live_ranges.push_back({mask.column_intervals[static_cast<std::size_t>(first)].begin,
                           mask.column_intervals[static_cast<std::size_t>(last) - 1].end,
                           static_cast<std::int32_t>(key)});
  }
  std::sort(live_ranges.begin(), live_ranges.end(), [](const LiveRange& a, const LiveRange& b) {
    return std::tie(a.end, a.key) < std::tie(b.end, b.key);
  });
  std::vector<LiveRange> best;
  std::int64_t fewest = 0;
  for (const std::int64_t block_tiles : kBlockTiles) {
    std::vector<LiveRange> sorted = live_ranges;
    sort_blocks(sorted, static_cast<std::size_t>(block_tiles * mask.block.block_kv));
    const std::int64_t visited = visited_tiles(sorted, mask.block);
    if (!best.empty() && visited >= fewest) continue;
    best = std::move(sorted);
    fewest = visited;
  }
  PermutedMask ordered;
  std::vector<std::int64_t> offsets{0};
  std::vector<Interval> intervals;
  intervals.reserve(mask.column_intervals.size());
  for (const LiveRange& each : best) {
    const auto k = static_cast<std::size_t>(each.key);
    ordered.keys.push_back(each.key);
    intervals.insert(intervals.end(), mask.column_intervals.begin() + mask.column_offsets[k],
                     mask.column_intervals.begin() + mask.column_offsets[k + 1]);
    offsets.push_back(static_cast<std::int64_t>(intervals.size()));
  }
  ordered.mask = segment_from_columns(mask.q_len, static_cast<std::int64_t>(ordered.keys.size()),
                                      mask.block, std::move(offsets), std::move(intervals));
  return ordered;
}

}  // namespace fdma
