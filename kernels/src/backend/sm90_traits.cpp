#include "backend/sm90_traits.hpp"

#include "plan/backward_dims.hpp"
#include "plan/sm90_tile.hpp"

namespace fdma::sm90 {

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
      .forward_score = {.softcap = true, .key_bias = true, .sink = true},
      .backward_score = {.softcap = true, .key_bias = true, .sink = true},
      .bitmap_order = BitmapOrder::thread_fragments,
      .packs_heads = true,
      .split_workers = kSm90Workers,
      .reorders_keys = true,
      .has_kv_worklists = true,
      .least_gains = {.mask = 0.15},
      .profile = "h200",
      .copies_permuted_keys = true,
      .has_query_passes = true,
      .backward_head_dim = [](const AttentionShape& shape) { return backward_dim(shape); },
  };
  return the_traits;
}

}  // namespace fdma::sm90
