// Validates kv worklists: no entry leads outside an array, and no gradient is written by two work
// tiles. The tests of the planner check that the cells are those of the mask, each once.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "plan/forms.hpp"
#include "plan/make_kv_worklist.hpp"

namespace fdma {
namespace {

Error wrong(std::string message) { return Error{ErrorCode::internal, std::move(message)}; }

class ListChecker {
 public:
  ListChecker(const PlanHeader& header, const KvWorklist& lists) : header_(header), lists_(lists) {}

  Result<void> run() {
    if (!header_.backend.traits().has_kv_worklists || !header_.is_backward()) {
      return wrong("kv_worklist: expected a backward plan of a backend that has them");
    }
    if (lists_.keys.size() % static_cast<std::size_t>(kWorklistTile) != 0) {
      return wrong(fmt::format("kv_worklist.keys: {} is no multiple of {}", lists_.keys.size(),
                               kWorklistTile));
    }
    FDMA_TRY_VOID(check_keys());
    for (std::size_t i = 0; i < lists_.work_tiles.size(); ++i) FDMA_TRY_VOID(check_work_tile(i));
    FDMA_TRY_VOID(check_parts());
    if (count_kv_worklist(header_.shape, lists_) != header_.counts) {
      return wrong("counts: they differ from those of the lists");
    }
    return {};
  }

 private:
  Result<void> check_keys() const {
    const std::int64_t q_len = header_.shape.max_q_len(), kv_len = header_.shape.max_kv_len();
    for (std::size_t i = 0; i < lists_.keys.size(); ++i) {
      const WorklistEntry& each = lists_.keys[i];
      const bool is_padding = each == WorklistEntry{-1, 0, 0, kNoAccum};
      if (is_padding || (each.key >= 0 && each.key < kv_len && each.q_begin >= 0 &&
                         each.q_begin < each.q_end && each.q_end <= q_len)) {
        continue;
      }
      return wrong(fmt::format("kv_worklist.keys[{}]: key {} of {}, queries [{}, {}) of {}", i,
                               each.key, kv_len, each.q_begin, each.q_end, q_len));
    }
    return {};
  }

  Result<void> check_work_tile(std::size_t index) {
    const KvWorkTile& work_tile = lists_.work_tiles[index];
    const AttentionShape& shape = header_.shape;
    const auto fail = [index](const std::string& message) {
      return wrong(fmt::format("kv_worklist.work_tiles[{}]: {}", index, message));
    };
    if (work_tile.batch < 0 || work_tile.batch >= shape.batch || work_tile.kv_head < 0 ||
        work_tile.kv_head >= shape.heads_kv || work_tile.key_tile < 0 ||
        work_tile.key_tile >= static_cast<std::int64_t>(lists_.keys.size()) / kWorklistTile) {
      return fail(fmt::format("batch {} kv_head {} key_tile {} is outside the shape",
                              work_tile.batch, work_tile.kv_head, work_tile.key_tile));
    }
    const std::int64_t q_len = shape.q_len(work_tile.batch), kv_len = shape.kv_len(work_tile.batch);
    if (work_tile.begin_tile < 0 || work_tile.begin_tile >= work_tile.end_tile ||
        work_tile.end_tile > ceil_div(q_len, kWorklistTile) ||
        work_tile.full_begin < work_tile.begin_tile || work_tile.full_begin > work_tile.full_end ||
        work_tile.full_end > work_tile.end_tile) {
      return fail(fmt::format("tiles [{}, {}), full [{}, {})", work_tile.begin_tile,
                              work_tile.end_tile, work_tile.full_begin, work_tile.full_end));
    }
    const std::int32_t kv_row = work_tile.batch * shape.heads_kv + work_tile.kv_head;
    const std::int64_t full_from = std::int64_t{work_tile.full_begin} * kWorklistTile;
    const std::int64_t full_to = std::min(std::int64_t{work_tile.full_end} * kWorklistTile, q_len);
    for (std::int32_t i = 0; i < kWorklistTile; ++i) {
      const WorklistEntry& each = key_of(work_tile, i);
      if (each.key >= kv_len || each.q_end > q_len) {
        return fail(
            fmt::format("key {} of {}, queries to {} of {}", each.key, kv_len, each.q_end, q_len));
      }
      if (full_from < full_to && (each.q_begin > full_from || each.q_end < full_to)) {
        return fail(fmt::format("key {} is seen by [{}, {}), not by all of its full tiles",
                                each.key, each.q_begin, each.q_end));
      }
      if (!has_accum(work_tile, each)) continue;
      const std::int64_t row = std::int64_t{work_tile.first_accum_row} + each.accum_row;
      if (row >= static_cast<std::int64_t>(lists_.accum_keys.size()) ||
          lists_.accum_keys[static_cast<std::size_t>(row)] != AccumKey{kv_row, each.key}) {
        return fail(fmt::format("key {}: sum {} of {} is not its own", each.key, row,
                                lists_.accum_keys.size()));
      }
    }
    return {};
  }

  // Checks that work tiles of a tile of keys are consecutive and hold all queries of its keys, and
  // that keys without accumulators are in one work tile.
  Result<void> check_parts() const {
    std::vector<const KvWorkTile*> work_tiles;
    for (const KvWorkTile& work_tile : lists_.work_tiles) work_tiles.push_back(&work_tile);
    const auto tile_of = [](const KvWorkTile& work_tile) {
      return std::tie(work_tile.batch, work_tile.kv_head, work_tile.key_tile);
    };
    std::sort(work_tiles.begin(), work_tiles.end(), [&](const KvWorkTile* a, const KvWorkTile* b) {
      return std::tuple(tile_of(*a), a->begin_tile) < std::tuple(tile_of(*b), b->begin_tile);
    });
    std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, bool>> listed;
    for (std::size_t i = 0; i < work_tiles.size();) {
      const KvWorkTile& first = *work_tiles[i];
      std::int32_t end_tile = first.end_tile;
      std::size_t next = i + 1;
      for (; next < work_tiles.size() && tile_of(*work_tiles[next]) == tile_of(first); ++next) {
        if (work_tiles[next]->begin_tile != end_tile) {
          return wrong(fmt::format("kv_worklist: work tiles of key tile {} end at {}, begin at {}",
                                   first.key_tile, end_tile, work_tiles[next]->begin_tile));
        }
        end_tile = work_tiles[next]->end_tile;
      }
      for (std::int32_t k = 0; k < kWorklistTile; ++k) {
        const WorklistEntry& each = key_of(first, k);
        if (each.key < 0) continue;
        if (each.q_begin < first.begin_tile * kWorklistTile ||
            each.q_end > end_tile * kWorklistTile) {
          return wrong(
              fmt::format("kv_worklist: key {} is seen by [{}, {}), its work tiles hold [{}, {})",
                          each.key, each.q_begin, each.q_end, first.begin_tile * kWorklistTile,
                          end_tile * kWorklistTile));
        }
        if (next - i > 1 && !has_accum(first, each)) {
          return wrong(fmt::format("kv_worklist: key {} has no accumulator row, but {} work tiles",
                                   each.key, next - i));
        }
        listed.emplace_back(first.batch, first.kv_head, each.key, has_accum(first, each));
      }
      i = next;
    }
    std::sort(listed.begin(), listed.end());
    const auto twice =
        std::adjacent_find(listed.begin(), listed.end(), [](const auto& a, const auto& b) {
          return !std::get<3>(a) && std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a)) ==
                                        std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b));
        });
    if (twice == listed.end()) return {};
    return wrong(fmt::format("kv_worklist: key {} has no accumulator row, but is listed twice",
                             std::get<2>(*twice)));
  }

  const WorklistEntry& key_of(const KvWorkTile& work_tile, std::int32_t i) const {
    return lists_.keys[static_cast<std::size_t>(work_tile.key_tile) *
                           static_cast<std::size_t>(kWorklistTile) +
                       static_cast<std::size_t>(i)];
  }
  static bool has_accum(const KvWorkTile& work_tile, const WorklistEntry& key) {
    return key.key >= 0 && work_tile.first_accum_row >= 0 && key.accum_row >= 0;
  }

  const PlanHeader& header_;
  const KvWorklist& lists_;
};

}  // namespace

Result<void> validate(const PlanHeader& header, const KvWorklist& lists) {
  return ListChecker(header, lists).run();
}

}  // namespace fdma
