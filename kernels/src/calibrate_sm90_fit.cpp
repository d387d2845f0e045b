// Two fits, each linear but for one number.
//
// Costs. While masks are found in time a call takes launch + items * item + sum over kinds of tiles
// * compute, which calls with one partial tile among four full ones show. Calls whose every tile is
// partial take longer if the warps that find masks cannot keep up; what a mask takes them follows.
//
// Slowdown. For a given burst the share of slowdown is known for each call, and what it is a share
// of follows by least squares; bursts are tried, each 3 % longer than the one before.
#include "calibrate_sm90_fit.hpp"

#include <algorithm>
#include <limits>

#include "calibrate_fit.hpp"
#include "item_work.hpp"

namespace fdma {
namespace {

constexpr std::size_t kKinds = 4;
/// Masks that take this much longer than the computation are what a call waits for.
constexpr double kClearlyLonger = 1.01;
constexpr double kFirstBurstUs = 100;
constexpr double kBurstStep = 1.03;

StepCosts& steps_of(TileCosts& costs, std::size_t kind) {
  StepCosts* const steps[kKinds] = {&costs.full, &costs.bitmap, &costs.rows, &costs.columns};
  return *steps[kind];
}

struct SharesAndLoss {
  std::vector<double> shares;
  double loss = 0;
};

SharesAndLoss fit_shares(const std::vector<LongCall>& calls, std::size_t num_kernels,
                         double burst_us, double sustained_us) {
  std::vector<double> products(num_kernels), squares(num_kernels);
  for (const LongCall& call : calls) {
    const double part = logarithmic_share(call.us, burst_us, sustained_us);
    products[call.kernel] += part * call.slowdown;
    squares[call.kernel] += part * part;
  }
  SharesAndLoss fit;
  for (std::size_t k = 0; k < num_kernels; ++k) {
    fit.shares.push_back(squares[k] > 0 ? std::max(0.0, products[k] / squares[k]) : 0);
  }
  for (const LongCall& call : calls) {
    const double part = logarithmic_share(call.us, burst_us, sustained_us);
    const double miss = part * fit.shares[call.kernel] - call.slowdown;
    fit.loss += miss * miss;
  }
  return fit;
}

}  // namespace

EvenCosts fit_even_calls(const std::vector<EvenCall>& calls, BlockShape tile) {
  std::vector<Measurement> measurements;
  for (const EvenCall& call : calls) {
    if (call.is_all_partial) continue;
    Measurement each{{1, call.items}, call.us};
    each.amounts.insert(each.amounts.end(), call.tiles.begin(), call.tiles.end());
    measurements.push_back(std::move(each));
  }
  EvenCosts costs;
  costs.tile.tile = tile;
  std::vector<double> fitted = fit_not_negative(measurements);
  fitted.resize(2 + kKinds);
  costs.launch_us = fitted[0];
  costs.tile.item_us = fitted[1];
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    steps_of(costs.tile, kind).compute_us = fitted[2 + kind];
  }
  if (costs.tile.bitmap.compute_us <= 0) costs.tile.bitmap = costs.tile.full;
  for (StepCosts* steps : {&costs.tile.rows, &costs.tile.columns}) {
    if (steps->compute_us <= 0) *steps = costs.tile.bitmap;
  }
  for (const EvenCall& call : calls) {
    if (!call.is_all_partial) continue;
    const double tiles_us = call.us - costs.launch_us - call.items * costs.tile.item_us;
    double compute_us = 0;
    double partial_tiles = 0;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      compute_us += call.tiles[kind] * steps_of(costs.tile, kind).compute_us;
      if (kind > 0) partial_tiles += call.tiles[kind];
    }
    if (partial_tiles <= 0 || tiles_us <= kClearlyLonger * compute_us) continue;
    // The kind that there is most of; a few tiles of others take as long.
    const auto most = std::max_element(call.tiles.begin() + 1, call.tiles.end());
    steps_of(costs.tile, static_cast<std::size_t>(most - call.tiles.begin())).tile_us =
        tiles_us / partial_tiles;
  }
  return costs;
}

Slowdown fit_slowdown(const std::vector<LongCall>& calls, std::size_t num_kernels) {
  double longest_us = 0;
  for (const LongCall& call : calls) longest_us = std::max(longest_us, call.us);
  Slowdown best{0, 0, std::vector<double>(num_kernels, 0.0)};
  double least_loss = std::numeric_limits<double>::infinity();
  for (double burst_us = kFirstBurstUs; burst_us < longest_us; burst_us *= kBurstStep) {
    SharesAndLoss fit = fit_shares(calls, num_kernels, burst_us, longest_us);
    if (fit.loss >= least_loss) continue;
    least_loss = fit.loss;
    best = {burst_us, longest_us, std::move(fit.shares)};
  }
  const bool is_slower =
      std::any_of(best.shares.begin(), best.shares.end(), [](double share) { return share > 0; });
  if (!is_slower) best.burst_us = best.sustained_us = 0;
  return best;
}

}  // namespace fdma
