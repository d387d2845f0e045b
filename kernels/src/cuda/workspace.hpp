// Layout of the workspace of one forward launch.
#pragma once

#include <cstdint>

#include "cuda/device_plan.hpp"
#include "cuda/partials.hpp"
#include "cuda/tile_rows.hpp"

namespace fdma::gpu {

/// Byte offsets in the workspace of one forward launch: the counter of work tiles, the tile rows of
/// a closed-form plan, partial results, permuted keys.
struct Workspace {
  explicit Workspace(const DevicePlan& plan)
      : partials{plan.shape.head_dim_v, static_cast<std::int32_t>(plan.num_partials)} {
    constexpr std::int64_t kAlignment = 256;
    const auto aligned = [](std::int64_t size) { return ceil_div(size, kAlignment) * kAlignment; };
    tile_rows = kAlignment;
    const bool is_closed_form = plan.arrays.num_closed_forms > 0;
    partial_out =
        tile_rows + aligned(is_closed_form ? plan.shape.batch * plan.arrays.max_tile_rows *
                                                 static_cast<int>(sizeof(TileRow))
                                           : 0);
    partial_lse = partial_out + partials.out_bytes();
    permuted_k = aligned(partial_out + partials.bytes());
    const std::int64_t moved =
        plan.shape.batch * plan.shape.heads_kv * std::int64_t{plan.orders.max_keys};
    permuted_v = permuted_k + aligned(moved * plan.shape.head_dim * 2);
    permuted_bias = permuted_v + aligned(moved * plan.shape.head_dim_v * 2);
    bytes = permuted_bias + aligned(plan.score.key_bias ? moved * 4 : 0);
  }

  PartialLayout partials;
  std::int64_t tile_rows, partial_out, partial_lse;
  std::int64_t permuted_k, permuted_v;  ///< [batch, heads_kv, max_keys, head_dim or head_dim_v]
  std::int64_t permuted_bias;           ///< [batch, heads_kv, max_keys]
  std::int64_t bytes;
};

}  // namespace fdma::gpu
