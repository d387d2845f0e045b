#include "backend/worklist_cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "plan/make_kv_worklist.hpp"
#include "plan/plan_forms.hpp"

namespace fdma::testing {
namespace {

// Counts, for each cell of one KV head, the work tiles that have it.
class HeadCells {
 public:
  HeadCells(std::int64_t q_len, std::int64_t kv_len)
      : kv_len_(kv_len), counts_(static_cast<std::size_t>(q_len * kv_len)) {}

  void add(std::int64_t q, std::int64_t k) { ++counts_[static_cast<std::size_t>(q * kv_len_ + k)]; }
  int count(std::int64_t q, std::int64_t k) const {
    return counts_[static_cast<std::size_t>(q * kv_len_ + k)];
  }

 private:
  std::int64_t kv_len_;
  std::vector<unsigned char> counts_;
};

}  // namespace

std::string check_worklist_plan(const AttentionPlan& plan, const MaskCase& expected) {
  const AttentionShape& shape = plan.shape;
  const KvWorklist& lists = worklist_of(plan);
  std::vector<HeadCells> heads;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int32_t kv = 0; kv < shape.heads_kv; ++kv) {
      heads.emplace_back(shape.q_len(b), shape.kv_len(b));
    }
  }
  std::map<std::pair<std::int32_t, std::int32_t>, int> work_tiles_of_key;  // key: KV head, key
  std::set<std::pair<std::int32_t, std::int32_t>> summed;
  std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t> previous{-1, 0, 0, 0};
  const std::int32_t segment = worklist_segment(shape, lists);
  for (std::size_t i = 0; i < lists.work_tiles.size(); ++i) {
    const KvWorkTile& work_tile = lists.work_tiles[i];
    const std::string where = fmt::format("{}: work tile {}: ", expected.name, i);
    const std::int32_t kv_row = work_tile.batch * shape.heads_kv + work_tile.kv_head;
    const std::tuple order{kv_row, work_tile.begin_tile / segment,
                           -std::min(work_tile.end_tile - work_tile.begin_tile, segment),
                           work_tile.key_tile};
    if (order <= previous) return where + "is not in order";
    previous = order;
    for (std::int32_t k = 0; k < kWorklistTile; ++k) {
      const WorklistEntry& each =
          lists.keys[static_cast<std::size_t>(work_tile.key_tile) * kWorklistTile +
                     static_cast<size_t>(k)];
      if (each.key < 0) continue;
      ++work_tiles_of_key[{kv_row, each.key}];
      if (work_tile.first_accum_row >= 0 && each.accum_row >= 0) summed.insert({kv_row, each.key});
      const std::int32_t begin = std::max(each.q_begin, work_tile.begin_tile * kWorklistTile);
      const std::int32_t end = std::min(each.q_end, work_tile.end_tile * kWorklistTile);
      for (std::int32_t q = begin; q < end; ++q) {
        heads[static_cast<std::size_t>(kv_row)].add(q, each.key);
      }
    }
  }
  for (const auto& [key, count] : work_tiles_of_key) {
    if (count > 1 && summed.count(key) == 0) {
      return fmt::format("{}: key {} has {} work tiles and no accumulator row", expected.name,
                         key.second, count);
    }
  }
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads_q; ++h) {
      const Cells& cells = expected.at(b, h);
      const HeadCells& got =
          heads[static_cast<std::size_t>(b * shape.heads_kv + h / shape.group_size())];
      for (std::int64_t q = 0; q < shape.q_len(b); ++q) {
        for (std::int64_t k = 0; k < shape.kv_len(b); ++k) {
          if (got.count(q, k) == (cells.get(q, k) != 0 ? 1 : 0)) continue;
          return fmt::format("{}: cell ({}, {}) of batch {} head {} is {} times in the lists",
                             expected.name, q, k, b, h, got.count(q, k));
        }
      }
    }
  }
  return {};
}

}  // namespace fdma::testing
