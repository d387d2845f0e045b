#include "periodic/plan.hpp"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "fdma/base/interval.hpp"

namespace fdma::periodic {
namespace {

constexpr int kMostAnalyses = 512;
constexpr std::size_t kMostCutsOfBand = 36;  // 3^36 states fit 64 bits
constexpr std::int64_t kMostPatternTiles = std::int64_t{1} << 20;
constexpr std::int64_t kBeyond = std::int64_t{1} << 60;
constexpr std::int32_t kProbes = 8;  // stretches of a region whose ranges are looked at
constexpr std::int32_t kRowsAtOnce = 64;

// Tiles [begin, end) of a tile row, or tile rows, on a cut; those before are below it.
struct Covered {
  std::int32_t begin;
  std::int32_t end;
};

Covered clamped(std::int64_t begin, std::int64_t end, std::int32_t limit) {
  begin = std::clamp<std::int64_t>(begin, 0, limit);
  return {static_cast<std::int32_t>(begin),
          static_cast<std::int32_t>(std::clamp<std::int64_t>(end, begin, limit))};
}

// The tile rows on a cut with col_factor 0, whose row_factor is 1.
Covered covered_rows(const Cut& cut, BlockShape block, std::int32_t num_rows) {
  return clamped(floor_quotient(cut.below + 1, block.block_q),
                 ceil_quotient(cut.above, block.block_q), num_rows);
}

// The tiles of a tile row on a cut with col_factor > 0.
Covered covered_tiles(const Cut& cut, std::int32_t row, BlockShape block, std::int32_t num_cols) {
  const std::int64_t width = cut.col_factor * block.block_kv;
  const std::int64_t height = cut.row_factor * (block.block_q - 1);
  const std::int64_t moved = cut.row_factor * block.block_q * row;
  const std::int64_t most = std::max<std::int64_t>(height, 0) + width - cut.col_factor;
  const std::int64_t least = std::min<std::int64_t>(height, 0);
  return clamped(floor_quotient(cut.below - most - moved, width) + 1,
                 ceil_quotient(cut.above - least - moved, width), num_cols);
}

}  // namespace

std::optional<std::vector<Band>> make_bands(const IrProgram& program, const TableRanges& tables,
                                            BlockShape block) {
  const auto num_rows = static_cast<std::int32_t>(ceil_div(program.q_len, block.block_q));
  const std::int64_t whole_q = program.q_len - program.q_len % block.block_q;
  const std::int64_t whole_kv = program.kv_len - program.kv_len % block.block_kv;
  std::vector<Band> bands;
  std::vector<Covered> open{{0, num_rows}};
  for (int turn = 0; !open.empty(); ++turn) {
    if (turn == kMostAnalyses) return std::nullopt;
    const Covered rows = open.back();
    open.pop_back();
    const CellBox box{std::int64_t{rows.begin} * block.block_q,
                      std::min(program.q_len, std::int64_t{rows.end} * block.block_q), 0,
                      program.kv_len};
    std::optional<Structure> structure = analyze(program, tables, block, box);
    if (!structure) return std::nullopt;
    std::vector<Cut>& cuts = structure->cuts;
    if (whole_kv < program.kv_len) cuts.push_back({0, 1, whole_kv - 1, kBeyond});
    if (box.q_end > whole_q) cuts.push_back({1, 0, whole_q - 1, kBeyond});
    if (cuts.size() > kMostCutsOfBand) return std::nullopt;
    std::vector<std::int32_t> borders{rows.begin, rows.end};
    for (const Cut& cut : cuts) {
      if (cut.col_factor != 0) continue;
      const Covered covered = covered_rows(cut, block, num_rows);
      for (const std::int32_t border : {covered.begin, covered.end}) {
        if (border > rows.begin && border < rows.end) borders.push_back(border);
      }
    }
    if (borders.size() == 2) {
      bands.push_back({rows.begin, rows.end, *std::move(structure)});
      continue;
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    for (std::size_t i = borders.size() - 1; i > 0; --i)
      open.push_back({borders[i - 1], borders[i]});
  }
  return bands;
}

Translation Region::reduce(std::int32_t row, std::int32_t col) const {
  switch (kind) {
    case RegionKind::plane:
      return lattice.reduce(std::int64_t{row} - first_row, col);
    case RegionKind::line: {
      const std::int64_t turns = row / step.rows;
      return {row - turns * step.rows, col - turns * step.cols};
    }
    default:
      return {std::int64_t{row} - first_row, col};
  }
}

std::int32_t Region::slot(const Translation& reduced) const {
  const Track& track = tracks[static_cast<std::size_t>(reduced.rows)];
  const std::int64_t at = reduced.cols - track.base;
  return at >= 0 && at < std::ssize(track.slots) ? track.slots[static_cast<std::size_t>(at)] : -1;
}

std::int64_t TilePlan::num_undecided() const {
  std::int64_t sum = 0;
  for (const Region& region : regions_) sum += region.is_decided ? 0 : region.num_tiles;
  return sum;
}

class Planner {
 public:
  Planner(const IrProgram& program, const TableRanges& tables, BlockShape block,
          std::int64_t most_slots)
      : program_(program),
        tables_(tables),
        block_(block),
        most_slots_(most_slots),
        num_cols_(static_cast<std::int32_t>(ceil_div(program.kv_len, block.block_kv))) {}

  // False if there are too many slots.
  bool add_band(const Band& band, WorkMeter& meter) {
    band_ = &band;
    known_.clear();
    // Rows that do not repeat inside the band are levels too.
    is_level_ = !period_of(band.structure.lattice, band.end_row - band.first_row).has_value();
    const auto num_cuts = band.structure.cuts.size();
    covered_.assign(num_cuts, {0, 0});
    for (std::size_t i = 0; i < num_cuts; ++i) {
      const Cut& cut = band.structure.cuts[i];
      if (cut.col_factor != 0) continue;
      const Covered rows = covered_rows(cut, block_, band.end_row);
      const bool is_on = rows.begin <= band.first_row && band.first_row < rows.end;
      is_level_ = is_level_ || is_on;
      // A cut that covers no tile before column 0 is above, one that begins at the end is below.
      covered_[i] = is_on                         ? Covered{0, num_cols_}
                    : band.first_row < rows.begin ? Covered{num_cols_, num_cols_}
                                                  : Covered{0, 0};
    }
    for (std::int32_t row = band.first_row; row < band.end_row; ++row) {
      if (row % kRowsAtOnce == 0 && meter.must_stop()) return false;
      add_row(row);
      if (std::ssize(plan_.slots_) > most_slots_) return false;
    }
    return true;
  }

  TilePlan finish() {
    for (Region& region : plan_.regions_) {
      if (region.kind != RegionKind::line) continue;
      std::int64_t width = 1;
      for (const Region::Track& track : region.tracks) {
        width = std::max(width, std::ssize(track.slots));
      }
      region.period = period_along(region.step, width);
    }
    return std::move(plan_);
  }

 private:
  void add_row(std::int32_t row) {
    const std::vector<Cut>& cuts = band_->structure.cuts;
    borders_.assign({0, num_cols_});
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      if (cuts[i].col_factor != 0) covered_[i] = covered_tiles(cuts[i], row, block_, num_cols_);
      borders_.push_back(covered_[i].begin);
      borders_.push_back(covered_[i].end);
    }
    std::sort(borders_.begin(), borders_.end());
    borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
    if (is_level_) known_.clear();
    for (std::size_t i = 1; i < borders_.size(); ++i) {
      const std::int32_t first = borders_[i - 1], end = borders_[i];
      const std::int32_t index = region_of(row, first, end);
      Region& region = plan_.regions_[static_cast<std::size_t>(index)];
      region.num_tiles += end - first;
      if (region.is_decided && region.num_probed < kProbes) probe(region, row, first, end);
      add_slots(region, row, first, end);
      plan_.stretches_.push_back({first, end, index});
    }
    plan_.offsets_.push_back(std::ssize(plan_.stretches_));
  }

  std::int32_t region_of(std::int32_t row, std::int32_t first, std::int32_t end) {
    std::uint64_t states = 0;
    for (const Covered& covered : covered_) {
      const unsigned state = first >= covered.end ? 2 : end <= covered.begin ? 0 : 1;
      states = 3 * states + state;
    }
    const auto [found, is_new] =
        known_.try_emplace(states, static_cast<std::int32_t>(plan_.regions_.size()));
    if (is_new) plan_.regions_.push_back(make_region(row, first, end));
    return found->second;
  }

  Region make_region(std::int32_t row, std::int32_t first, std::int32_t end) const {
    const Structure& structure = band_->structure;
    Region region;
    const Cut* direction = nullptr;
    bool crosses = false;
    for (std::size_t i = 0; i < structure.cuts.size(); ++i) {
      if (first >= covered_[i].end || end <= covered_[i].begin) continue;
      if (direction == nullptr) direction = &structure.cuts[i];
      crosses = crosses || !direction->is_parallel_to(structure.cuts[i]);
    }
    std::int64_t num_tracks = 0;
    if (direction == nullptr || (!crosses && direction->col_factor == 0)) {
      region.kind = RegionKind::plane;
      region.lattice = structure.lattice;
      if (is_level_) {
        region.first_row = row;
        region.lattice = {1, 0, structure.lattice.num_cols};
      }
      region.period = period_of(region.lattice, band_->end_row - band_->first_row);
      num_tracks = region.lattice.num_rows;
      if (!region.period || region.period->size() > kMostPatternTiles) {
        region.kind = RegionKind::single;
      }
    } else if (!crosses && !is_level_) {
      const auto step = structure.lattice.along(direction->row_factor * block_.block_q,
                                                direction->col_factor * block_.block_kv);
      if (step && step->rows < band_->end_row - band_->first_row) {
        region.kind = RegionKind::line;
        region.step = *step;
        num_tracks = step->rows;
      }
    }
    if (region.kind == RegionKind::single) {
      region.period.reset();
      region.first_row = row;
      num_tracks = 1;
    }
    region.tracks.resize(static_cast<std::size_t>(num_tracks));
    return region;
  }

  void probe(Region& region, std::int32_t row, std::int32_t first, std::int32_t end) const {
    ++region.num_probed;
    const CellBox box{std::int64_t{row} * block_.block_q,
                      std::min(program_.q_len, (std::int64_t{row} + 1) * block_.block_q),
                      std::int64_t{first} * block_.block_kv,
                      std::min(program_.kv_len, std::int64_t{end} * block_.block_kv)};
    region.is_decided =
        node_ranges(program_, tables_, box)[static_cast<std::size_t>(program_.root)].is_constant();
  }

  void add_slots(Region& region, std::int32_t row, std::int32_t first, std::int32_t end) {
    const Translation begin = region.reduce(row, first);
    if (begin.rows >= std::ssize(region.tracks)) {
      region.tracks.resize(static_cast<std::size_t>(begin.rows) + 1);  // of kind single
    }
    Region::Track& track = region.tracks[static_cast<std::size_t>(begin.rows)];
    if (region.kind == RegionKind::plane) {
      const std::int64_t num_cols = region.lattice.num_cols;
      if (track.num_known == num_cols) return;
      if (track.slots.empty()) track.slots.assign(static_cast<std::size_t>(num_cols), -1);
      end = static_cast<std::int32_t>(std::min<std::int64_t>(end, first + num_cols));
      std::int64_t at = begin.cols;
      for (std::int32_t col = first; col < end; ++col) {
        take(track, at, row, col);
        at = at + 1 == num_cols ? 0 : at + 1;
      }
      return;
    }
    if (track.slots.empty()) track.base = begin.cols;
    if (begin.cols < track.base) {
      track.slots.insert(track.slots.begin(), static_cast<std::size_t>(track.base - begin.cols),
                         -1);
      track.base = begin.cols;
    }
    const std::int64_t offset = begin.cols - track.base;
    const std::int64_t needed = offset + end - first;
    if (needed > std::ssize(track.slots)) track.slots.resize(static_cast<std::size_t>(needed), -1);
    for (std::int32_t col = first; col < end; ++col) take(track, offset + col - first, row, col);
  }

  void take(Region::Track& track, std::int64_t at, std::int32_t row, std::int32_t col) {
    std::int32_t& slot = track.slots[static_cast<std::size_t>(at)];
    if (slot >= 0) return;
    slot = static_cast<std::int32_t>(plan_.slots_.size());
    ++track.num_known;
    plan_.slots_.push_back({row, col});
  }

  const IrProgram& program_;
  const TableRanges& tables_;
  const BlockShape block_;
  const std::int64_t most_slots_;
  const std::int32_t num_cols_;
  const Band* band_ = nullptr;
  bool is_level_ = false;         // a cut on rows alone covers the band
  std::vector<Covered> covered_;  // by cut, in the current row
  std::vector<std::int32_t> borders_;
  std::unordered_map<std::uint64_t, std::int32_t> known_;  // regions of the band by states
  TilePlan plan_;
};

std::optional<TilePlan> TilePlan::make(const IrProgram& program, const TableRanges& tables,
                                       BlockShape block, std::int64_t most_slots,
                                       WorkMeter& meter) {
  const std::optional<std::vector<Band>> bands = make_bands(program, tables, block);
  if (!bands) return std::nullopt;
  Planner planner(program, tables, block, most_slots);
  for (const Band& band : *bands) {
    if (!planner.add_band(band, meter)) return std::nullopt;
  }
  return planner.finish();
}

}  // namespace fdma::periodic
