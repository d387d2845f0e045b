#include "commands/mask_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cli/progress.hpp"
#include "fdma/formats/convert.hpp"

namespace fdma::maskc {
namespace {

std::string shape_difference(const MaskShape& a, const MaskShape& b) {
  if (a.num_batches != b.num_batches) {
    return fmt::format("{} against {} batch elements", a.num_batches, b.num_batches);
  }
  if (a.num_heads != b.num_heads) {
    return fmt::format("{} against {} heads", a.num_heads, b.num_heads);
  }
  for (std::int64_t i = 0; i < a.num_batches; ++i) {
    if (a.q_len(i) == b.q_len(i) && a.kv_len(i) == b.kv_len(i)) continue;
    return fmt::format("lengths {} x {} against {} x {} in batch element {}", a.q_len(i),
                       a.kv_len(i), b.q_len(i), b.kv_len(i), i);
  }
  return {};
}

TileClass class_of(std::span<const TileSegment> segments, std::int32_t tile) {
  for (const TileSegment& segment : segments) {
    if (segment.first_tile <= tile && tile < segment.end_tile) {
      return segment.kind == SegmentKind::full ? TileClass::full : TileClass::partial;
    }
  }
  return TileClass::empty;
}

// Counts the cells in each tile of one tile row. Adding an interval takes O(1).
class TileTally {
 public:
  TileTally(std::int32_t num_tiles, std::int32_t block_kv)
      : block_kv_(block_kv),
        edges_(static_cast<std::size_t>(num_tiles) + 1),
        runs_(static_cast<std::size_t>(num_tiles) + 1) {}

  void add(std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin / block_kv_;
    const std::int64_t last = (end - 1) / block_kv_;
    if (first == last) {
      edges_[static_cast<std::size_t>(first)] += end - begin;
      return;
    }
    edges_[static_cast<std::size_t>(first)] += (first + 1) * block_kv_ - begin;
    edges_[static_cast<std::size_t>(last)] += end - last * block_kv_;
    runs_[static_cast<std::size_t>(first + 1)] += block_kv_;
    runs_[static_cast<std::size_t>(last)] -= block_kv_;
  }
  /// Turns the added intervals into cells per tile.
  const std::vector<std::int64_t>& finish() {
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      covered += runs_[i];
      edges_[i] += covered;
    }
    return edges_;
  }
  void clear() {
    std::fill(edges_.begin(), edges_.end(), 0);
    std::fill(runs_.begin(), runs_.end(), 0);
  }

 private:
  std::int64_t block_kv_;
  std::vector<std::int64_t> edges_;
  std::vector<std::int64_t> runs_;
};

// Calls visit(begin, end, is_in_a) for every maximal run of keys that exactly one of the two rows
// has, in ascending order.
template <class Visit>
void for_each_difference(std::span<const Interval> a, std::span<const Interval> b, Visit visit) {
  std::size_t i = 0;  // borders passed in a: interval i / 2, its begin or its end
  std::size_t j = 0;
  std::int64_t from = 0;
  const auto border = [](std::span<const Interval> row, std::size_t at) -> std::int64_t {
    if (at / 2 >= row.size()) return std::numeric_limits<std::int64_t>::max();
    return at % 2 == 0 ? row[at / 2].begin : row[at / 2].end;
  };
  while (i / 2 < a.size() || j / 2 < b.size()) {
    const std::int64_t next = std::min(border(a, i), border(b, j));
    const bool in_a = i % 2 != 0;
    if (in_a != (j % 2 != 0) && next > from) visit(from, next, in_a);
    from = next;
    if (border(a, i) == next) ++i;
    if (border(b, j) == next) ++j;
  }
}

struct Pair {
  std::int64_t batch, head, num_pairs;
};

class Comparison {
 public:
  Comparison(MaskDifference& difference, std::size_t max_listed, Progress& progress)
      : difference_(difference), max_listed_(max_listed), progress_(progress) {}

  void compare(const SegmentMask& a, const SegmentMask& b, const Pair& pair) {
    if (a == b) return;  // both are canonical, so equal cells give equal arrays
    TileTally tally_a(a.num_tile_cols(), a.block.block_kv);
    TileTally tally_b(a.num_tile_cols(), a.block.block_kv);
    std::vector<Interval> row_a;
    std::vector<Interval> row_b;
    for (std::int32_t tile_row = 0; tile_row < a.num_tile_rows(); ++tile_row) {
      const std::int64_t begin = std::int64_t{tile_row} * a.block.block_q;
      const std::int64_t end = std::min<std::int64_t>(begin + a.block.block_q, a.q_len);
      bool differs = false;
      for (std::int64_t q = begin; q < end; ++q) {
        row_intervals_of(a, q, row_a);
        row_intervals_of(b, q, row_b);
        for_each_difference(row_a, row_b, [&](std::int64_t from, std::int64_t to, bool in_a) {
          differs = true;
          (in_a ? tally_a : tally_b).add(from, to);
          for (std::int64_t k = from; k < to && difference_.cells.size() < max_listed_; ++k) {
            difference_.cells.push_back({pair.batch, pair.head, q, k, in_a});
          }
        });
      }
      progress_.update(end, a.q_len);
      if (!differs) continue;
      take_tiles(a, b, tile_row, tally_a.finish(), tally_b.finish(), pair);
      tally_a.clear();
      tally_b.clear();
    }
  }

 private:
  void take_tiles(const SegmentMask& a, const SegmentMask& b, std::int32_t tile_row,
                  const std::vector<std::int64_t>& only_a, const std::vector<std::int64_t>& only_b,
                  const Pair& pair) {
    const std::vector<TileSegment> segments_a = segments_of_row(a, tile_row);
    const std::vector<TileSegment> segments_b = segments_of_row(b, tile_row);
    for (std::int32_t tile = 0; tile < a.num_tile_cols(); ++tile) {
      const std::int64_t in_a = only_a[static_cast<std::size_t>(tile)];
      const std::int64_t in_b = only_b[static_cast<std::size_t>(tile)];
      if (in_a == 0 && in_b == 0) continue;
      difference_.only_in_a += pair.num_pairs * in_a;
      difference_.only_in_b += pair.num_pairs * in_b;
      difference_.num_tiles += pair.num_pairs;
      if (difference_.tiles.size() >= max_listed_) continue;
      const std::int64_t q = std::int64_t{tile_row} * a.block.block_q;
      const std::int64_t k = std::int64_t{tile} * a.block.block_kv;
      difference_.tiles.push_back(
          {pair.batch, pair.head, pair.num_pairs, tile_row, tile, q,
           std::min(q + a.block.block_q, a.q_len), k, std::min(k + a.block.block_kv, a.kv_len),
           class_of(segments_a, tile), class_of(segments_b, tile), in_a, in_b});
    }
  }

  MaskDifference& difference_;
  std::size_t max_listed_;
  Progress& progress_;
};

}  // namespace

std::string_view to_string(TileClass tile_class) {
  switch (tile_class) {
    case TileClass::empty:
      return "empty";
    case TileClass::partial:
      return "partial";
    case TileClass::full:
      return "full";
  }
  return "empty";
}

MaskDifference compare(const BlockMask& a, const BlockMask& b, BlockShape block,
                       std::size_t max_listed, Progress& progress) {
  MaskDifference difference;
  difference.block = block;
  difference.shape_reason = shape_difference(a.shape, b.shape);
  if (!difference.shape_reason.empty()) return difference;
  // Two groups that meet in many (batch, head) pairs are compared only once.
  std::vector<std::pair<std::pair<std::int32_t, std::int32_t>, Pair>> meetings;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> index;
  for (std::int64_t batch = 0; batch < a.shape.num_batches; ++batch) {
    for (std::int64_t head = 0; head < a.shape.num_heads; ++head) {
      const std::pair groups{a.group(batch, head), b.group(batch, head)};
      const auto [found, is_new] = index.emplace(groups, meetings.size());
      if (is_new) meetings.push_back({groups, Pair{batch, head, 0}});
      ++meetings[found->second].second.num_pairs;
    }
  }
  Comparison comparison(difference, max_listed, progress);
  for (const auto& [groups, pair] : meetings) {
    comparison.compare(segment_of_group(a, groups.first, block),
                       segment_of_group(b, groups.second, block), pair);
  }
  return difference;
}

}  // namespace fdma::maskc
