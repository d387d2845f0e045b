// The periodic lowering engine: masks of few distinct tiles that repeat, at the cost of these tiles
// and of the tile rows, whatever the lengths.
//
// Method
//  1. Analyze (analysis): translations of whole tiles that change nothing, and cuts, the lines
//     across which they must not be applied.
//  2. Plan (plan): divide tile rows at the cuts into stretches, group these into regions in which
//     tiles repeat, and give each class of equal tiles a slot.
//  3. Choose: decline where there are too many slots.
//  4. Bound (bounds): ranges of the program decide most slots that are empty or full.
//  5. Evaluate: number the other slots so that equal numbers mean equal cells (equal_slots), and
//     lower a tile of each number, as small masks, by box form (tiles).
//  6. Write: a region whose tiles are equal is written as plain segments, another one as one
//     pattern. A mask without patterns has the arrays that box form gives it.
//
// Fits        `(q // 5) % 7 == (k // 5) % 7 & causal` in blocks of 128: tiles repeat every 35
//             columns and by (5, 5), along the diagonal by (5, 5). That is 175 tiles to either side
//             and 5 on it, for a million tokens as for ten thousand. Natten2d, dilated windows,
//             strided and fixed patterns, videos by // and %, `(q * k) % 7 < 3`.
// Does not    look-ups by an index that does not repeat (documents, random tables); `bitand(q, k)`;
//             `q * k < 1000`; periods that the lengths do not hold a few times; masks that may be
//             undefined at some cell, which box form finds.
// Cost        time: O(tile rows * cuts * log(cuts)) + that of box form for the distinct slots that
//             ranges do not decide + O(slots + segments)
//             memory: 12 bytes a stretch, 16 a slot, the distinct bitmaps
// Threads     one
#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "ir/simplify.hpp"
#include "lower/engines.hpp"
#include "periodic/bounds.hpp"
#include "periodic/equal_slots.hpp"
#include "periodic/plain_runs.hpp"
#include "periodic/plan.hpp"
#include "periodic/tiles.hpp"

namespace fdma {
namespace {

using periodic::Contents;
using periodic::PlainRun;
using periodic::Region;
using periodic::RegionKind;
using periodic::Slot;
using periodic::Stretch;
using periodic::TilePlan;
using periodic::TileStore;

constexpr std::int64_t kUnrollBudget = std::int64_t{1} << 12;  // nodes
constexpr std::int64_t kMostTableEntries = std::int64_t{1} << 16;
constexpr std::int64_t kMostSlots = std::int64_t{1} << 21;
constexpr std::int64_t kMostUndecided = std::int64_t{1} << 18;
/// Box form is as fast where it evaluates few tiles, and the engine must save most of them.
constexpr std::int64_t kFewTiles = 2048;
constexpr std::int64_t kLeastGain = 4;

// A pattern that is not uniform, or one contents.
struct RegionForm {
  bool is_uniform = false;
  Contents contents = kEmptyTile;
  std::optional<SegmentBuilder::PatternContent> pattern;  // once it is used
};

// Tiles of one tile row: equal ones, or a pattern of a region.
struct Piece {
  std::int32_t first;
  std::int32_t end;
  Contents contents;
  std::int32_t region;  // -1: equal tiles
};

class PatternWriter {
 public:
  PatternWriter(const IrProgram& program, BlockShape block, const TilePlan& plan,
                const std::vector<Contents>& contents, const TileStore& store)
      : plan_(plan),
        contents_(contents),
        store_(store),
        block_(block),
        num_rows_(static_cast<std::int32_t>(ceil_div(program.q_len, block.block_q))),
        builder_(program.q_len, program.kv_len, block),
        interned_(static_cast<std::size_t>(store.size()), -1) {
    for (const Region& region : plan.regions()) forms_.push_back(form_of(region));
  }

  SegmentMask run() {
    std::vector<Piece> pieces, before;
    std::vector<TileSegment> segments;
    for (std::int32_t row = 0; row < num_rows_; ++row) {
      pieces_of(row, pieces);
      segments.clear();
      if (has_patterns_) {
        for (const Piece& piece : pieces) segments.push_back(segment_of(piece));
      } else {
        add_plain(pieces, segments);
      }
      builder_.add_rows(row, 1, segments);
    }
    builder_.skip_to(num_rows_);
    return builder_.finish();
  }

 private:
  RegionForm form_of(const Region& region) {
    RegionForm form;
    bool is_first = true;
    form.is_uniform = true;
    for (const Region::Track& track : region.tracks) {
      for (const std::int32_t slot : track.slots) {
        if (slot < 0) continue;
        const Contents here = contents_[static_cast<std::size_t>(slot)];
        if (!is_first && here != form.contents) {
          form.is_uniform = false;
          has_patterns_ = has_patterns_ || is_pattern(region);
          return form;
        }
        form.contents = here;
        is_first = false;
      }
    }
    return form;
  }

  static bool is_pattern(const Region& region) {
    return region.kind == RegionKind::plane ||
           (region.kind == RegionKind::line && region.step.rows > 1);
  }

  static void append(std::vector<Piece>& pieces, std::int32_t first, std::int32_t end,
                     Contents contents) {
    if (contents == kEmptyTile) return;
    if (!pieces.empty() && pieces.back().region < 0 && pieces.back().end == first &&
        pieces.back().contents == contents) {
      pieces.back().end = end;
    } else {
      pieces.push_back({first, end, contents, -1});
    }
  }

  void pieces_of(std::int32_t row, std::vector<Piece>& pieces) const {
    pieces.clear();
    for (const Stretch& stretch : plan_.stretches(row)) {
      const auto index = static_cast<std::size_t>(stretch.region);
      const Region& region = plan_.regions()[index];
      if (forms_[index].is_uniform) {
        append(pieces, stretch.first, stretch.end, forms_[index].contents);
      } else if (is_pattern(region)) {
        pieces.push_back({stretch.first, stretch.end, kEmptyTile, stretch.region});
      } else {
        Translation at = region.reduce(row, stretch.first);
        for (std::int32_t col = stretch.first; col < stretch.end; ++col, ++at.cols) {
          append(pieces, col, col + 1, contents_[static_cast<std::size_t>(region.slot(at))]);
        }
      }
    }
  }

  std::int32_t bitmap_of(Contents contents) {
    std::int32_t& index = interned_[static_cast<std::size_t>(contents)];
    if (index < 0) index = builder_.intern_bitmap(store_.words(contents), store_.hash(contents));
    return index;
  }

  TileSegment segment_of(const Piece& piece) {
    if (piece.region >= 0) {
      const SegmentBuilder::PatternContent& pattern = pattern_of(piece.region);
      return {piece.first, piece.end, 0, 0, pattern.kind, pattern.data_index};
    }
    if (piece.contents == kFullTile) {
      return {piece.first, piece.end, 0, 0, SegmentKind::full, 0};
    }
    return {piece.first, piece.end, 0, 0, SegmentKind::bitmap, bitmap_of(piece.contents)};
  }

  std::vector<Contents> tiles_of(std::int32_t index) const {
    const Region& region = plan_.regions()[static_cast<std::size_t>(index)];
    const PatternPeriod& period = *region.period;
    std::vector<Contents> tiles(static_cast<std::size_t>(period.size()), kEmptyTile);
    const auto put = [&](std::int64_t row, std::int64_t col, std::int32_t slot) {
      if (slot < 0) return;
      tiles[static_cast<std::size_t>(row * period.num_cols + col)] =
          contents_[static_cast<std::size_t>(slot)];
    };
    if (region.kind == RegionKind::line) {
      for (std::size_t row = 0; row < region.tracks.size(); ++row) {
        const Region::Track& track = region.tracks[row];
        const auto at = static_cast<std::int64_t>(row);
        for (std::size_t i = 0; i < track.slots.size(); ++i) {
          put(at, period.column(at, track.base + static_cast<std::int64_t>(i)), track.slots[i]);
        }
      }
    } else {
      for (std::int64_t row = 0; row < period.num_rows; ++row) {
        for (std::int64_t col = 0; col < period.num_cols; ++col) {
          put(row, col, region.slot(region.lattice.reduce(row, col + period.skew * row)));
        }
      }
    }
    return tiles;
  }

  // The pattern of a region, stored in the builder when it is first used.
  const SegmentBuilder::PatternContent& pattern_of(std::int32_t index) {
    RegionForm& form = forms_[static_cast<std::size_t>(index)];
    if (form.pattern) return *form.pattern;
    const PatternPeriod& period = *plan_.regions()[static_cast<std::size_t>(index)].period;
    std::vector<std::int32_t> tiles = tiles_of(index);
    for (std::int32_t& tile : tiles) {
      if (tile >= 0) tile = bitmap_of(tile);
    }
    form.pattern = builder_.add_pattern(static_cast<std::int32_t>(period.num_rows),
                                        static_cast<std::int32_t>(period.num_cols),
                                        static_cast<std::int32_t>(period.skew), tiles);
    return *form.pattern;
  }

  void add_plain(const std::vector<Piece>& pieces, std::vector<TileSegment>& segments) {
    for (std::size_t i = 0; i < pieces.size();) {
      if (pieces[i].contents == kFullTile) {
        segments.push_back(segment_of(pieces[i]));
        ++i;
        continue;
      }
      runs_.clear();
      for (; i < pieces.size() && pieces[i].contents != kFullTile &&
             (runs_.empty() || runs_.back().end == pieces[i].first);
           ++i) {
        runs_.push_back({pieces[i].first, pieces[i].end, pieces[i].contents});
      }
      periodic::StoredRuns stored(builder_, store_, block_, runs_);
      builder_.add_partial_run(runs_.front().first, runs_.back().end, 0, stored, segments);
    }
  }

  const TilePlan& plan_;
  const std::vector<Contents>& contents_;
  const TileStore& store_;
  const BlockShape block_;
  const std::int32_t num_rows_;
  SegmentBuilder builder_;
  std::vector<std::int32_t> interned_;  // by contents: the builder's bitmap, or -1
  std::vector<RegionForm> forms_;       // by region
  std::vector<PlainRun> runs_;
  bool has_patterns_ = false;
};

std::int64_t num_table_entries(const IrProgram& program) {
  std::int64_t sum = 0;
  for (const IrTable& table : program.tables) {
    std::int64_t count = 1;
    for (int d = 0; d < table.rank; ++d) count *= table.extents[d];
    sum += table.is_runs() ? std::ssize(table.run_values) : count;
  }
  return sum;
}

// Finds the contents of the undecided slots. The number of tiles that were evaluated, or nothing if
// one could not be or the meter stopped the work.
std::optional<std::int64_t> decide_cell_by_cell(const IrProgram& program, BlockShape block,
                                                std::span<const Slot> slots,
                                                std::span<Contents> contents, TileStore& store,
                                                WorkMeter& meter) {
  std::vector<std::int32_t> places;  // of the undecided slots
  std::vector<Slot> undecided;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (contents[i] != periodic::kUndecidedTile) continue;
    places.push_back(static_cast<std::int32_t>(i));
    undecided.push_back(slots[i]);
  }
  const std::vector<std::int32_t> first =
      periodic::first_equal_slots(program, block, undecided, meter);
  std::vector<Slot> evaluated;
  std::vector<std::int32_t> index(undecided.size(), -1);  // of first slots, in `evaluated`
  for (std::size_t i = 0; i < undecided.size(); ++i) {
    if (first[i] != static_cast<std::int32_t>(i)) continue;
    index[i] = static_cast<std::int32_t>(evaluated.size());
    evaluated.push_back(undecided[i]);
  }
  const Result<std::vector<Contents>> found =
      periodic::evaluate_slots(program, block, evaluated, store, meter);
  if (!found || meter.must_stop()) return std::nullopt;
  for (std::size_t i = 0; i < undecided.size(); ++i) {
    const std::int32_t at = index[static_cast<std::size_t>(first[i])];
    contents[static_cast<std::size_t>(places[i])] = (*found)[static_cast<std::size_t>(at)];
  }
  return std::ssize(evaluated);
}

}  // namespace

std::optional<SegmentMask> lower_periodic(const IrProgram& source, BlockShape block, bool is_asked,
                                          WorkMeter& meter, ProgramReport* report) {
  const auto decline = [&](const char* reason) {
    if (report != nullptr) report->declined.push_back({LoweringEngine::periodic, reason});
    return std::nullopt;
  };
  // Where box form has little to do it is not asked.
  const std::int64_t num_tiles =
      ceil_div(source.q_len, block.block_q) * ceil_div(source.kv_len, block.block_kv);
  if (!is_asked && num_tiles < kFewTiles) return std::nullopt;
  if (num_tiles == 0) return decline("the mask has no cells");
  if (num_table_entries(source) > kMostTableEntries) return decline("its tables are large");
  const auto start = std::chrono::steady_clock::now();
  const std::optional<IrProgram> unrolled = unroll(source, kUnrollBudget);
  const IrProgram& program = unrolled ? *unrolled : source;
  TableRanges tables(program.tables);
  for (const IrNode& node : program.nodes) {
    if (node.op == IrOp::lookup) tables.scan(node.value);
  }
  const std::optional<TilePlan> plan = TilePlan::make(program, tables, block, kMostSlots, meter);
  if (!plan) return decline("its tiles do not repeat in a way that is known");
  const std::int64_t num_slots = std::ssize(plan->slots());
  const std::int64_t num_saved = plan->num_undecided();
  if (!is_asked && (num_saved < kFewTiles || num_saved < kLeastGain * num_slots)) {
    return decline("box form evaluates few tiles, or not many more");
  }
  const auto planned = std::chrono::steady_clock::now();
  std::vector<Contents> contents =
      periodic::bound_slots(program, tables, block, plan->slots(), meter);
  const std::int64_t num_undecided =
      std::count(contents.begin(), contents.end(), periodic::kUndecidedTile);
  if (num_undecided > kMostUndecided) return decline("too many of its tiles differ");
  const auto bounded = std::chrono::steady_clock::now();
  TileStore store(block);
  const std::optional<std::int64_t> num_evaluated =
      decide_cell_by_cell(program, block, plan->slots(), contents, store, meter);
  if (!num_evaluated) return decline("a tile could not be evaluated");
  const auto evaluated = std::chrono::steady_clock::now();
  SegmentMask mask = PatternWriter(program, block, *plan, contents, store).run();
  if (report != nullptr) {
    const auto seconds = [](auto from, auto to) {
      return std::chrono::duration<double>(to - from).count();
    };
    report->engine = LoweringEngine::periodic;
    report->method = "one tile of each class of tiles that repeat";
    report->num_bounded_tiles = num_slots - num_undecided;
    report->num_repeated_tiles = num_undecided - *num_evaluated;
    report->num_evaluated_tiles = *num_evaluated;
    report->phases = {{"planning", seconds(start, planned)},
                      {"bounding tiles", seconds(planned, bounded)},
                      {"evaluating cells", seconds(bounded, evaluated)},
                      {"writing", seconds(evaluated, std::chrono::steady_clock::now())}};
  }
  return mask;
}

}  // namespace fdma
