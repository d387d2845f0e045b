// Capacities of the kv worklist of a selection, from its shape and w alone.
#include <algorithm>

#include "dynamic_mask/device_kv_worklist.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/kv_worklist.hpp"
#include "plan/sm90_tile.hpp"

namespace fdma::dynamic_mask {
namespace {

constexpr std::int64_t kTile = kWorklistTile;
constexpr std::int64_t kWorkTilesOfWorker = 6;  // so that the last ones end at about the same time
constexpr std::int32_t kLeastSegment =
    8;  // tiles: shorter work tiles cost more to begin and to end

}  // namespace

std::int64_t KvWorklistRoom::num_segments() const {
  return ceil_div(ceil_div(q_len, kTile), std::int64_t{std::max(segment_tiles, 1)});
}
std::int64_t KvWorklistRoom::cuts_of_row() const {
  return std::min(w, kv_len) * std::max<std::int64_t>(num_segments() - 1, 0);
}
std::int64_t KvWorklistRoom::tiles_of_row() const {
  return ceil_div(kv_len + cuts_of_row(), kTile);
}
std::int64_t KvWorklistRoom::keys_capacity() const { return num_rows * tiles_of_row() * kTile; }
std::int64_t KvWorklistRoom::work_tiles_capacity() const { return num_rows * tiles_of_row(); }
std::int64_t KvWorklistRoom::sum_rows() const {
  // A key that is cut c times needs 1 row, or with an order half of c + 1 and no more than c.
  const std::int64_t cuts = cuts_of_row();
  return std::min(cuts, kv_len + (has_order ? cuts / 2 : 0));
}
std::int64_t KvWorklistRoom::accum_capacity() const { return num_rows * sum_rows(); }
std::int64_t KvWorklistRoom::positions_capacity() const {
  return has_order ? work_tiles_capacity() * ceil_div(q_len, kTile) : 0;
}

KvWorklistRoom kv_worklist_room(std::int64_t num_rows, std::int64_t q_len, std::int64_t kv_len,
                                std::int64_t w, std::int32_t group_size) {
  KvWorklistRoom room;
  room.num_rows = num_rows;
  room.q_len = q_len;
  room.kv_len = kv_len;
  room.w = w;
  const std::int64_t live_tiles = ceil_div(std::min(w, kv_len), kTile) + 1;
  room.segment_tiles = segment_tiles(group_size, q_len);
  const std::int32_t least = std::max(kLeastSegment, segment_tiles(64, q_len));
  while (room.segment_tiles / 2 >= least &&
         num_rows * live_tiles * room.num_segments() < kWorkTilesOfWorker * kSm90Workers) {
    room.segment_tiles /= 2;
  }
  return room;
}

}  // namespace fdma::dynamic_mask
