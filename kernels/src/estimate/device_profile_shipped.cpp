// The device profiles that ship with the library.
//
// "h200": measured by fdma-maskc calibrate --backend sm90 on H200s (700 W), forward and backward on
// two of them, in bfloat16, which float16 shares. docs/performance.md compares it with masks that
// were not used to calibrate. The slowdown by the power limit is stated between the same bounds for
// both.
//
// "cpu": one core of a server with AVX2 at 2.5 GHz. It gives a rough idea before `fdma-maskc
// calibrate` has measured the machine at hand. Backward costs are derived from the ratio that
// calibration there gives: as many operations per second as forward, and column tiles that cost
// what row panels do.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "fdma/kernels/device_profile.hpp"

namespace fdma {
namespace {

constexpr double kMicrosecondsPerSecond = 1e6;
/// FLOPs of a visited cell, divided by head_dim.
constexpr double kForwardFlops = 4;
constexpr double kBackwardFlops = 10;

/// Costs of one tile shape, all but the first in units of a full tile.
struct TileRatios {
  BlockShape tile;
  double flops_per_second;  ///< of one worker, in long rows of full tiles
  double partial;           ///< a tile of bitmaps or row intervals
  double scan;              ///< a column tile before its live keys are computed
  double columns;           ///< a tile's worth of live keys of column tiles
  double gather;            ///< a tile's worth of gathered keys
  double work_tile;
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
          .item_us = full_us * ratios.work_tile};
}

KernelCosts kernel(Direction direction, DType dtype, std::int32_t head_dim, double launch_us,
                   const std::vector<TileRatios>& shapes) {
  KernelCosts costs{direction, dtype, head_dim, launch_us, {}};
  const double flops =
      head_dim * (direction == Direction::forward ? kForwardFlops : kBackwardFlops);
  for (const TileRatios& shape : shapes) costs.tiles.push_back(tile_costs(shape, flops));
  return costs;
}

/// Measured costs of a kernel.
struct Measured {
  Direction direction;
  std::int32_t head_dim;
  double launch_us;
  TileCosts tile;
  double ahead_us;
  double sustained_slowdown;
  double gather_slowdown = 0;
};

DeviceProfile h200() {
  const std::vector<Measured> measured = {
      {.direction = Direction::forward,
       .head_dim = 64,
       .launch_us = 7.192,
       .tile = {{128, 128},
                {0, 1.006},
                {0, 1.174},
                {1.498, 1.233},
                {0, 1.185},
                {0.4189, 0.7779},
                1.084},
       .ahead_us = 5.531,
       .sustained_slowdown = 0.1236,
       .gather_slowdown = 0},
      {.direction = Direction::forward,
       .head_dim = 128,
       .launch_us = 9.564,
       .tile =
           {{128, 128}, {0, 1.345}, {0, 1.583}, {1.817, 1.644}, {0, 1.594}, {0.5363, 1.09}, 1.4},
       .ahead_us = 4.706,
       .sustained_slowdown = 0.1975,
       .gather_slowdown = 0.1227},
      {.direction = Direction::backward,
       .head_dim = 64,
       .launch_us = 20.34,
       .tile = {{128, 128}, {0, 2.393}, {0, 2.544}, {2.617, 2.585}, {2.603, 2.541}, {0, 0}, 2.079},
       .ahead_us = 10.77,
       .sustained_slowdown = 0.1311},
      {.direction = Direction::backward,
       .head_dim = 128,
       .launch_us = 24.46,
       .tile =
           {{128, 128}, {0, 4.219}, {4.311, 4.225}, {4.44, 4.223}, {4.34, 4.214}, {0, 0}, 2.498},
       .ahead_us = 14.77,
       .sustained_slowdown = 0.1674},
      {.direction = Direction::backward,
       .head_dim = 256,
       .launch_us = 42.31,
       .tile =
           {{128, 128}, {0, 13.91}, {14.22, 13.58}, {14.22, 13.78}, {14.25, 13.71}, {0, 0}, 6.233},
       .ahead_us = 41.73,
       .sustained_slowdown = 0}};
  DeviceProfile profile;
  profile.name = "h200";
  profile.source = "fdma-maskc calibrate on an NVIDIA H200";
  profile.is_provisional = false;
  profile.backend = Backend::sm90;
  profile.num_workers = 132;
  profile.memory_bytes_per_us = 4.146e+06;
  profile.stripe_rows = 128;
  profile.burst_us = 1234;
  profile.sustained_us = 2.99e+05;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const Measured& each : measured) {
      KernelCosts costs{each.direction, dtype, each.head_dim, each.launch_us, {each.tile}};
      costs.overlaps_masks = true;
      costs.ahead_us = each.ahead_us;
      costs.sustained_slowdown = each.sustained_slowdown;
      costs.gather_slowdown = each.gather_slowdown;
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
      profile.kernels.push_back(kernel(Direction::backward, dtype, head_dim, kLaunchUs,
                                       {{{128, 128}, 1.05 * rate, 1, 0.08, 0.9, 0, 0.2},
                                        {{64, 128}, rate, 1, 0.1, 0.9, 0, 0.2},
                                        {{128, 64}, rate, 1, 0.1, 0.9, 0, 0.3},
                                        {{64, 64}, 0.95 * rate, 1, 0.15, 0.8, 0, 0.3},
                                        {{256, 128}, rate, 1, 0.08, 0.9, 0, 0.2}}));
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
