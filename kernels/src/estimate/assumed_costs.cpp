// Costs of profiles that were written before calibration measured them. Each comes from an
// experiment on an H200 or on a CPU (docs/notes/cost-model.md), relative to a full tile where it is
// the work of the same kernel.
#include "estimate/profile_members.hpp"

namespace fdma {
namespace {

// A split work tile cost 1.2 full tiles beside its tiles, a whole one 0.9.
constexpr double kSplitTiles = 0.3;
constexpr double kCombineTiles = 2;  // launch and latency: about 3 us at head size 128
constexpr double kCombineRowTiles = 1e-4;
constexpr double kMoveLaunchUs = 3;
constexpr double kOrderedShare = 0.04;  // up to 0.15 on the mask suite
// The share of the correction pass among the products of a backward call.
constexpr double kCorrectionShare = 0.5;
constexpr double kWideCorrectionShare = 0.35;
constexpr double kCpuCorrectionShare = 0.4;
constexpr std::int32_t kWideHeadDim = 128;
constexpr double kListLaunchUs = 6;  // two launches and their latency
constexpr double kListUs = 1e-4;
constexpr double kListEntryUs = 1.3e-6;  // 4 to 6 bytes written, intervals read

double full_tile_us(const TileCosts& costs) { return costs.full.tile_us + costs.full.compute_us; }

}  // namespace

KernelCosts assumed_costs(KernelCosts kernel, Backend backend, double memory_bytes_per_us) {
  const bool is_forward = kernel.direction == Direction::forward;
  // Instructions beside those of the softmax.
  for (const ScoreShare& each : kScoreShares) kernel.*each.share = KernelCosts().*each.share;
  if (backend.traits().device == Device::cpu) {
    if (!is_forward) kernel.correction_share = kCpuCorrectionShare;
    return kernel;
  }
  kernel.move_us = kMoveLaunchUs;
  if (memory_bytes_per_us > 0) {
    const double key_bytes = 2.0 * kernel.head_dim * static_cast<double>(size_bytes(kernel.dtype));
    kernel.moved_key_us = 2 * key_bytes / memory_bytes_per_us;
  }
  if (!is_forward) {
    kernel.ordered_share = kOrderedShare;
    kernel.correction_share =
        kernel.head_dim > kWideHeadDim ? kWideCorrectionShare : kCorrectionShare;
    return kernel;
  }
  for (TileCosts& costs : kernel.tiles) costs.split_us = kSplitTiles * full_tile_us(costs);
  if (!kernel.tiles.empty()) {
    kernel.combine_us = kCombineTiles * full_tile_us(kernel.tiles.front());
    kernel.combine_row_us = kCombineRowTiles * full_tile_us(kernel.tiles.front());
  }
  kernel.list_launch_us = kListLaunchUs;
  kernel.list_us = kListUs;
  kernel.list_entry_us = kListEntryUs;
  return kernel;
}

}  // namespace fdma
