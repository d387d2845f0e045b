// Keys of a forward plan are counted by the tiles of each KV head. Most heads share a mask and with
// it all segments, so a head's list of (segment, step) is looked up among those of the heads before.
//
// Work tiles of a kv worklist follow each other head by head, and each walks its queries from its own
// begin on. Learned top-k of short sequences has a few work tiles for each head. Dozens of heads then
// run at the same time, and their rows of q and dout and sums of dq exceed L2, so that each visit of
// a query tile reads all of it from main memory and writes the sums back.
//
// Example     learned top-k of 8,192 keys, w = 128: 7 work tiles of a head visit its 64 query tiles
//             162 times. 132 work tiles belong to 19 heads, 158 MB of rows: all visits miss L2
// Not worth   random eviction of 8,192 keys: 96 work tiles of a head, 12 MB: all but the first hit
#include "estimate/memory_traffic.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "estimate/work_tile_counts.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "plan/closed_form.hpp"
#include "plan/query_passes.hpp"

namespace fdma {
namespace {

/// Visits of rows that were visited before hit L2 while the rows in use take at most kAllHitBytes,
/// the L2 of an H100 and of an H200, and miss it from kAllMissBytes on. Learned top-k with 32 heads
/// showed both: at 8K (158 MB) every visit missed, at 32K (90 MB) most hit.
constexpr double kAllHitBytes = 50e6;
constexpr double kAllMissBytes = 150e6;

/// The segments of a KV head's work tiles: (first segment, steps into the run).
using SegmentsOfHead = std::vector<std::pair<std::int32_t, std::int32_t>>;

/// Counts the keys that the segments of one KV head read.
class KeysOfHead {
 public:
  KeysOfHead(const PlanHeader& header, const SegmentPlan& plan, std::int64_t kv_len)
      : plan_(plan),
        kv_len_(kv_len),
        block_kv_(header.tile.block_kv),
        changes_(static_cast<std::size_t>(ceil_div(kv_len, block_kv_)) + 1),
        is_listed_(static_cast<std::size_t>(kv_len)) {}

  void add(const WorkTile& work_tile) {
    for (std::int32_t s = work_tile.first_segment;
         s < work_tile.first_segment + work_tile.num_segments; ++s) {
      const PlanSegment& segment = plan_.segments[static_cast<std::size_t>(s)];
      const auto data_index = static_cast<std::size_t>(segment.data_index);
      const std::int32_t first = segment.first_tile + work_tile.step * segment.step_first;
      const std::int32_t end = segment.end_tile + work_tile.step * segment.step_end;
      if (segment.kind == PlanSegmentKind::gather) {
        add_list(plan_.kv_index_lists[data_index]);
      } else if (segment.kind == PlanSegmentKind::pattern) {
        add_range(first, end, changes_of_pattern_[segment.data_index]);
      } else if (segment.kind != PlanSegmentKind::permutation) {
        add_range(first, end, changes_);
      }
    }
  }

  std::int64_t count() {
    add_patterns();
    std::int64_t keys = 0;
    std::int32_t visits = 0;
    for (std::int64_t tile = 0; tile + 1 < static_cast<std::int64_t>(changes_.size()); ++tile) {
      visits += changes_[static_cast<std::size_t>(tile)];
      const std::int64_t begin = tile * block_kv_, end = std::min(begin + block_kv_, kv_len_);
      keys += visits > 0 ? end - begin
                         : std::count(is_listed_.begin() + static_cast<std::ptrdiff_t>(begin),
                                      is_listed_.begin() + static_cast<std::ptrdiff_t>(end), true);
    }
    return keys;
  }

 private:
  static void add_range(std::int32_t first, std::int32_t end, std::vector<std::int32_t>& changes) {
    changes.resize(std::max(changes.size(), static_cast<std::size_t>(end) + 1));
    ++changes[static_cast<std::size_t>(first)];
    --changes[static_cast<std::size_t>(end)];
  }

  // Adds every tile of a pattern that is visited, once.
  void add_patterns() {
    for (const auto& [pattern, changes] : changes_of_pattern_) {
      std::int32_t visits = 0;
      for (std::size_t i = 0; i < changes.size(); ++i) {
        visits += changes[i];
        if (visits == 0) continue;
        TileStep step{PlanSegmentKind::pattern, pattern, static_cast<std::int32_t>(i), 0};
        resolve_pattern(plan_.pattern_arrays(), step);
        add_range(step.tile, step.tile + 1, changes_);
      }
    }
  }

  void add_list(const KvIndexList& list) {
    const auto first = plan_.kv_index_entries.begin() + list.first_entry;
    std::for_each(first, first + list.num_entries, [this](const KvIndexEntry& each) {
      is_listed_[static_cast<std::size_t>(each.key)] = true;
    });
  }

  const SegmentPlan& plan_;
  std::int64_t kv_len_, block_kv_;
  std::vector<std::int32_t> changes_;  // of the number of visits, from a tile on
  std::map<std::int32_t, std::vector<std::int32_t>> changes_of_pattern_;  // in tiles of the pattern
  std::vector<bool> is_listed_;
};

std::int64_t q_rows(const AttentionShape& shape) {
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) rows += shape.q_len(b) * shape.heads_q;
  return rows;
}

std::int64_t kv_rows(const AttentionShape& shape) {
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) rows += shape.kv_len(b) * shape.heads_kv;
  return rows;
}

/// Bytes of a row of K and V, with its bias.
std::int64_t key_bytes(const PlanHeader& header) {
  const AttentionShape& shape = header.shape;
  return std::int64_t{shape.head_dim} * size_bytes(shape.k_dtype) +
         std::int64_t{shape.head_dim_v} * size_bytes(shape.v_dtype) +
         (header.score.key_bias ? size_bytes(DType::float32) : 0);
}

/// Bytes of a row of q and out, of their gradients and of the sums of dq.
struct QueryBytes {
  explicit QueryBytes(const AttentionShape& shape)
      : inputs(std::int64_t{shape.head_dim} * size_bytes(shape.q_dtype) +
               std::int64_t{shape.head_dim_v} * size_bytes(shape.out_dtype)),
        sums(std::int64_t{sm90::backward_dim(shape)} * kFloat),
        unpadded_sums(std::int64_t{shape.head_dim} * kFloat) {}

  static constexpr std::int64_t kFloat = 4;
  std::int64_t inputs;  ///< q and out, or q and dout
  std::int64_t sums;    ///< of a GPU's kernel
  std::int64_t unpadded_sums;
};

/// The query tiles that the work tiles of one KV head visit while they run at the same time.
struct QueryTiles {
  std::int64_t visits = 0;
  std::int64_t different = 0;
};

QueryTiles tiles_of_head(std::vector<Interval>& visits) {
  std::sort(visits.begin(), visits.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  QueryTiles tiles;
  std::int32_t end = 0;
  for (const Interval& each : visits) {
    tiles.visits += each.end - each.begin;
    tiles.different += std::max(each.end - std::max(each.begin, end), 0);
    end = std::max(end, each.end);
  }
  return tiles;
}

/// Bytes of queries that work tiles read and write, `num_workers` of which run at the same time.
double worklist_query_bytes(const PlanHeader& header, const KvWorklist& lists,
                            std::int32_t num_workers) {
  const QueryBytes row(header.shape);
  const std::int64_t tile_rows = std::int64_t{kWorklistTile} * header.shape.group_size();
  const auto in_use = static_cast<double>(tile_rows * (row.inputs + row.sums));
  const auto moved =
      static_cast<double>(tile_rows * (row.inputs + 2 * QueryBytes::kFloat + 2 * row.sums));
  const auto count = static_cast<std::int64_t>(lists.work_tiles.size());
  double bytes = 0;
  for (std::int64_t first = 0; first < count; first += num_workers) {
    QueryTiles tiles;
    std::vector<Interval> of_head;
    const std::int64_t end = std::min(first + num_workers, count);
    for (std::int64_t i = first; i < end; ++i) {
      const KvWorkTile& work_tile = lists.work_tiles[static_cast<std::size_t>(i)];
      of_head.push_back({work_tile.begin_tile, work_tile.end_tile});
      const KvWorkTile& next = lists.work_tiles[static_cast<std::size_t>(std::min(i + 1, end - 1))];
      const bool is_last =
          i + 1 == end || next.batch != work_tile.batch || next.kv_head != work_tile.kv_head;
      if (!is_last) continue;
      const QueryTiles each = tiles_of_head(of_head);
      tiles.visits += each.visits;
      tiles.different += each.different;
      of_head.clear();
    }
    const double misses = logarithmic_share(in_use * static_cast<double>(tiles.different),
                                            kAllHitBytes, kAllMissBytes);
    bytes += moved * (static_cast<double>(tiles.different) +
                      misses * static_cast<double>(tiles.visits - tiles.different));
  }
  return bytes;
}

/// Bytes of keys: every work tile reads the rows of its keys and writes their gradients, or adds to
/// float32 accumulators.
std::int64_t worklist_key_bytes(const PlanHeader& header, const KvWorklist& lists) {
  const std::int64_t accumulators =
      4 * std::int64_t{sm90::backward_dim(header.shape)} * QueryBytes::kFloat;
  std::vector<std::int64_t> of_tile(lists.keys.size() / kWorklistTile);
  for (std::size_t i = 0; i < lists.keys.size(); ++i) {
    const WorklistEntry& each = lists.keys[i];
    if (each.key < 0) continue;
    of_tile[i / kWorklistTile] +=
        key_bytes(header) + (each.accum_row == kNoAccum ? key_bytes(header) : accumulators);
  }
  std::int64_t bytes = 0;
  for (const KvWorkTile& each : lists.work_tiles) {
    bytes += of_tile[static_cast<std::size_t>(each.key_tile)];
  }
  return bytes;
}

std::int64_t forward_bytes(const PlanHeader& header, std::int64_t num_keys) {
  return q_rows(header.shape) * (QueryBytes(header.shape).inputs + QueryBytes::kFloat) +
         num_keys * key_bytes(header);
}

/// A kernel with query passes reads two float32 and adds to the padded sums of each query. Others
/// read every tensor themselves.
std::int64_t backward_bytes(const PlanHeader& header) {
  const QueryBytes row(header.shape);
  const std::int64_t of_query =
      header.backend.traits().has_query_passes
          ? row.inputs + 2 * QueryBytes::kFloat + 2 * row.sums
          : 2 * row.inputs + 2 * QueryBytes::kFloat + 2 * row.unpadded_sums;
  return q_rows(header.shape) * of_query + kv_rows(header.shape) * 2 * key_bytes(header);
}

std::int64_t bytes_of(const PlanHeader& header, const SegmentPlan& plan, std::int32_t /*workers*/) {
  return header.is_backward() ? backward_bytes(header)
                              : forward_bytes(header, keys_read(header, plan));
}

std::int64_t bytes_of(const PlanHeader& header, const ClosedFormPlan& plan,
                      std::int32_t /*workers*/) {
  return header.is_backward() ? backward_bytes(header)
                              : forward_bytes(header, keys_read(header, plan));
}

std::int64_t bytes_of(const PlanHeader& header, const KvWorklist& lists, std::int32_t num_workers) {
  return static_cast<std::int64_t>(worklist_query_bytes(header, lists, num_workers)) +
         worklist_key_bytes(header, lists);
}

}  // namespace

std::int64_t keys_read(const PlanHeader& header, const SegmentPlan& plan) {
  const AttentionShape& shape = header.shape;
  std::vector<SegmentsOfHead> of_heads(static_cast<std::size_t>(shape.batch * shape.heads_kv));
  std::vector<std::vector<std::size_t>> work_tiles_of(of_heads.size());
  for (std::size_t i = 0; i < plan.work_tiles.size(); ++i) {
    const WorkTile& each = plan.work_tiles[i];
    if (each.num_segments == 0) continue;
    const auto row = static_cast<std::size_t>(std::int64_t{each.batch} * shape.heads_kv +
                                              each.head / shape.group_size());
    const std::pair place{each.first_segment, each.step};
    if (!of_heads[row].empty() && of_heads[row].back() == place) continue;  // another part or head
    of_heads[row].push_back(place);
    work_tiles_of[row].push_back(i);
  }
  std::map<std::pair<std::int64_t, SegmentsOfHead>, std::int64_t> known;  // by length and segments
  std::int64_t sum = 0;
  for (std::size_t row = 0; row < of_heads.size(); ++row) {
    if (of_heads[row].empty()) continue;
    const std::int64_t kv_len = shape.kv_len(static_cast<std::int64_t>(row) / shape.heads_kv);
    const auto [at, is_new] = known.try_emplace({kv_len, std::move(of_heads[row])}, 0);
    if (is_new) {
      KeysOfHead keys(header, plan, kv_len);
      for (const std::size_t i : work_tiles_of[row]) keys.add(plan.work_tiles[i]);
      at->second = keys.count();
    }
    sum += at->second;
  }
  return sum;
}

std::int64_t keys_read(const PlanHeader& header, const ClosedFormPlan& plan) {
  const std::int64_t block_kv = header.tile.block_kv;
  std::int64_t sum = 0;
  for (const ClosedFormElement& element : closed_form_elements(header, plan)) {
    std::vector<std::int32_t> changes(
        static_cast<std::size_t>(ceil_div(std::int64_t{element.num_columns}, block_kv)) + 1);
    for (std::int64_t i = 0; i < ceil_div(element.num_rows, header.tile.block_q); ++i) {
      const ClosedFormWalk walk = walk_of(element, header.tile, i);
      for (const int index : {0, 1}) {
        const ClosedFormWalk::TileRun& tiles = walk.tile_run(index);
        if (tiles.first >= tiles.end) continue;
        ++changes[static_cast<std::size_t>(tiles.first)];
        --changes[static_cast<std::size_t>(tiles.end)];
      }
    }
    std::int32_t visits = 0;
    for (std::int64_t tile = 0; tile + 1 < static_cast<std::int64_t>(changes.size()); ++tile) {
      visits += changes[static_cast<std::size_t>(tile)];
      if (visits == 0) continue;
      sum += header.shape.heads_kv *
             (std::min((tile + 1) * block_kv, std::int64_t{element.num_columns}) - tile * block_kv);
    }
  }
  return sum;
}

std::int64_t bias_bytes(const PlanHeader& header, std::int64_t num_cells) {
  if (!header.score.bias) return 0;
  const AttentionShape& shape = header.shape;
  std::int64_t elements = num_cells;
  for (std::int64_t b = 0; header.is_backward() && b < shape.batch; ++b) {
    elements += shape.heads_q * shape.q_len(b) * shape.kv_len(b);
  }
  return elements * size_bytes(shape.q_dtype);
}

std::int64_t work_tile_bytes(const AttentionPlan& plan, std::int32_t num_workers) {
  return plan.size_bytes() +
         std::visit([&](const auto& form) { return bytes_of(plan, form, num_workers); }, plan.form);
}

}  // namespace fdma
