// Finds the order of deterministic backward calls, by simulating how long blocks wait in it.
//
// Tile groups that add to the same query tile do so one after the other, in the order in which
// blocks take tile groups. Waits are short if tile groups that come later in the order also come
// later to the tile. There are two ways to achieve that:
//
// - Last key tiles first, each walked from its first query tile up. This is right for keys that are
//   seen from their own position on, because the tile group before always has one tile less to go.
// - First key tiles first, each walked down. This is right where tile groups share their last query
//   tiles, as below a last document that sees everything: all tile groups walk those first, in the
//   order in which they were taken, however long the rest is.
//
// If neither is enough, fewer tile groups of a head at the same time help, and therefore more
// heads. But heads that are computed at the same time share the cache.
//
// The cache matters as well. Q, dO and the fp32 accumulators of dQ of a query tile are read again
// if they have left the cache since the visit before. Long tile groups that begin at different
// times, such as those of the last key tiles, are far apart; walked down together they are not. The
// time that a tile stays in the cache follows from the times between its visits (Denning's working
// set): the tiles that are visited again within this time fill the cache.
//
// So both ways are simulated on the first heads of the plan, with one, two and four times the heads
// that fit in the cache, and the best is taken. Workers take tile groups in their order. A tile's
// dQ is computed in one tile group of time and added when all before it have been added. A block
// keeps one waiting dQ and computes the next. The time in which workers compute and wait until they
// find no more of these heads recurs with all other heads. The rest of the time, until the last
// worker is done, occurs once.
//
// Work tiles of kv worklists are walked up. Those that begin in a segment of queries are in the
// order of WorklistPlace: the first work tile of each head, then the second of each head, and so
// on. Segments are short, so that more heads fit in the cache.
//
// Example: 32,768 tokens, 8 heads, 132 workers. The numbers are the work of workers that never
// wait, divided by simulated time, with one, two and four heads at once. Causal: 1.00, 1.00, 1.00
// up, 0.96, 0.98, 0.99 down. Keys that all queries see, in tile 0, and a window: 0.72, 0.96, 0.99
// up, 0.27, 0.44, 0.55 down. A last document that sees everything: 0.68, 0.81, 0.85 up, 0.71, 0.93,
// 0.97 down.
#include "plan/accumulation_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>

#include "fdma/kernels/segment_iterator.hpp"
#include "plan/backward_dims.hpp"
#include "plan/l2_heads.hpp"
#include "plan/make_kv_worklist.hpp"
#include "plan/worklist_place.hpp"

namespace fdma {
namespace {

// Measured on an H200, causal, 32,768 tokens: 42.5, 45.5 and 53 ms with one, two and four heads.
constexpr double kCostOfTwiceTheHeads = 1.03;
constexpr int kMostTimesTheHeads = 4;
// Walking down must gain more than the possible error of the simulation.
constexpr double kCostOfWalkingDown = 1.03;
constexpr std::int64_t kMaxSimulatedPositions = std::int64_t{1} << 22;
// In tile groups of a tile's time: beginning a tile group; the delay until others see an addition;
// the time that a dQ waits at no cost.
constexpr double kTileGroupCost = 1.0, kWaitCost = 0.5, kSlack = 0.5;
// Below this head size a tile takes less time and an addition the same. Measured on an H200 with
// head_dim 64, 32,768 tokens, 8 heads: two heads up and down, causal, 5.68 and 6.21 ms; documents
// with two, four and eight heads up, 1.67, 1.51 and 1.38 ms.
constexpr double kDimOfWaitCost = 128;
constexpr int kLongestStay = 4096;  // longest stay that is counted exactly
constexpr int kGapsOfTile = 4;
// Mean cost of a visit whose tile has left the cache, in tile groups of a tile's time. Tile groups
// that read from memory wait for it, and the tile groups behind them come close enough to find it
// in the cache. Measured on an H200, causal, 131,072 tokens, 8 heads: 199 ms up, where 84 % of
// visits miss, and 163 ms down, where hardly any does; 4 heads up read 85 GB of memory, and 2.5 GB
// in no order.
constexpr double kCostOfReading = 0.25;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// The tile groups of a plan of segments. Rows number query heads.
class WorkTileGroups {
 public:
  WorkTileGroups(const PlanHeader& header, const SegmentPlan& plan)
      : header_(header), plan_(plan) {}

  std::int64_t num_units() const {
    return static_cast<std::int64_t>(plan_.work_tiles.size()) / header_.shape.group_size();
  }
  std::int64_t num_rows() const { return header_.shape.batch * header_.shape.heads_q; }
  std::int64_t kv_row(std::int32_t tile_group) const {
    const WorkTile& work_tile = first_work_tile(tile_group);
    return std::int64_t{work_tile.batch} * header_.shape.heads_kv +
           work_tile.head / header_.shape.group_size();
  }
  // Among the heads that are computed at the same time, tile groups with the least value come
  // first.
  auto place(std::int32_t tile_group, bool is_down) const {
    const std::int32_t tile = first_work_tile(tile_group).q_tile;
    return is_down ? tile : -tile;
  }
  std::int64_t num_positions() const {
    std::int64_t sum = 0;
    for (const WorkTile& work_tile : plan_.work_tiles) sum += work_tile.num_tiles;
    return sum;
  }
  std::int64_t heads_in_cache() const { return heads_in_l2(header_, PlanOptions().l2_bytes); }
  int num_passes() const { return 1; }
  static constexpr bool kMayWalkDown = true;

  // Calls visit(row, tile) for each visit of a tile group, in order.
  template <class Visit>
  void for_each_visit(std::int32_t tile_group, bool is_down, const Visit& visit) const {
    const PlanSegment* segments = plan_.segments.data();
    const WorkTile* const first = &first_work_tile(tile_group);
    for (const WorkTile* work_tile = first; work_tile < first + header_.shape.group_size();
         ++work_tile) {
      const std::int64_t row =
          std::int64_t{work_tile->batch} * header_.shape.heads_q + work_tile->head;
      TileStep step;
      EitherWayIterator it(segments, *work_tile, is_down);
      while (it.next(step, is_down, plan_.pattern_arrays())) visit(row, step.tile);
    }
  }

 private:
  const WorkTile& first_work_tile(std::int32_t tile_group) const {
    return plan_.work_tiles[at(std::int64_t{tile_group} * header_.shape.group_size())];
  }

  const PlanHeader& header_;
  const SegmentPlan& plan_;
};

// The tile groups of a kv worklist. Rows number query heads. A tile group visits the row of the
// first query head of a KV head for all of them, and walks its tiles once for each, in as many
// passes.
class WorklistTileGroups {
 public:
  WorklistTileGroups(const PlanHeader& header, const KvWorklist& lists)
      : header_(header), lists_(lists), segment_(worklist_segment(header.shape, lists)) {
    const std::int64_t num_segments =
        ceil_div(header.shape.max_q_len(), std::int64_t{segment_} * kWorklistTile);
    std::vector<std::int32_t> num_before(at(num_rows() * num_segments));
    std::vector<std::int32_t> tile_groups(at(num_units()));
    std::iota(tile_groups.begin(), tile_groups.end(), 0);
    const auto place_of = [&](std::int32_t tile_group) {
      return WorklistPlace{work_tile(tile_group).begin_tile, work_tile(tile_group).end_tile,
                           work_tile(tile_group).key_tile};
    };
    std::stable_sort(tile_groups.begin(), tile_groups.end(),
                     [&](std::int32_t a, std::int32_t b) { return place_of(a) < place_of(b); });
    places_.resize(tile_groups.size());
    for (const std::int32_t tile_group : tile_groups) {
      const std::int64_t segment = work_tile(tile_group).begin_tile / segment_;
      places_[at(tile_group)] = num_before[at(kv_row(tile_group) * num_segments + segment)]++;
    }
  }

  std::int64_t num_units() const { return static_cast<std::int64_t>(lists_.work_tiles.size()); }
  std::int64_t num_rows() const { return header_.shape.batch * header_.shape.heads_q; }
  std::int64_t kv_row(std::int32_t tile_group) const {
    return std::int64_t{work_tile(tile_group).batch} * header_.shape.heads_kv +
           work_tile(tile_group).kv_head;
  }
  auto place(std::int32_t tile_group, bool /*is_down*/) const {
    return std::tuple(work_tile(tile_group).begin_tile / segment_, places_[at(tile_group)]);
  }
  std::int64_t num_positions() const {
    std::int64_t sum = 0;
    for (const KvWorkTile& each : lists_.work_tiles) sum += each.end_tile - each.begin_tile;
    return sum;
  }
  std::int64_t heads_in_cache() const {
    const std::int64_t head_bytes = std::int64_t{segment_} * kWorklistTile * column_bytes(header_);
    return std::max<std::int64_t>(1, PlanOptions().l2_bytes / head_bytes);
  }
  int num_passes() const { return header_.shape.group_size(); }
  static constexpr bool kMayWalkDown = false;

  template <class Visit>
  void for_each_visit(std::int32_t tile_group, bool /*is_down*/, const Visit& visit) const {
    const std::int64_t row = kv_row(tile_group) * num_passes();
    for (std::int32_t tile = work_tile(tile_group).begin_tile;
         tile < work_tile(tile_group).end_tile; ++tile) {
      visit(row, tile);
    }
  }

 private:
  const KvWorkTile& work_tile(std::int32_t tile_group) const {
    return lists_.work_tiles[at(tile_group)];
  }

  const PlanHeader& header_;
  const KvWorklist& lists_;
  std::int32_t segment_;
  std::vector<std::int32_t> places_;  // of each work tile among those of its head and segment
};

// Finds the order of tile groups, given how the tile groups of several heads interleave.
template <class TileGroups>
class OrderSearch {
 public:
  template <class Form>
  OrderSearch(const PlanHeader& header, const Form& form, int num_workers)
      : tile_groups_(header, form),
        num_q_tiles_(ceil_div(header.shape.max_q_len(), std::int64_t{header.tile.block_q})),
        num_heads_(header.shape.batch * header.shape.heads_kv),
        rows_of_head_(num_heads_ > 0 ? tile_groups_.num_rows() / num_heads_ : 0),
        tiles_in_cache_(static_cast<double>(PlanOptions().l2_bytes * rows_of_head_) /
                        static_cast<double>(column_bytes(header) * header.tile.block_q)),
        wait_cost_(kWaitCost * std::max(1.0, kDimOfWaitCost / sm90::backward_dim(header.shape))),
        num_workers_(num_workers) {}

  Result<AccumulationOrder> run() const {
    const std::int64_t num_positions = tile_groups_.num_positions();
    if (num_positions > std::numeric_limits<std::int32_t>::max()) {
      return Error{
          ErrorCode::unsupported,
          fmt::format("deterministic: the plan visits {} tiles, at most 2^31 - 1 can be ranked",
                      num_positions)};
    }
    if (tile_groups_.num_units() == 0) return AccumulationOrder();
    AccumulationOrder order = best_permutation(num_positions);
    std::vector<std::int32_t> num_before(at(tile_groups_.num_rows() * num_q_tiles_));
    order.first_positions.reserve(order.tile_groups.size());
    order.positions.reserve(at(num_positions));
    for (const std::int32_t tile_group : order.tile_groups) {
      order.first_positions.push_back(static_cast<std::int32_t>(order.positions.size()));
      tile_groups_.for_each_visit(
          tile_group, order.walks_down, [&](std::int64_t row, std::int32_t tile) {
            order.positions.push_back(num_before[at(row * num_q_tiles_ + tile)]++);
          });
    }
    return Result<AccumulationOrder>(std::move(order));
  }

 private:
  AccumulationOrder ordered(std::int64_t heads_at_once, bool is_down) const {
    AccumulationOrder order;
    order.walks_down = is_down;
    order.tile_groups.resize(at(tile_groups_.num_units()));
    std::iota(order.tile_groups.begin(), order.tile_groups.end(), 0);
    const auto key_of = [&](std::int32_t tile_group) {
      return std::tuple(tile_groups_.kv_row(tile_group) / heads_at_once,
                        tile_groups_.place(tile_group, is_down));
    };
    std::stable_sort(order.tile_groups.begin(), order.tile_groups.end(),
                     [&](std::int32_t a, std::int32_t b) { return key_of(a) < key_of(b); });
    return order;
  }

  // Time that workers take for the tile groups of `num_heads` KV heads out of many, simulated on
  // the first ones.
  double simulated_time(const AccumulationOrder& order, std::int64_t num_heads) const {
    // For each query tile: when the next addition may be made.
    std::vector<double> dq_semaphores(at(num_heads * rows_of_head_ * num_q_tiles_));
    // Histogram of times between visits of a tile, in fractions of a tile's time.
    std::vector<std::int64_t> gaps(kLongestStay * kGapsOfTile);
    std::priority_queue<double, std::vector<double>, std::greater<>> workers(
        std::greater<>(), std::vector<double>(static_cast<std::size_t>(num_workers_)));
    double end = 0, work = 0;
    for (const std::int32_t tile_group : order.tile_groups) {
      if (tile_groups_.kv_row(tile_group) >= num_heads) continue;
      const double begin = workers.top();
      double computed = begin + kTileGroupCost, added = 0;
      workers.pop();
      for (int pass = 0; pass < tile_groups_.num_passes(); ++pass) {
        tile_groups_.for_each_visit(
            tile_group, order.walks_down, [&](std::int64_t row, std::int32_t tile) {
              double& dq_position = dq_semaphores[at((row + pass) * num_q_tiles_ + tile)];
              computed = std::max(computed + 1, added + kSlack);
              added = std::max(computed, dq_position);
              if (dq_position > 0) {
                const double gap = kGapsOfTile * (added - dq_position + wait_cost_);
                ++gaps[std::min(static_cast<std::size_t>(gap), gaps.size() - 1)];
              }
              dq_position = added + wait_cost_;
            });
      }
      const double done = std::max(computed, added);
      workers.push(done);
      work += done - begin;
      end = std::max(end, done);
    }
    work /= num_workers_;
    const double share = static_cast<double>(num_heads) / static_cast<double>(num_heads_);
    return work + kCostOfReading * num_read_again(gaps, work) / num_workers_ + share * (end - work);
  }

  // Number of visits that come later after the visit before than a tile stays in the cache.
  double num_read_again(const std::vector<std::int64_t>& gaps, double time) const {
    auto num_longer = static_cast<double>(std::accumulate(gaps.begin(), gaps.end(), 0LL));
    double num_tiles = 0;  // tiles that are visited again within the stay
    for (std::size_t stay = 0; stay < gaps.size() && num_tiles < tiles_in_cache_; ++stay) {
      num_longer -= static_cast<double>(gaps[stay]);
      num_tiles += num_longer / (time * kGapsOfTile);
    }
    return num_longer;
  }

  AccumulationOrder best_permutation(std::int64_t num_positions) const {
    const std::int64_t heads = tile_groups_.heads_in_cache();
    const std::int64_t simulated = std::min(num_heads_, kMostTimesTheHeads * heads);
    const std::int64_t num_steps = num_positions * tile_groups_.num_passes();
    if (num_steps / num_heads_ * simulated > kMaxSimulatedPositions) return ordered(heads, false);
    AccumulationOrder best;
    double least = std::numeric_limits<double>::infinity();
    for (const bool is_down : {false, true}) {
      if (is_down && !TileGroups::kMayWalkDown) continue;
      double cost = is_down ? kCostOfWalkingDown : 1;
      for (std::int64_t times = 1; times <= kMostTimesTheHeads; times *= 2) {
        if (times > 1 && times / 2 * heads >= num_heads_) break;
        AccumulationOrder order = ordered(times * heads, is_down);
        const double time = cost * simulated_time(order, simulated);
        cost *= kCostOfTwiceTheHeads;
        if (time < least) {
          least = time;
          best = std::move(order);
        }
      }
    }
    return best;
  }

  TileGroups tile_groups_;
  std::int64_t num_q_tiles_, num_heads_, rows_of_head_;
  double tiles_in_cache_;
  double wait_cost_;
  int num_workers_;
};

}  // namespace

Result<AccumulationOrder> accumulation_order(const PlanHeader& header, const SegmentPlan& plan,
                                             int num_workers) {
  return OrderSearch<WorkTileGroups>(header, plan, num_workers).run();
}

Result<AccumulationOrder> accumulation_order(const PlanHeader& header, const KvWorklist& lists,
                                             int num_workers) {
  return OrderSearch<WorklistTileGroups>(header, lists, num_workers).run();
}

}  // namespace fdma
