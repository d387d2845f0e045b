#include "backend/sm90_traits.hpp"

#include "plan/backward_dims.hpp"
#include "plan/sm90_tile.hpp"

namespace fdma::sm90 {

// The costs are measured on an H200 (docs/performance.md). Tiles are computed whole, whatever is
// live in them. A column tile waits for its intervals, and longer where many keys begin or end in
// it. Permuting a key reads and writes its rows at the rate of main memory, and a launch takes 3 us;
// both are given in tiles of all multiprocessors together. Ordered accumulation of dq costs up to
// 15 %, depending on the mask of the mask suite.
const BackendTraits& traits() {
  static const BackendTraits the_traits{
      .name = "sm90",
      .device = Device::cuda,
      .worker = "multiprocessor",
      .tile = {kSm90TileRows, kSm90TileKeys},
      .has_one_tile = true,
      .needs_16_bits = true,
      .head_dim_multiple = 8,
      .max_gather_head_dim = 128,
      .forward_score = {.key_bias = true},
      .backward_score = {.key_bias = true},
      .bitmap_order = BitmapOrder::thread_fragments,
      .packs_heads = true,
      .split_workers = kSm90Workers,
      .reorders_keys = true,
      .has_kv_worklists = true,
      .costs = {.full = {1, 0},
                .bitmap = {1.08, 0},
                .rows = {1.08, 0},
                .columns = {1.25, 0},
                .gather = 1.18,
                .gather_step = 128,
                .permuted_key = 0.03,
                .moving = 270,
                .least_gain = 0.03,
                .least_mask_gain = 0.15},
      .copies_permuted_keys = true,
      .has_query_passes = true,
      .deterministic_share = 0.04,
      .correction_share = 0.5,
      .wide_correction_share = 0.35,
      .backward_head_dim = backward_dim,
  };
  return the_traits;
}

}  // namespace fdma::sm90
