// The text form of plans that are kv worklists.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "plan/forms.hpp"
#include "plan/header_text.hpp"

namespace fdma {
namespace {

std::string work_tile_text(std::int64_t index, const KvWorkTile& work_tile) {
  return fmt::format(
      "work tile {}: batch {} kv_head {} key_tile {}: tiles [{}, {}), full [{}, {})\n", index,
      work_tile.batch, work_tile.kv_head, work_tile.key_tile, work_tile.begin_tile,
      work_tile.end_tile, work_tile.full_begin, work_tile.full_end);
}

}  // namespace

std::string to_text(const PlanHeader& header, const KvWorklist& lists, std::int64_t max_shown) {
  const std::int64_t num_work_tiles = count_work_tiles(header, lists);
  std::string text = header_text(header, num_work_tiles, size_bytes(lists));
  text += fmt::format("listed keys {} in tiles of {}, accumulator rows {}, keys moved {}\n",
                      lists.keys.size(), kWorklistTile, lists.accum_keys.size(),
                      header.counts.moved_keys);
  text += to_text(header.report);
  const std::int64_t shown = std::min(max_shown, num_work_tiles);
  for (std::int64_t i = 0; i < shown; ++i) {
    text += work_tile_text(i, lists.work_tiles[static_cast<std::size_t>(i)]);
  }
  return text + rest_text(num_work_tiles - shown);
}

}  // namespace fdma
