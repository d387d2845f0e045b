// Divides tile rows into runs, evaluates each combination of sources once, and hands the tiles to
// the builder.
//
// Longer than most files: the runs, the cached tiles, the periods of patterns, and the partial
// segments that the builder asks about share the state of the current tile row.
#include "algebra/tile_layers.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <tuple>
#include <utility>

#include "algebra/layer_patterns.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "segment/bit_scan.hpp"

namespace fdma {
namespace {

struct Border {
  std::int64_t at;
  std::int64_t step;
};

// Consecutive tiles of the result whose cells are equal, or that come from one pattern.
struct EqualRun {
  Border first;
  Border end;
  RunKind kind;
  std::int32_t tile;  // the entry of partial tiles, or the number of the pattern or combination
};

RunKind run_kind_of(TileClass kind) {
  return kind == TileClass::empty  ? RunKind::empty
         : kind == TileClass::full ? RunKind::full
                                   : RunKind::partial;
}

// A tile of the result whose class its sources do not decide.
struct CachedTile {
  LayerTiles sources;
  bool is_last_row;  // it is in the last row of the result, and that is ragged
  bool is_last_col;
  TileClass kind;
  std::uint64_t hash;
  std::int32_t bitmap;   // interned, or -1
  std::int32_t cells;    // tiles with equal cells have the same number
  std::int64_t row_run;  // row_run_ when its words were last written, to row_words_ from `at` on
  std::size_t at;
};

// The borders of one layer in one tile row, in order.
class LayerWalker {
 public:
  void start(const TileLayer& layer, bool is_last_row, std::int64_t last_col) {
    layer_ = &layer;
    is_last_row_ = is_last_row;
    last_col_ = last_col;
    next_ = 0;
    is_inside_ = false;
  }
  std::vector<UniformRun>& parts() { return parts_; }
  bool is_done() const { return next_ == parts_.size(); }
  Border border() const {
    const UniformRun& part = parts_[next_];
    return is_inside_ ? Border{part.end + layer_->col_shift, part.step_end}
                      : Border{part.first + layer_->col_shift, part.step_first};
  }
  void pass() {
    if (is_inside_) ++next_;
    is_inside_ = !is_inside_;
  }
  LayerTile tile_at(std::int64_t col) const {
    LayerTile tile;
    if (!is_inside_) return tile;
    tile.source = parts_[next_].source;
    if (tile.source == kFullTiles || tile.source >= kFirstPattern) {
      tile.is_last_row = is_last_row_;
      tile.is_last_col = col >= last_col_;
    }
    return tile;
  }

 private:
  const TileLayer* layer_ = nullptr;
  std::vector<UniformRun> parts_;
  bool is_last_row_ = false;
  std::int64_t last_col_ = 0;  // column of the result from which on the layer's tiles are ragged
  std::size_t next_ = 0;
  bool is_inside_ = false;
};

class LayerCombination {
 public:
  LayerCombination(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                   std::span<const TileLayer> layers, TileFunction& function)
      : q_len_(q_len),
        kv_len_(kv_len),
        block_(block),
        layers_(layers),
        function_(function),
        builder_(q_len, kv_len, block),
        period_(row_period(block)),
        num_rows_(ceil_div(q_len, block.block_q)),
        num_cols_(ceil_div(kv_len, block.block_kv)),
        words_per_bitmap_(std::int64_t{block.block_q} * block.block_kv / 64),
        patterns_(layers, num_rows_ * num_cols_),
        equal_runs_(static_cast<std::size_t>(period_)) {
    static_borders_.push_back({0, 0});
    if (kv_len % block.block_kv != 0) static_borders_.push_back({num_cols_ - 1, 0});
    static_borders_.push_back({num_cols_, 0});
    for (const TileLayer& layer : layers) {
      const SegmentMask& mask = layer.parts->mask();
      if (mask.kv_len % block.block_kv == 0) continue;
      static_borders_.push_back({mask.num_tile_cols() - 1 + layer.col_shift, 0});
    }
    std::sort(static_borders_.begin(), static_borders_.end(),
              [](const Border& a, const Border& b) { return a.at < b.at; });
  }

  SegmentMask run() {
    for (std::int64_t row = 0; row < num_rows_; ++row_run_) {
      row_words_.clear();
      const std::int64_t residues = std::min(period_, num_rows_ - row);
      std::int64_t periods = num_rows_;
      for (std::int64_t r = 0; r < residues; ++r) {
        periods =
            std::min(periods, make_equal_runs(row + r, equal_runs_[static_cast<std::size_t>(r)]));
      }
      for (std::int64_t r = 0; r < residues; ++r) {
        add_tile_rows(row + r, periods, equal_runs_[static_cast<std::size_t>(r)]);
      }
      row = std::min(row + periods * period_, num_rows_);
      builder_.skip_to(static_cast<std::int32_t>(row));
    }
    return builder_.finish();
  }

 private:
  // Fetches the parts of every layer under a tile row. Returns the number of periods for which they
  // move on.
  std::int64_t start_layers(std::int64_t row) {
    std::int64_t periods = ceil_div(num_rows_ - row, period_);
    const auto stop_before = [&](std::int64_t from, std::int64_t limit) {  // from < limit
      periods = std::min(periods, ceil_div(limit - from, period_));
    };
    is_last_row_ = row == num_rows_ - 1 && q_len_ % block_.block_q != 0;
    if (q_len_ % block_.block_q != 0 && !is_last_row_) stop_before(row, num_rows_ - 1);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const TileLayer& layer = layers_[l];
      const SegmentMask& mask = layer.parts->mask();
      const std::int64_t source_row = row - layer.row_shift, source_rows = mask.num_tile_rows();
      const bool is_ragged = mask.q_len % block_.block_q != 0;
      const bool is_ragged_row = is_ragged && source_row == source_rows - 1;
      const std::int64_t last_col = mask.kv_len % block_.block_kv == 0
                                        ? num_cols_
                                        : mask.num_tile_cols() - 1 + layer.col_shift;
      walkers_[l].start(layer, is_ragged_row, last_col);
      if (source_row < 0 || source_row >= source_rows) {
        walkers_[l].parts().clear();
        if (source_row < 0) stop_before(source_row, 0);
        continue;
      }
      const std::int64_t rows =
          layer.parts->parts_of(static_cast<std::int32_t>(source_row), walkers_[l].parts());
      periods = is_ragged_row ? 1 : std::min(periods, rows);
      if (is_ragged && !is_ragged_row) stop_before(source_row, source_rows - 1);
    }
    return periods;
  }

  // The runs of a tile row, and the number of periods for which only their places change.
  std::int64_t make_equal_runs(std::int64_t row, std::vector<EqualRun>& equal_runs) {
    equal_runs.clear();
    std::int64_t periods = start_layers(row);
    auto fixed = static_borders_.begin();
    Border before{0, 0};
    bool is_first = true;
    while (true) {
      LayerWalker* nearest = nullptr;
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        if (walkers_[l].is_done()) continue;
        if (nearest == nullptr || walkers_[l].border().at < nearest->border().at) {
          nearest = &walkers_[l];
        }
      }
      if (fixed == static_borders_.end() && nearest == nullptr) break;
      const bool is_fixed = nearest == nullptr ||
                            (fixed != static_borders_.end() && fixed->at <= nearest->border().at);
      const Border border = is_fixed ? *fixed : nearest->border();
      if (!is_first) {
        const std::int64_t gap = border.at - before.at, step = border.step - before.step;
        if (gap == 0 && step != 0) periods = 1;
        if (gap > 0 && step < 0) periods = std::min(periods, (gap - 1) / -step + 1);
        if (gap > 0 && before.at >= 0 && border.at <= num_cols_) {
          add_equal_run(row, before, border, equal_runs);
        }
      }
      is_first = false;
      before = border;
      if (is_fixed) {
        ++fixed;
      } else {
        nearest->pass();
      }
    }
    periods = decide_patterns(row, periods, equal_runs);
    for_each_tile_run(equal_runs, [&](std::span<const EqualRun> tile_run) {
      if (is_growing(tile_run)) periods = std::min(periods, rows_of_growing(tile_run, periods));
    });
    return periods;
  }

  // Appends the tiles between two borders, between which no layer has another one.
  void add_equal_run(std::int64_t row, const Border& first, const Border& end,
                     std::vector<EqualRun>& equal_runs) {
    LayerTiles tiles{};
    for (std::size_t l = 0; l < layers_.size(); ++l) tiles[l] = walkers_[l].tile_at(first.at);
    const std::span layer_tiles(tiles.data(), layers_.size());
    const TileClass kind = function_.classify(layer_tiles);
    if (kind != TileClass::partial) {
      append_run({first, end, run_kind_of(kind), -1}, equal_runs);
      return;
    }
    const bool is_last_col = is_ragged_col(first.at);
    if (std::none_of(layer_tiles.begin(), layer_tiles.end(),
                     [](const LayerTile& tile) { return tile.source >= kFirstPattern; })) {
      const std::int32_t index = cached_tile(tiles, is_last_col);
      append_run({first, end, kind_of(index), index}, equal_runs);
      return;
    }
    bool has_last_row = is_last_row_, has_last_col = is_last_col;
    for (const LayerTile& tile : layer_tiles) {
      has_last_row = has_last_row || tile.is_last_row;
      has_last_col = has_last_col || tile.is_last_col;
    }
    equal_runs.push_back(
        {first, end, RunKind::mixed,
         patterns_.find(tiles, has_last_row ? row : -1, has_last_col ? first.at : -1)});
    has_mixed_ = true;
  }

  // Appends tiles, joined to those before them if these hold the same cells.
  void append_run(const EqualRun& next, std::vector<EqualRun>& equal_runs) const {
    if (next.kind == RunKind::empty) return;
    if (!equal_runs.empty()) {
      EqualRun& last = equal_runs.back();
      if (last.kind == next.kind && last.end.at == next.first.at &&
          (next.kind == RunKind::full ||
           (next.kind == RunKind::pattern && last.tile == next.tile) ||
           (next.kind == RunKind::partial && cells_of(last) == cells_of(next)))) {
        last.end = next.end;
        return;
      }
    }
    equal_runs.push_back(next);
  }

  // Replaces the mixed runs of a tile row, which repeats for `periods` periods. A combination is
  // stored as a pattern once that takes no more tiles than writing it out; a combination that is no
  // larger than a pattern in it always is. Returns 1 if tiles of this row were written out.
  std::int64_t decide_patterns(std::int64_t row, std::int64_t periods,
                               std::vector<EqualRun>& equal_runs) {
    if (!has_mixed_) return periods;
    has_mixed_ = false;
    undecided_.swap(equal_runs);
    equal_runs.clear();
    for (const EqualRun& run : undecided_) {
      if (run.kind != RunKind::mixed) {
        append_run(run, equal_runs);
        continue;
      }
      PatternCombination& combination = patterns_[run.tile];
      const std::int64_t width = run.end.at - run.first.at;
      const std::int64_t growth = run.end.step - run.first.step;
      const std::int64_t num_tiles = periods * width + growth * (periods * (periods - 1) / 2);
      const bool can_be_stored = combination.period.num_rows > 0 &&
                                 combination.period.size() <= kMaxPatternTiles - num_stored_;
      if (!combination.is_stored && can_be_stored &&
          (!combination.may_be_large ||
           combination.period.size() <= combination.num_written + num_tiles)) {
        store(combination);
      }
      if (combination.is_stored) {
        append_run({run.first, run.end, combination.kind, combination.tile}, equal_runs);
        continue;
      }
      periods = 1;
      combination.num_written += width;
      for (std::int64_t col = run.first.at; col < run.end.at; ++col) {
        const auto [kind, tile] = tile_at(combination, row, col);
        append_run({{col, 0}, {col + 1, 0}, kind, tile}, equal_runs);
      }
    }
    return periods;
  }

  // Evaluates one period of a combination and stores it as a pattern, or as one tile if all of its
  // tiles are equal.
  void store(PatternCombination& combination) {
    const PatternPeriod& period = combination.period;
    std::vector<std::pair<RunKind, std::int32_t>> tiles;
    tiles.reserve(static_cast<std::size_t>(period.size()));
    bool is_uniform = true;
    for (std::int64_t r = 0; r < period.num_rows; ++r) {
      for (std::int64_t c = 0; c < period.num_cols; ++c) {
        const std::int64_t row = combination.row >= 0 ? combination.row : r;
        const std::int64_t col =
            combination.col >= 0 ? combination.col : (c + period.skew * r) % period.num_cols;
        tiles.push_back(tile_at(combination, row, col));
        const auto& [kind, tile] = tiles.back();
        const auto& [first_kind, first_tile] = tiles.front();
        is_uniform = is_uniform && kind == first_kind &&
                     (kind != RunKind::partial || cells_of(tile) == cells_of(first_tile));
      }
    }
    combination.is_stored = true;
    if (is_uniform) {
      std::tie(combination.kind, combination.tile) = tiles.front();
      return;
    }
    std::vector<std::int32_t> contents;
    contents.reserve(tiles.size());
    for (const auto& [kind, tile] : tiles) {
      contents.push_back(kind == RunKind::empty  ? kEmptyTile
                         : kind == RunKind::full ? kFullTile
                                                 : stored_bitmap(tile));
    }
    num_stored_ += period.size();
    combination.kind = RunKind::pattern;
    combination.tile = builder_
                           .add_pattern(static_cast<std::int32_t>(period.num_rows),
                                        static_cast<std::int32_t>(period.num_cols),
                                        static_cast<std::int32_t>(period.skew), contents)
                           .data_index;
  }

  // The tile of a combination at a place, which need not lie in the result.
  std::pair<RunKind, std::int32_t> tile_at(const PatternCombination& combination, std::int64_t row,
                                           std::int64_t col) {
    const LayerTiles tiles = patterns_.tiles_at(combination.sources, row, col);
    const TileClass kind = function_.classify(std::span(tiles.data(), layers_.size()));
    if (kind != TileClass::partial) return {run_kind_of(kind), -1};
    const std::int32_t index =
        cached_tile(tiles, combination.col >= 0 && is_ragged_col(combination.col));
    return {kind_of(index), index};
  }

  bool is_ragged_col(std::int64_t col) const {
    return kv_len_ % block_.block_kv != 0 && col == num_cols_ - 1;
  }

  RunKind kind_of(std::int32_t tile) const {
    return run_kind_of(cached_tiles_[static_cast<std::size_t>(tile)].kind);
  }

  std::int32_t cells_of(std::int32_t tile) const {
    return cached_tiles_[static_cast<std::size_t>(tile)].cells;
  }

  // The bitmap of a partial tile, interned.
  std::int32_t stored_bitmap(std::int32_t tile) {
    CachedTile& entry = cached_tiles_[static_cast<std::size_t>(tile)];
    if (entry.bitmap < 0) entry.bitmap = builder_.intern_bitmap(words_of(entry), entry.hash);
    is_stored_[static_cast<std::size_t>(entry.cells)] = true;
    return entry.bitmap;
  }

  std::int32_t cells_of(const EqualRun& equal_run) const { return cells_of(equal_run.tile); }

  // The entry of a tile, evaluated if it is new.
  std::int32_t cached_tile(const LayerTiles& tiles, bool is_last_col) {
    const std::uint64_t hash = hash_of((is_last_row_ ? 1u : 0u) + (is_last_col ? 2u : 0u),
                                       std::span(tiles.data(), layers_.size()));
    const std::int32_t found = index_.find(hash, [&](std::int32_t i) {
      const CachedTile& cached = cached_tiles_[static_cast<std::size_t>(i)];
      return cached.is_last_row == is_last_row_ && cached.is_last_col == is_last_col &&
             cached.sources == tiles;
    });
    if (found >= 0) return found;
    CachedTile cached{};
    cached.sources = tiles;
    cached.is_last_row = is_last_row_;
    cached.is_last_col = is_last_col;
    cached.bitmap = -1;
    cached.row_run = -1;
    const std::uint64_t* words = words_of(cached);
    cached.kind = class_of(cached, words);
    if (cached.kind == TileClass::partial) {
      cached.hash = hash_words(words, words_per_bitmap_);
      cached.cells = cells_index_.find(cached.hash, [](std::int32_t) { return true; });
      if (cached.cells < 0) {
        cached.cells = static_cast<std::int32_t>(is_stored_.size());
        is_stored_.push_back(false);
        cells_index_.insert(cached.hash, cached.cells);
      }
    }
    const auto index = static_cast<std::int32_t>(cached_tiles_.size());
    cached_tiles_.push_back(cached);
    index_.insert(hash, index);
    return index;
  }

  std::int64_t num_rows_of(const CachedTile& tile) const {
    return tile.is_last_row ? q_len_ % block_.block_q : block_.block_q;
  }
  std::int64_t num_keys_of(const CachedTile& tile) const {
    return tile.is_last_col ? kv_len_ % block_.block_kv : block_.block_kv;
  }

  // The cells of a tile, written once for the tile rows that are appended together. Valid until the
  // words of another tile are asked for.
  const std::uint64_t* words_of(CachedTile& tile) {
    if (tile.row_run != row_run_) {
      tile.row_run = row_run_;
      tile.at = row_words_.size();
      row_words_.resize(tile.at + static_cast<std::size_t>(words_per_bitmap_));
      write_tile(tile, row_words_.data() + tile.at);
    }
    return row_words_.data() + tile.at;
  }

  // Writes the cells of a tile that exist to words that are 0.
  void write_tile(const CachedTile& tile, std::uint64_t* words) {
    function_.evaluate(std::span(tile.sources.data(), layers_.size()), words);
    if (!tile.is_last_row && !tile.is_last_col) return;
    write_existing(tile);
    for (std::size_t i = 0; i < existing_.size(); ++i) words[i] &= existing_[i];
  }

  // Sets existing_ to the cells of a tile that exist.
  void write_existing(const CachedTile& tile) {
    existing_.assign(static_cast<std::size_t>(words_per_bitmap_), 0);
    for (std::int64_t r = 0; r < num_rows_of(tile); ++r) {
      set_bits(existing_.data(), r * block_.block_kv, r * block_.block_kv + num_keys_of(tile));
    }
  }

  TileClass class_of(const CachedTile& tile, const std::uint64_t* words) {
    std::uint64_t any = 0, missing = 0;
    if (tile.is_last_row || tile.is_last_col) {
      write_existing(tile);
      for (std::size_t i = 0; i < existing_.size(); ++i) missing |= words[i] ^ existing_[i];
    } else {
      for (std::int64_t i = 0; i < words_per_bitmap_; ++i) missing |= ~words[i];
    }
    for (std::int64_t i = 0; i < words_per_bitmap_; ++i) any |= words[i];
    if (any == 0) return TileClass::empty;
    return missing == 0 ? TileClass::full : TileClass::partial;
  }

  // Calls visit for every maximal sequence of adjacent partial runs.
  template <class Visit>
  static void for_each_tile_run(std::span<const EqualRun> equal_runs, Visit&& visit) {
    for (std::size_t p = 0; p < equal_runs.size();) {
      std::size_t end = p + 1;
      if (equal_runs[p].kind == RunKind::partial) {
        while (end < equal_runs.size() && equal_runs[end].kind == RunKind::partial &&
               equal_runs[end].first.at == equal_runs[end - 1].end.at) {
          ++end;
        }
        visit(equal_runs.subspan(p, end - p));
      }
      p = end;
    }
  }

  // True if the width of one of these adjacent runs changes from row to row.
  static bool is_growing(std::span<const EqualRun> tile_run) {
    return std::any_of(tile_run.begin(), tile_run.end(), [](const EqualRun& equal_run) {
      return equal_run.first.step != equal_run.end.step;
    });
  }

  // The number of rows for which a growing sequence of runs can be written in closed form, or 1.
  // Each of its tiles must be stored as a bitmap already, so that nothing in it is new, and no row
  // panel may be as wide.
  std::int64_t rows_of_growing(std::span<const EqualRun> tile_run, std::int64_t periods) const {
    for (const EqualRun& equal_run : tile_run) {
      const CachedTile& tile = cached_tiles_[static_cast<std::size_t>(equal_run.tile)];
      if (!is_stored_[static_cast<std::size_t>(tile.cells)] || tile.bitmap < 0) return 1;
    }
    const std::int64_t width = tile_run.back().end.at - tile_run.front().first.at;
    const std::int64_t step = tile_run.back().end.step - tile_run.front().first.step;
    for (const std::int64_t panel_width : panel_widths_) {
      const std::int64_t distance = panel_width - width;  // step times the rows until equal width
      if (distance == 0) return 1;
      if (step == 0 || distance % step != 0 || distance / step < 0) continue;
      periods = std::min(periods, distance / step);
    }
    return periods;
  }

  // Consecutive partial runs, for the builder.
  class LayerRun final : public PartialRun {
   public:
    LayerRun(LayerCombination& owner, std::span<const EqualRun> equal_runs)
        : owner_(owner), equal_runs_(equal_runs), first_(equal_runs.front().first.at) {
      words_.clear();
    }

    std::span<const NumberedTiles> numbers() override {
      std::vector<NumberedTiles>& numbers = owner_.tile_run_numbers_;
      numbers.clear();
      for (const EqualRun& equal_run : equal_runs_) {
        numbers.push_back({equal_run.tile, static_cast<std::int32_t>(equal_run.end.at - first_)});
      }
      return numbers;
    }
    std::int64_t num_intervals(std::int64_t limit) override {
      fetch_words();
      const BlockShape block = owner_.block_;
      std::int64_t count = 0;  // ranges of each tile by itself, less those that continue another
      for (std::size_t p = 0; p < equal_runs_.size() && count <= limit; ++p) {
        const std::int64_t num_tiles = equal_runs_[p].end.at - equal_runs_[p].first.at;
        count += num_tiles * count_row_starts(words_[p], 1, block, INT64_MAX);
        if (num_tiles > 1) count -= (num_tiles - 1) * continued(words_[p], words_[p]);
        if (p > 0) count -= continued(words_[p - 1], words_[p]);
      }
      return count;
    }
    std::int64_t run_end(std::int64_t tile) override {
      tile_at(tile);
      return equal_runs_[equal_run_].end.at - first_;
    }
    std::uint64_t bitmap_hash(std::int64_t tile) override { return tile_at(tile).hash; }
    std::int32_t intern(std::int64_t tile, std::uint64_t hash) override {
      CachedTile& entry = tile_at(tile);
      if (entry.bitmap < 0) {
        entry.bitmap = owner_.builder_.intern_bitmap(owner_.words_of(entry), hash);
      }
      return entry.bitmap;
    }
    void write_panel(std::vector<std::int64_t>& offsets,
                     std::vector<Interval>& intervals) override {
      for_each_run([&](std::int64_t r, std::int64_t begin, std::int64_t end) {
        ++offsets[static_cast<std::size_t>(r) + 1];
        intervals.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
      });
      for (std::size_t r = 1; r < offsets.size(); ++r) offsets[r] += offsets[r - 1];
    }

   private:
    // Tiles are asked for in order.
    CachedTile& tile_at(std::int64_t tile) {
      if (tile == 0) equal_run_ = 0;
      while (first_ + tile >= equal_runs_[equal_run_].end.at) ++equal_run_;
      return tile_of(equal_runs_[equal_run_]);
    }

    // Rows whose last key in one tile and first key in the next are both true.
    std::int64_t continued(const std::uint64_t* left, const std::uint64_t* right) const {
      const std::int64_t block_kv = owner_.block_.block_kv;
      std::uint64_t count = 0;
      for (std::int64_t bit = 0; bit < owner_.words_per_bitmap_ * 64; bit += block_kv) {
        const std::int64_t last = bit + block_kv - 1;
        count += left[last / 64] >> (last % 64) & right[bit / 64] >> (bit % 64) & 1;
      }
      return static_cast<std::int64_t>(count);
    }

    // Calls visit(row, begin, end) for the maximal key ranges of every row, relative to the first
    // tile. A row of a run that is all true or all false costs O(1), however many tiles it has.
    template <class Visit>
    void for_each_run(Visit&& visit) {
      fetch_words();
      const std::int64_t block_kv = owner_.block_.block_kv;
      for (std::int64_t r = 0; r < owner_.block_.block_q; ++r) {
        std::int64_t open = -1;  // first key of the current range
        std::int64_t key = 0;
        for (std::size_t p = 0; p < equal_runs_.size(); ++p) {
          const std::uint64_t* words = words_[p];
          const std::int64_t num_tiles = equal_runs_[p].end.at - equal_runs_[p].first.at;
          for (std::int64_t t = 0; t < num_tiles; ++t) {
            std::int64_t turns = 0;
            for (std::int64_t c = 0; c < block_kv; c += 64) {
              const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
              const std::int64_t at = r * block_kv + c;
              const std::uint64_t bits =
                  width == 64 && at % 64 == 0 ? words[at / 64] : read_bits(words, at, width);
              const std::uint64_t all = ~std::uint64_t{0} >> (64 - width);
              if (bits == (open >= 0 ? all : 0)) continue;
              for (int i = 0; i < width;) {  // change by change
                const std::uint64_t rest = open >= 0 ? ~(bits >> i) : bits >> i;
                const int step = std::countr_zero(rest);
                if (i + step >= width) break;
                i += step;
                ++turns;
                if (open < 0) {
                  open = key + c + i;
                  continue;
                }
                visit(r, open, key + c + i);
                open = -1;
              }
            }
            key += block_kv;
            if (turns == 0) {  // all true or all false, and so are the tiles to come
              key += (num_tiles - t - 1) * block_kv;
              break;
            }
          }
        }
        if (open >= 0) visit(r, open, key);
      }
    }

    // Sets words_ to the cells of every run.
    void fetch_words() {
      if (!words_.empty()) return;
      for (const EqualRun& equal_run : equal_runs_) owner_.words_of(tile_of(equal_run));
      for (const EqualRun& equal_run : equal_runs_)
        words_.push_back(owner_.words_of(tile_of(equal_run)));
    }

    CachedTile& tile_of(const EqualRun& equal_run) {
      return owner_.cached_tiles_[static_cast<std::size_t>(equal_run.tile)];
    }

    LayerCombination& owner_;
    const std::span<const EqualRun> equal_runs_;
    const std::int64_t first_;
    std::size_t equal_run_ = 0;
    std::vector<const std::uint64_t*>& words_ = owner_.tile_run_words_;
  };

  // Stores the partial runs and appends the tile row `periods` times.
  void add_tile_rows(std::int64_t row, std::int64_t periods,
                     const std::vector<EqualRun>& equal_runs) {
    segments_.clear();
    for (std::size_t p = 0; p < equal_runs.size();) {
      const EqualRun& equal_run = equal_runs[p];
      if (equal_run.kind == RunKind::full) {
        add_full(equal_run);
        ++p;
        continue;
      }
      if (equal_run.kind == RunKind::pattern) {
        add_segment(equal_run, SegmentKind::pattern, equal_run.tile);
        ++p;
        continue;
      }
      std::size_t last = p + 1;
      while (last < equal_runs.size() && equal_runs[last].kind == RunKind::partial &&
             equal_runs[last].first.at == equal_runs[last - 1].end.at) {
        ++last;
      }
      const std::span tile_run(equal_runs.data() + p, last - p);
      if (periods > 1 && is_growing(tile_run)) {
        for (const EqualRun& tiles : tile_run) {
          add_segment(tiles, SegmentKind::bitmap,
                      cached_tiles_[static_cast<std::size_t>(tiles.tile)].bitmap);
        }
      } else {
        add_tile_run(tile_run);
      }
      p = last;
    }
    builder_.add_rows(static_cast<std::int32_t>(row), static_cast<std::int32_t>(periods),
                      segments_);
  }

  void add_full(const EqualRun& equal_run) {
    const auto first = static_cast<std::int32_t>(equal_run.first.at);
    const auto end = static_cast<std::int32_t>(equal_run.end.at);
    const auto step_end = static_cast<std::int32_t>(equal_run.end.step);
    if (!segments_.empty() && segments_.back().kind == SegmentKind::full &&
        segments_.back().end_tile == first) {
      segments_.back().end_tile = end;
      segments_.back().step_end = step_end;
      return;
    }
    segments_.push_back({first, end, static_cast<std::int32_t>(equal_run.first.step), step_end,
                         SegmentKind::full, 0});
  }

  // Partial tiles whose bitmap is stored, or tiles of a pattern.
  void add_segment(const EqualRun& equal_run, SegmentKind kind, std::int32_t data_index) {
    segments_.push_back({static_cast<std::int32_t>(equal_run.first.at),
                         static_cast<std::int32_t>(equal_run.end.at),
                         static_cast<std::int32_t>(equal_run.first.step),
                         static_cast<std::int32_t>(equal_run.end.step), kind, data_index});
  }

  void add_tile_run(std::span<const EqualRun> equal_runs) {
    LayerRun tile_run(*this, equal_runs);
    const std::size_t stored = segments_.size();
    builder_.add_partial_run(static_cast<std::int32_t>(equal_runs.front().first.at),
                             static_cast<std::int32_t>(equal_runs.back().end.at),
                             static_cast<std::int32_t>(equal_runs.front().first.step), tile_run,
                             segments_);
    for (const EqualRun& equal_run : equal_runs)
      is_stored_[static_cast<std::size_t>(cells_of(equal_run))] = true;
    if (segments_[stored].kind != SegmentKind::rows) return;
    const std::int64_t width = equal_runs.back().end.at - equal_runs.front().first.at;
    if (std::find(panel_widths_.begin(), panel_widths_.end(), width) == panel_widths_.end()) {
      panel_widths_.push_back(width);
    }
  }

  const std::int64_t q_len_, kv_len_;
  const BlockShape block_;
  const std::span<const TileLayer> layers_;
  TileFunction& function_;
  SegmentBuilder builder_;
  const std::int64_t period_, num_rows_, num_cols_, words_per_bitmap_;
  PatternCombinations patterns_;
  std::int64_t num_stored_ = 0;  // tiles of the patterns of the result, before they are reduced
  std::vector<Border> static_borders_;
  std::vector<CachedTile> cached_tiles_;
  DataIndex index_;
  std::vector<char> is_stored_;             // by cells: the builder has stored tiles with them
  std::vector<std::int64_t> panel_widths_;  // in tiles, of the row panels so far
  DataIndex cells_index_;                   // by hash of the cells, as the builder's own index
  // The current tile row:
  std::array<LayerWalker, kMaxLayers> walkers_;
  bool is_last_row_ = false;
  bool has_mixed_ = false;
  std::vector<EqualRun> undecided_;
  std::vector<std::vector<EqualRun>> equal_runs_;  // by residue of the tile row
  std::vector<TileSegment> segments_;
  std::int64_t row_run_ = 0;  // number, from the top, of the tile rows that are appended together
  std::vector<std::uint64_t> row_words_, existing_;
  std::vector<const std::uint64_t*> tile_run_words_;
  std::vector<PartialRun::NumberedTiles> tile_run_numbers_;
};

}  // namespace

SegmentMask combine_layers(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                           std::span<const TileLayer> layers, TileFunction& function) {
  return LayerCombination(q_len, kv_len, block, layers, function).run();
}

}  // namespace fdma
