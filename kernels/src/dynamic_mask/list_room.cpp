#include "dynamic_mask/list_room.hpp"

#include <algorithm>

namespace fdma::dynamic_mask {

std::vector<TileRoom> tile_rooms(const ColumnIntervals& among, std::int64_t w,
                                 std::int64_t block_q) {
  const auto num_queries = static_cast<std::size_t>(among.q_len);
  std::vector<std::int64_t> appear(num_queries + 1, 0), vanish(num_queries + 1, 0);
  for (const Interval& queries : among.intervals) {
    if (queries.begin >= queries.end) continue;
    ++appear[static_cast<std::size_t>(queries.begin)];
    ++vanish[static_cast<std::size_t>(queries.end)];
  }
  std::vector<TileRoom> rooms;
  std::int64_t visible = 0;  // to the query at hand
  for (std::int64_t q = 0; q < among.q_len; ++q) {
    const auto at = static_cast<std::size_t>(q);
    visible += appear[at] - vanish[at];
    if (q % block_q == 0) {
      rooms.push_back({visible, std::min(visible, w)});
    } else {
      rooms.back().num_visible += appear[at];
      rooms.back().num_entries += std::min(appear[at], w);
    }
  }
  return rooms;
}

}  // namespace fdma::dynamic_mask
