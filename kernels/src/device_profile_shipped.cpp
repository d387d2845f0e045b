// Profiles that come with the library.
//
// "h200". Figures of an exploratory kernel on one H200 at 1.83 GHz and 4.3 TB/s, bf16, in TFLOP/s
// on allowed pairs. With head size 128:
//   forward   rows of 256 and more full 128x128 tiles ran at 648: 1.71 us a tile and SM. Rows of 17
//             tiles ran at 610, so that an item costs 1.05 tiles besides. Every tile a bitmap:
//             596 where full tiles reach 642, 1.077 tiles. Intervals cost what bitmaps do. 17
//             gathered chunks ran at 542: 1.134 tiles each. 128x160 tiles are 2 % faster per cell,
//             128x64 ones 6 % slower.
//   backward  64 query rows x 128 keys a step; long lists ran at 585: 2.37 us. 4.7 steps an item
//             follow from 312 with windows of 512 at 8K; the two small passes before and after,
//             0.33 ns a row and head, are in it.
// These constants give, forward: causal 8K 617 (measured 626), windows of 512, 2048 and 8192 414,
// 570 and 626 (414, 569, 632); backward: full 8K 564 (562), causal 8K 536 (532 to 543), windows of
// 2048 481 (484). With head size 64 nothing of this kind was measured: 450 forward and 460
// backward are what peers reach, bitmaps cost 1.15 and gathered chunks 1.25 tiles, by the
// instructions that they add. Tile shapes but 128x128, 128x160 and 128x64 are not offered.
//
// "cpu". One core of some server with AVX2 at 2.5 GHz; for a rough idea before
// `fdma-maskc calibrate` has measured the machine at hand.
#include <fmt/format.h>

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

DeviceProfile h200() {
  constexpr std::int32_t kSms = 132;
  constexpr double kLaunchUs = 6;
  const auto per_sm = [](double teraflops) { return teraflops * 1e12 / kSms; };
  DeviceProfile profile;
  profile.name = "h200";
  profile.source = "figures of an exploratory kernel on one H200; head size 64 by its peers";
  profile.num_workers = kSms;
  profile.memory_bytes_per_us = 4.3e6;
  profile.stripe_rows = 128;
  // There column intervals run as bitmap tiles: everything is in the scan.
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    profile.kernels.push_back(kernel(Direction::forward, dtype, 64, kLaunchUs,
                                     {{{128, 128}, per_sm(450), 1.15, 1.15, 0, 1.25, 1.05},
                                      {{128, 160}, per_sm(459), 1.15, 1.15, 0, 1.25, 0.84},
                                      {{128, 64}, per_sm(424), 1.15, 1.15, 0, 1.25, 1.98}}));
    profile.kernels.push_back(kernel(Direction::forward, dtype, 128, kLaunchUs,
                                     {{{128, 128}, per_sm(648), 1.077, 1.077, 0, 1.134, 1.05},
                                      {{128, 160}, per_sm(661), 1.077, 1.077, 0, 1.134, 0.857},
                                      {{128, 64}, per_sm(611), 1.077, 1.077, 0, 1.134, 1.98}}));
    profile.kernels.push_back(kernel(Direction::backward, dtype, 64, 3 * kLaunchUs,
                                     {{{128, 128}, per_sm(460), 1.05, 1.05, 0, 0, 2.7}}));
    profile.kernels.push_back(kernel(Direction::backward, dtype, 128, 3 * kLaunchUs,
                                     {{{64, 128}, per_sm(585), 1.05, 1.05, 0, 0, 4.7}}));
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
