#include "backend/sm90_traits.hpp"

#include "plan/backward_dims.hpp"
#include "plan/sm90_tile.hpp"

namespace fdma::sm90 {
namespace {

constexpr ScoreSpec kScore{.softcap = true,
                           .key_bias = true,
                           .bias = true,
                           .alibi = true,
                           .relative_table = true,
                           .sink = true,
                           .dropout = true};

}  // namespace

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
      .forward_score = kScore,
      .backward_score = kScore,
      .place_score = {.bias = true, .alibi = true, .relative_table = true, .dropout = true},
      .max_place_head_dim = 128,
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
