// The order of deterministic backward calls, and how long they wait in it.
//
// Units that add to the same query tile do so one after the other, in the order in which blocks
// take units. Nobody waits long if units that come later in the order also come later to the tile:
// with the last key tiles first that is so for keys that are seen from their own position on. Where
// it is not (keys that all queries see, a last document that sees everything), fewer units of a
// head at the same time, hence more heads, are the remedy; but heads that are computed side by side
// share the cache.
//
// So orders of one, two and four times the heads that fit in the cache are simulated on the first
// heads of the plan, and the best is taken. Workers take units in their order; a tile's dQ is
// computed in one unit of time, and added when all before it have been. A block keeps one dQ that
// waits, and computes the next.
//
// Example: 32,768 tokens, 32 heads, 132 workers. Causal: the work of 132 idle-free workers takes
// 0.98 of the simulated time with one head at once. Keys that all queries see, in tile 0, and a
// window: 0.83 with one head, 0.97 with four.
#include "visit_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>

#include "fdma/kernels/segment_iterator.hpp"
#include "plan_sections.hpp"

namespace fdma {
namespace {

// By measurement on an H200: causal, 32,768 tokens, 42.5, 45.5 and 53 ms with one, two and four
// heads.
constexpr double kCostOfTwiceTheHeads = 1.03;
constexpr int kMostTimesTheHeads = 4;
constexpr std::int64_t kMaxSimulatedVisits = std::int64_t{1} << 22;
// In times of a tile: beginning a unit; until others see an addition; that a dQ waits at no cost.
constexpr double kUnitCost = 1.0, kTurnCost = 0.5, kSlack = 0.5;

struct Unit {
  std::int64_t kv;  // batch * heads_kv + kv head
  std::int32_t key_tile;
};

std::vector<Unit> units_of(const AttentionPlan& plan) {
  const AttentionShape& shape = plan.shape;
  const auto group_size = static_cast<std::size_t>(shape.group_size());
  std::vector<Unit> units;
  units.reserve(plan.items.size() / group_size);
  for (std::size_t i = 0; i < plan.items.size(); i += group_size) {
    const WorkItem& item = plan.items[i];
    units.push_back(
        {std::int64_t{item.batch} * shape.heads_kv + item.head / shape.group_size(), item.q_tile});
  }
  return units;
}

// Units of so many heads lie side by side, of these the last key tiles first.
std::vector<std::int32_t> ordered(const std::vector<Unit>& units, std::int64_t heads_at_once) {
  std::vector<std::int32_t> order(units.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const Unit& left = units[static_cast<std::size_t>(a)];
    const Unit& right = units[static_cast<std::size_t>(b)];
    const std::int64_t section = left.kv / heads_at_once, other = right.kv / heads_at_once;
    return section != other ? section < other : left.key_tile > right.key_tile;
  });
  return order;
}

// Calls visit(row, tile) for each visit of unit u in turn; row numbers query heads.
template <class Visit>
void for_each_visit(const AttentionPlan& plan, std::int32_t u, const Visit& visit) {
  const AttentionShape& shape = plan.shape;
  for (std::int32_t i = 0; i < shape.group_size(); ++i) {
    const WorkItem& item =
        plan.items[static_cast<std::size_t>(u) * static_cast<std::size_t>(shape.group_size()) +
                   static_cast<std::size_t>(i)];
    SegmentIterator iterator(plan.segments.data(), item);
    TileStep step;
    while (iterator.next(step)) {
      visit(std::int64_t{item.batch} * shape.heads_q + item.head, step.tile);
    }
  }
}

// When the last worker is done with the units of the first `num_heads` KV heads.
double simulated_time(const AttentionPlan& plan, const std::vector<Unit>& units,
                      const std::vector<std::int32_t>& order, std::int64_t num_heads,
                      int num_workers) {
  const std::int64_t num_q_tiles = ceil_div(plan.shape.max_q_len(), plan.tile.block_q);
  // Of each query tile: when the addition after those so far may be made.
  std::vector<double> turns(
      static_cast<std::size_t>(num_heads * plan.shape.group_size() * num_q_tiles));
  std::priority_queue<double, std::vector<double>, std::greater<>> workers(
      std::greater<>(), std::vector<double>(static_cast<std::size_t>(num_workers)));
  double end = 0;
  for (const std::int32_t u : order) {
    if (units[static_cast<std::size_t>(u)].kv >= num_heads) continue;
    double computed = workers.top() + kUnitCost, added = 0;
    workers.pop();
    for_each_visit(plan, u, [&](std::int64_t row, std::int32_t tile) {
      double& turn = turns[static_cast<std::size_t>(row * num_q_tiles + tile)];
      computed = std::max(computed + 1, added + kSlack);
      added = std::max(computed, turn);
      turn = added + kTurnCost;
    });
    workers.push(std::max(computed, added));
    end = std::max({end, computed, added});
  }
  return end;
}

std::vector<std::int32_t> best_order(const AttentionPlan& plan, const std::vector<Unit>& units,
                                     std::int64_t num_visits, int num_workers) {
  const std::int64_t num_heads = plan.shape.batch * plan.shape.heads_kv;
  const std::int64_t heads = section_heads(plan, PlanOptions().section_bytes);
  std::vector<std::int32_t> best = ordered(units, heads);
  const std::int64_t simulated = std::min(num_heads, kMostTimesTheHeads * heads);
  if (simulated == heads || num_visits / num_heads * simulated > kMaxSimulatedVisits) return best;
  double least = simulated_time(plan, units, best, simulated, num_workers);
  double cost = kCostOfTwiceTheHeads;
  for (std::int64_t times = 2; times <= kMostTimesTheHeads; times *= 2) {
    std::vector<std::int32_t> order = ordered(units, times * heads);
    const double time = cost * simulated_time(plan, units, order, simulated, num_workers);
    cost *= kCostOfTwiceTheHeads;
    if (time < least) {
      least = time;
      best = std::move(order);
    }
  }
  return best;
}

}  // namespace

Result<VisitOrder> visit_order(const AttentionPlan& plan, int num_workers) {
  const AttentionShape& shape = plan.shape;
  std::int64_t num_visits = 0;
  for (const WorkItem& item : plan.items) num_visits += item.num_tiles;
  if (num_visits > std::numeric_limits<std::int32_t>::max()) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("deterministic: the plan visits {} tiles, at most 2^31 - 1 can be ranked",
                    num_visits)};
  }
  const std::vector<Unit> units = units_of(plan);
  VisitOrder order;
  if (units.empty()) return order;
  order.units = best_order(plan, units, num_visits, num_workers);

  const std::int64_t num_q_tiles = ceil_div(shape.max_q_len(), plan.tile.block_q);
  std::vector<std::int32_t> num_before(
      static_cast<std::size_t>(shape.batch * shape.heads_q * num_q_tiles));
  order.first_visits.reserve(units.size());
  order.ranks.reserve(static_cast<std::size_t>(num_visits));
  for (const std::int32_t u : order.units) {
    order.first_visits.push_back(static_cast<std::int32_t>(order.ranks.size()));
    for_each_visit(plan, u, [&](std::int64_t row, std::int32_t tile) {
      order.ranks.push_back(num_before[static_cast<std::size_t>(row * num_q_tiles + tile)]++);
    });
  }
  return order;
}

}  // namespace fdma
