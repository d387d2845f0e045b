// Counts, per tile row, the keys that a mask shows and the entries that a selection of w keys
// may need, in one sweep over queries.
#include "dynamic_mask/kv_index_list_room.hpp"

#include <algorithm>

namespace fdma::dynamic_mask {
namespace {

struct SeenKey {
  std::int32_t key;
  Interval queries;
};

// The seen keys in kv permutation, in which neither begins nor ends decrease.
std::vector<SeenKey> seen_keys(const ColumnIntervals& among) {
  std::vector<SeenKey> seen;
  for (std::size_t key = 0; key + 1 < among.offsets.size(); ++key) {
    for (std::int64_t i = among.offsets[key]; i < among.offsets[key + 1]; ++i) {
      const Interval queries = among.intervals[static_cast<std::size_t>(i)];
      if (queries.begin < queries.end) seen.push_back({static_cast<std::int32_t>(key), queries});
    }
  }
  return seen;
}

}  // namespace

std::vector<TileRoom> tile_rooms(const ColumnIntervals& among, std::int64_t w,
                                 std::int64_t block_q) {
  const std::vector<SeenKey> seen = seen_keys(among);
  std::vector<TileRoom> rooms;
  std::size_t begun = 0, ended = 0;  // keys that appear before, and that vanish by, a query
  for (std::int64_t first = 0; first < among.q_len; first += block_q) {
    const std::int64_t end = std::min(first + block_q, among.q_len);
    TileRoom room;
    while (ended < seen.size() && seen[ended].queries.end <= first) ++ended;
    const std::size_t first_seen = ended;
    for (std::int64_t q = first; q < end; ++q) {
      const std::size_t before = begun;
      while (ended < seen.size() && seen[ended].queries.end <= q) ++ended;
      while (begun < seen.size() && seen[begun].queries.begin <= q) ++begun;
      const auto visible = static_cast<std::int64_t>(begun - std::min(ended, begun));
      room.most_visible = std::max(room.most_visible, visible);
      room.num_entries +=
          std::min(q == first ? visible : static_cast<std::int64_t>(begun - before), w);
    }
    if (first_seen < begun) room.keys = {seen[first_seen].key, seen[begun - 1].key + 1};
    rooms.push_back(room);
  }
  return rooms;
}

}  // namespace fdma::dynamic_mask
