// Profiles that come with the library.
//
// "h200". Forward as fdma-maskc calibrate --backend sm90 measured it on one H200 (700 W) in
// bfloat16, which float16 shares; for masks that were not used to calibrate: docs/performance.md.
// Chunks of gathered keys cost 1.1 full tiles, as an exploratory kernel took for them.
// Backward from figures of an exploratory kernel on another one, in TFLOP/s on allowed pairs, hence
// provisional: 64 query rows x 128 keys a step; long lists ran at 585: 2.37 us. 4.7 steps an item
// follow from 312 with windows of 512 at 8K; the two small passes before and after, 0.33 ns a row
// and head, are in it. These constants give full 8K 564 (measured 562), causal 8K 536 (532 to 543),
// windows of 2048 481 (484). With head size 64 nothing of this kind was measured: 460 is what peers
// reach.
//
// "cpu". One core of some server with AVX2 at 2.5 GHz; for a rough idea before
// `fdma-maskc calibrate` has measured the machine at hand.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "fdma/kernels/device_profile.hpp"

namespace fdma {
namespace {

constexpr double kMicrosecondsPerSecond = 1e6;
/// FLOPs of a visited cell over head_dim.
constexpr double kForwardFlops = 4;
constexpr double kBackwardFlops = 10;

/// Costs of one tile shape, in units of a full tile but the first.
struct TileRatios {
  BlockShape tile;
  double flops_per_second;  ///< of one worker, in long rows of full tiles
  double partial;           ///< a tile of bitmaps or row intervals
  double scan;              ///< a column tile before its live keys are computed
  double columns;           ///< a tile's worth of live keys of column tiles
  double gather;            ///< a tile's worth of gathered keys
  double item;
};

TileCosts tile_costs(const TileRatios& ratios, double flops_per_cell) {
  const double full_us = flops_per_cell * ratios.tile.block_q * ratios.tile.block_kv /
                         ratios.flops_per_second * kMicrosecondsPerSecond;
  return {.tile = ratios.tile,
          .full = {0, full_us},
          .bitmap = {0, full_us * ratios.partial},
          .rows = {0, full_us * ratios.partial},
          .columns = {full_us * ratios.scan, full_us * ratios.columns},
          .gather = {0, full_us * ratios.gather},
          .item_us = full_us * ratios.item};
}

KernelCosts kernel(Direction direction, DType dtype, std::int32_t head_dim, double launch_us,
                   const std::vector<TileRatios>& shapes) {
  KernelCosts costs{direction, dtype, head_dim, launch_us, {}};
  const double flops =
      head_dim * (direction == Direction::forward ? kForwardFlops : kBackwardFlops);
  for (const TileRatios& shape : shapes) costs.tiles.push_back(tile_costs(shape, flops));
  return costs;
}

/// One head size of the forward kernel, as measured.
struct MeasuredForward {
  std::int32_t head_dim;
  double launch_us;
  TileCosts tile;
  double ahead_us;
  double sustained_slowdown;
};

DeviceProfile h200() {
  constexpr std::int32_t kSms = 132;
  constexpr double kBackwardLaunchUs = 18;
  const std::vector<MeasuredForward> measured = {
      {.head_dim = 64,
       .launch_us = 8.027,
       .tile =
           {{128, 128}, {0, 1.105}, {1.357, 1.3}, {1.424, 1.378}, {0, 1.363}, {0, 1.216}, 1.221},
       .ahead_us = 6.075,
       .sustained_slowdown = 0.09488},
      {.head_dim = 128,
       .launch_us = 11.78,
       .tile = {{128, 128}, {0, 1.454}, {0, 1.635}, {1.793, 1.659}, {0, 1.663}, {0, 1.599}, 1.201},
       .ahead_us = 5.088,
       .sustained_slowdown = 0.2004}};
  const auto per_sm = [](double teraflops) { return teraflops * 1e12 / kSms; };
  DeviceProfile profile;
  profile.name = "h200";
  profile.source = "fdma-maskc calibrate on an NVIDIA H200; backward by an exploratory kernel";
  profile.is_provisional = false;
  profile.backend = Backend::sm90;
  profile.num_workers = kSms;
  profile.memory_bytes_per_us = 4.146e+06;
  profile.stripe_rows = 128;
  profile.burst_us = 1234;
  profile.sustained_us = 2.99e+05;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const MeasuredForward& each : measured) {
      KernelCosts costs{Direction::forward, dtype, each.head_dim, each.launch_us, {each.tile}};
      costs.overlaps_masks = true;
      costs.ahead_us = each.ahead_us;
      costs.sustained_slowdown = each.sustained_slowdown;
      profile.kernels.push_back(std::move(costs));
    }
    // There column intervals run as bitmap tiles: everything is in the scan.
    const KernelCosts backward[] = {kernel(Direction::backward, dtype, 64, kBackwardLaunchUs,
                                           {{{128, 128}, per_sm(460), 1.05, 1.05, 0, 0, 2.7}}),
                                    kernel(Direction::backward, dtype, 128, kBackwardLaunchUs,
                                           {{{64, 128}, per_sm(585), 1.05, 1.05, 0, 0, 4.7}})};
    for (KernelCosts costs : backward) {
      costs.is_provisional = true;
      profile.kernels.push_back(std::move(costs));
    }
  }
  return profile;
}

DeviceProfile cpu() {
  constexpr double kLaunchUs = 20;
  DeviceProfile profile;
  profile.name = "cpu";
  profile.source = "a server core with AVX2 at 2.5 GHz; fdma-maskc calibrate measures this machine";
  profile.num_workers = 8;
  profile.memory_bytes_per_us = 4e4;
  profile.stripe_rows = 64;
  profile.skips_dead_keys = true;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const double flops = dtype == DType::float32 ? 5e10 : 4.8e10;
    for (const std::int32_t head_dim : {64, 128}) {
      const double rate = head_dim == 64 ? 0.9 * flops : flops;
      profile.kernels.push_back(kernel(Direction::forward, dtype, head_dim, kLaunchUs,
                                       {{{128, 128}, rate, 1.05, 0.01, 1.1, 1.1, 0.3},
                                        {{64, 128}, 0.95 * rate, 1.05, 0.02, 1.1, 1.1, 0.3},
                                        {{128, 64}, 0.95 * rate, 1.05, 0.01, 1.1, 1.1, 0.6},
                                        {{64, 64}, 0.9 * rate, 1.05, 0.02, 1.1, 1.1, 0.6},
                                        {{256, 128}, rate, 1.05, 0.01, 1.1, 1.1, 0.3}}));
    }
  }
  return profile;
}

}  // namespace

std::vector<std::string_view> shipped_profile_names() { return {"h200", "cpu"}; }

Result<DeviceProfile> shipped_profile(std::string_view name) {
  if (name == "h200") return h200();
  if (name == "cpu") return cpu();
  return Error{ErrorCode::invalid_argument,
               fmt::format("device profile: expected {}, got '{}'",
                           fmt::join(shipped_profile_names(), " or "), name)};
}

}  // namespace fdma
