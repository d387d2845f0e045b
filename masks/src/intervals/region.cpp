// Regions are row bands with a budget; their algebra is that of bands (band_algebra.hpp).
#include "intervals/region.hpp"

#include <algorithm>

namespace fdma {
namespace {

// The budget of a region. Many intervals are fine if they are spread over as many bands (one or a
// few per row), and so are a few bands of many intervals; beyond that bitmaps are the better form.
constexpr std::size_t kFreeIntervals = std::size_t{1} << 15;
constexpr std::size_t kIntervalsPerBand = 8;

// The budget of one region and the effort of the engine.
class RegionBudget final : public BandBudget {
 public:
  explicit RegionBudget(IntervalEffort& effort) : effort_(effort) {}
  bool spend(std::size_t steps, const RowBands& result) override {
    return effort_.spend(steps) && Region::is_within_budget(result);
  }

 private:
  IntervalEffort& effort_;
};

}  // namespace

bool Region::is_within_budget(const RowBands& bands) {
  return bands.intervals.size() <= kFreeIntervals + kIntervalsPerBand * bands.bands.size();
}

std::size_t Region::most_intervals() const {
  return kFreeIntervals + kIntervalsPerBand * (bands().size() + 1);
}

Region Region::rectangle(const Rectangle& cells) {
  Region region;
  if (!cells.is_empty()) {
    const AffineInterval interval{cells.col_begin, cells.col_end, 0, 0};
    region.append(cells.row_begin, cells.row_end, {&interval, 1});
  }
  return region;
}

RowBands Region::to_row_bands(std::int64_t q_len, std::int64_t kv_len) && {
  RowBands bands = std::move(sequence_.bands());
  bands.q_len = q_len;
  bands.kv_len = kv_len;
  return bands;
}

Rectangle Region::hull(const RowBand& band) const {
  const auto list = intervals(band);
  const std::int64_t first = band.q_begin, last = band.q_end - 1;
  return {first, last + 1, std::min(lo_at(list.front(), first), lo_at(list.front(), last)),
          std::max(hi_at(list.back(), first), hi_at(list.back(), last))};
}

Rectangle Region::hull() const {
  if (bands().empty()) return {0, 0, 0, 0};
  Rectangle all = hull(bands().front());
  for (const RowBand& band : bands()) {
    const Rectangle one = hull(band);
    all.col_begin = std::min(all.col_begin, one.col_begin);
    all.col_end = std::max(all.col_end, one.col_end);
    all.row_end = one.row_end;
  }
  return all;
}

std::optional<Region> combine(const Region& a, const Region& b, TruthTable op,
                              IntervalEffort& effort) {
  RegionBudget budget(effort);
  auto combined = combine_bands(op, a.row_bands(), b.row_bands(), budget);
  if (!combined) return std::nullopt;
  return Region(*std::move(combined));
}

}  // namespace fdma
