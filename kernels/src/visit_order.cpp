#include "visit_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "fdma/kernels/segment_iterator.hpp"

namespace fdma {
namespace {}  // namespace

Result<VisitOrder> visit_order(const AttentionPlan& plan) {
  const AttentionShape& shape = plan.shape;
  const auto group_size = static_cast<std::size_t>(shape.group_size());
  const std::size_t num_units = plan.items.size() / group_size;

  // As many as share the cache: what the units that add to a tile read and add to is there still.
  const std::int64_t heads_at_once = std::max(plan.section_heads, 1);
  struct Key {
    std::int64_t section;
    std::int32_t key_tile;
  };
  std::vector<Key> keys;
  keys.reserve(num_units);
  std::int64_t num_visits = 0;
  for (std::size_t u = 0; u < num_units; ++u) {
    const WorkItem& item = plan.items[u * group_size];
    const std::int64_t kv =
        std::int64_t{item.batch} * shape.heads_kv + item.head / shape.group_size();
    keys.push_back({kv / heads_at_once, item.q_tile});
    for (std::size_t i = 0; i < group_size; ++i) {
      num_visits += plan.items[u * group_size + i].num_tiles;
    }
  }
  if (num_visits > std::numeric_limits<std::int32_t>::max()) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("deterministic: the plan visits {} tiles, at most 2^31 - 1 can be ranked",
                    num_visits)};
  }

  VisitOrder order;
  order.units.resize(num_units);
  std::iota(order.units.begin(), order.units.end(), 0);
  std::stable_sort(order.units.begin(), order.units.end(), [&](std::int32_t a, std::int32_t b) {
    const Key& left = keys[static_cast<std::size_t>(a)];
    const Key& right = keys[static_cast<std::size_t>(b)];
    if (left.section != right.section) return left.section < right.section;
    return left.key_tile > right.key_tile;
  });

  const std::int64_t num_q_tiles = ceil_div(shape.max_q_len(), plan.tile.block_q);
  std::vector<std::int32_t> num_before(
      static_cast<std::size_t>(shape.batch * shape.heads_q * num_q_tiles));
  order.first_visits.reserve(num_units);
  order.ranks.reserve(static_cast<std::size_t>(num_visits));
  for (const std::int32_t u : order.units) {
    order.first_visits.push_back(static_cast<std::int32_t>(order.ranks.size()));
    for (std::size_t i = 0; i < group_size; ++i) {
      const WorkItem& item = plan.items[static_cast<std::size_t>(u) * group_size + i];
      const std::int64_t row = (std::int64_t{item.batch} * shape.heads_q + item.head) * num_q_tiles;
      SegmentIterator iterator(plan.segments.data(), item);
      TileStep step;
      while (iterator.next(step)) {
        order.ranks.push_back(num_before[static_cast<std::size_t>(row + step.tile)]++);
      }
    }
  }
  return order;
}

}  // namespace fdma
