// Two fits, each linear except for one number.
//
// Costs. While masks are made in time, a call takes launch + work tiles * work tile + sum over
// kinds of tiles
// * compute. Calls with one partial tile among four determine these. Calls whose tiles are all
// partial take longer if the mask warps cannot keep up, which determines the time of a mask. In
// calls that gather, the time beside launch and work tiles is that of index tiles: a cost for each
// one, and a cost for the keys that it computes.
//
// Slowdown. For a given burst the share of the slowdown is known for each call, and its coefficient
// follows by least squares. Bursts are tried, each 3 % longer than the one before.
#include "calibrate/sm90_fit.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "calibrate/fit.hpp"
#include "estimate/work_tile_counts.hpp"

namespace fdma {
namespace {

constexpr std::size_t kKinds = 4;
/// Share of a whole index tile's costs that does not depend on its number of keys. It applies where
/// calls do not tell it, because the kernels compute only whole index tiles. Head size 128 showed
/// it on an H200.
constexpr double kChunkShare = 0.35;
/// A call waits for its masks if these take longer than the computation by this factor.
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

StepCosts fit_index_tiles(const std::vector<EvenCall>& calls, const EvenCosts& costs) {
  const auto has_less = [](const EvenCall& call) {
    return call.full_index_tiles < call.index_tiles;
  };
  const bool has_parts = std::any_of(calls.begin(), calls.end(), has_less);
  std::vector<Measurement> measurements;
  for (const EvenCall& call : calls) {
    const double index_tiles_us = call.us - costs.launch_us - call.work_tiles * costs.tile.item_us;
    if (call.index_tiles <= 0 || index_tiles_us <= 0) continue;
    Measurement each{{call.index_tiles}, index_tiles_us};
    if (has_parts) each.amounts.push_back(call.full_index_tiles);
    measurements.push_back(std::move(each));
  }
  if (measurements.empty()) return {};
  const std::vector<double> fitted = fit_not_negative(measurements);
  if (has_parts && fitted[1] > 0) return {fitted[0], fitted[1]};
  return {kChunkShare * fitted[0], (1 - kChunkShare) * fitted[0]};
}

}  // namespace

EvenCall even_call(const PlanHeader& header, const SegmentPlan& plan, int num_workers,
                   bool is_all_partial) {
  const double share = 1.0 / num_workers;
  EvenCall call;
  call.work_tiles = share * static_cast<double>(plan.work_tiles.size());
  call.of(PlanSegmentKind::full) = share * static_cast<double>(header.counts.full_tiles);
  call.of(PlanSegmentKind::bitmap) = share * static_cast<double>(header.counts.bitmap_tiles);
  call.of(PlanSegmentKind::rows) = share * static_cast<double>(header.counts.row_tiles);
  call.of(PlanSegmentKind::columns) = share * static_cast<double>(header.counts.column_tiles);
  call.is_all_partial = is_all_partial;
  if (plan.kv_index_lists.empty()) return call;
  const WorkCounter counter(header, plan, header.tile.block_q, false);
  StepWork index_tiles;
  for (const WorkTile& work_tile : plan.work_tiles) {
    const StepWork each = counter.of(work_tile).of(PlanSegmentKind::gather);
    index_tiles.tiles += each.tiles;
    index_tiles.cells += each.cells;
  }
  call.index_tiles = share * static_cast<double>(index_tiles.tiles);
  call.full_index_tiles =
      share * static_cast<double>(index_tiles.cells) / (header.tile.block_q * header.tile.block_kv);
  return call;
}

EvenCosts fit_even_calls(const std::vector<EvenCall>& calls, BlockShape tile) {
  std::vector<Measurement> measurements;
  for (const EvenCall& call : calls) {
    if (call.is_all_partial || call.index_tiles > 0) continue;
    Measurement each{{1, call.work_tiles}, call.us};
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
    const double tiles_us = call.us - costs.launch_us - call.work_tiles * costs.tile.item_us;
    double compute_us = 0;
    double partial_tiles = 0;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      compute_us += call.tiles[kind] * steps_of(costs.tile, kind).compute_us;
      if (kind > 0) partial_tiles += call.tiles[kind];
    }
    if (partial_tiles <= 0 || tiles_us <= kClearlyLonger * compute_us) continue;
    // The most frequent kind; a few tiles of other kinds take as long.
    const auto most = std::max_element(call.tiles.begin() + 1, call.tiles.end());
    steps_of(costs.tile, static_cast<std::size_t>(most - call.tiles.begin())).tile_us =
        tiles_us / partial_tiles;
  }
  costs.tile.gather = fit_index_tiles(calls, costs);
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
