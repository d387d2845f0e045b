// The box lowering engine: any program, exactly, tile row by tile row.
//
// Method
//  1. Prepare (box_program): unroll loops, fold constants, find what each node depends on.
//  2. Compile (bit_program): turn the conditions into atoms that can give any row as bits
//     (axis_atoms, compare_atom, table_atom, cell_atom) and logic over 64-bit words.
//  3. Prune each tile row: bounds of all atoms over boxes of 2^l tiles (tile_pyramid) decide boxes
//     that are wholly true or wholly false and defined; other boxes are halved, down to four tiles
//     where tiles are numbered and down to single tiles where they are not.
//  4. Number the undecided tiles (tile_numbers): tiles with one number hold the same cells, so one
//     of them is evaluated. If most tiles turn out to be new, all are evaluated. Rows of a thousand
//     tiles are numbered in chunks of 64 tiles first (chunk_kinds); equal chunks are visited once.
//  5. Evaluate the rows of the other undecided tiles in blocks of words. A running `and` and `or`
//     over the rows classify the tiles as full, empty or partial. A row whose inputs equal those of
//     the row above is copied.
//  6. Feed the tile row to SegmentBuilder, which stores the canonical form.
//
// Fits        `@t[q // 64, k // 64]`: a tile for each set of entries; `bitand(q, k) == 0`: one tile;
//             `(q // 5) % 7 == (k // 5) % 7 & causal`: seven distinct rows and one diagonal string;
//             each row is one AND.
// Does not    `(q * k) % 7 == 3`: every cell is interpreted.
// Undefined   Programs that the bounds prove defined have one bit plane. Others have two (true,
//             false). A cell in neither is undefined; the first one in row-major order is evaluated
//             once more to name the cause.
// Cost        time: O(tile rows * log(tile columns) + undecided tiles * operators + cells of distinct
//             undecided tiles / 64 * operators)
//             memory: vectors of O(q_len + kv_len) an atom; caches of rows (96 MiB at most); 32 MiB
//             of distinct tiles a thread; the result; panels of undecided tiles, two a thread, but
//             no more than four where two a thread would take over 96 MiB together
// Length      The file is longer than most: pruning, numbering and evaluation share a tile row.
// Stops       The meter (work_meter.hpp) is asked every few rows and, in loops, every few million
//             evaluations.
// Threads     Tile rows are evaluated in parallel and fed in order, so the result does not depend
//             on the number of threads.
#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/info.h>
#include <tbb/parallel_pipeline.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <optional>

#include "boxes/bit_program.hpp"
#include "boxes/chunk_kinds.hpp"
#include "boxes/lane_eval.hpp"
#include "boxes/tile_kinds.hpp"
#include "fdma/base/parallel.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "lower/engines.hpp"

namespace fdma {
namespace {

using box::BitProgram;
using box::BoxProgram;
using box::ChunkKinds;
using box::low_bits;
using box::Plane;
using box::Planes;
using box::RowBlock;
using box::TileBox;
using box::TileKind;
using box::TileKinds;
using box::TileNumbers;

/// The most decided tiles between undecided ones that are evaluated too, rather than cut a range.
constexpr std::int32_t kMaxGap = 2;
/// Rows of a block of words, or boxes of tiles, between two calls of must_stop.
constexpr std::int64_t kRowsAtOnce = 16;
constexpr std::int64_t kBoxesAtOnce = 256;
/// Boxes of 2^kNumberedLevel tiles are the smallest that are bounded where tiles are numbered.
constexpr int kNumberedLevel = 2;
/// The fewest tiles of a row that is divided into chunks.
constexpr std::int64_t kLeastTilesForChunks = 1024;
/// The most tile rows in a row whose boxes are not bounded.
constexpr int kMaxSkip = 63;
/// The most bytes that the panels of all threads take together, if there are more than a few.
constexpr std::int64_t kMaxPanelBytes = std::int64_t{96} << 20;
constexpr std::int64_t kFewPanels = 4;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The counts of the engine's work that its report gives.
struct Effort {
  double preparing = 0;
  double pruning = 0;
  double evaluating = 0;
  double storing = 0;
  std::int64_t num_evaluated_tiles = 0;
  std::int64_t num_bounded_tiles = 0;
  std::int64_t num_repeated_tiles = 0;

  void add(const Effort& other) {
    pruning += other.pruning;
    evaluating += other.evaluating;
    num_evaluated_tiles += other.num_evaluated_tiles;
    num_bounded_tiles += other.num_bounded_tiles;
    num_repeated_tiles += other.num_repeated_tiles;
  }
};

struct BoxCell {
  std::int64_t q;
  std::int64_t k;
};

/// The undecided tiles [first_tile, end_tile) of a tile row and where their rows lie in the panel.
struct UndecidedRun {
  std::int32_t first_tile;
  std::int32_t end_tile;
  std::int64_t first_word;
  std::int64_t num_words;
  std::int64_t offset;  ///< words from the start of a panel row
};

/// One tile row: its classified tiles, and the kinds of its partial tiles or the bits of its
/// undecided ranges row by row.
struct Panel {
  std::int32_t tile_row = 0;
  std::vector<TileRange> ranges;
  bool has_kinds = false;
  std::vector<TileKind*> kinds;  ///< of the partial tiles, ascending
  std::vector<UndecidedRun> tile_runs;
  std::vector<std::uint64_t> words;
  std::int64_t stride = 0;
  std::optional<BoxCell> undefined;
  Effort effort;
};

enum class TileClass : std::uint8_t { empty, full, undecided };

/// Tiles [first, end) of a tile row that bounds did not find empty.
struct TileStretch {
  std::int32_t first;
  std::int32_t end;
  TileClass known;
};

class Lowering {
 public:
  /// `chunk_numbers` are those of chunks (chunk_kinds.hpp), or null.
  Lowering(const BitProgram& program, const TileNumbers& numbers, const TileNumbers* chunk_numbers,
           std::int64_t q_len, std::int64_t kv_len, BlockShape block, WorkMeter& meter)
      : program_(program),
        numbers_(numbers),
        chunk_numbers_(chunk_numbers),
        q_len_(q_len),
        kv_len_(kv_len),
        block_(block),
        num_tile_rows_(static_cast<std::int32_t>(ceil_div(q_len, block.block_q))),
        num_tile_cols_(static_cast<std::int32_t>(ceil_div(kv_len, block.block_kv))),
        repeats_(program.repeated_rows()),
        meter_(meter) {}

  struct Worker {
    explicit Worker(const Lowering& lowering) : bits(lowering.program_) {
      if (lowering.numbers_.is_usable()) {
        kinds.emplace(lowering.numbers_, lowering.block_,
                      std::int64_t{lowering.num_tile_rows_} * lowering.num_tile_cols_,
                      lowering.next_kind_);
      }
      if (lowering.chunk_numbers_ != nullptr) {
        chunks.emplace(*lowering.chunk_numbers_, lowering.block_, lowering.kv_len_);
      }
    }
    BitProgram::Worker bits;
    std::optional<TileKinds> kinds;
    std::vector<std::int32_t> numbers;  ///< of the tiles of a row that are not decided by bounds
    std::vector<std::int32_t> tiles;    ///< of a stretch, those that are looked up
    std::optional<ChunkKinds> chunks;
    std::vector<std::uint64_t> bitmap;
    int rows_to_skip = 0;  ///< rows whose boxes are not bounded
    int last_skip = 0;
    std::vector<TileStretch> stretches;  ///< with numbers
    std::vector<TileStretch> chunk_stretches;
    std::vector<TileRange> chunk_ranges;
    std::vector<TileClass> classes;  ///< without them, or of the tile that is evaluated
    std::vector<TileBox> stack;
    std::vector<std::uint64_t> row_every;
    std::vector<std::uint64_t> row_some;
  };

  std::int32_t num_tile_rows() const { return num_tile_rows_; }
  BlockShape block() const { return block_; }
  /// True once the meter has stopped the work. Panels evaluated since then may be incomplete.
  bool has_stopped() const { return meter_.has_stopped(); }
  /// Bytes of a panel whose tiles are all undecided.
  std::int64_t max_panel_bytes() const { return block_.block_q * (kv_len_ / 8 + 192); }

  void evaluate(std::int32_t tile_row, Panel& panel, Worker& worker) const {
    panel.tile_row = tile_row;
    panel.ranges.clear();
    panel.tile_runs.clear();
    panel.undefined.reset();
    panel.has_kinds = false;
    panel.effort = {};
    if (meter_.must_stop()) return;
    const Clock::time_point start = Clock::now();
    const bool has_numbers = worker.kinds && worker.kinds->is_useful();
    const std::int64_t num_undecided =
        has_numbers ? prune_for_numbers(tile_row, worker) : prune_for_cells(tile_row, worker);
    const Clock::time_point pruned = Clock::now();
    panel.effort.pruning = std::chrono::duration<double>(pruned - start).count();
    panel.effort.num_bounded_tiles = num_tile_cols_ - num_undecided;
    if (!has_numbers || !find_kinds(panel, worker)) {
      panel.effort.num_evaluated_tiles = num_undecided;
      panel.effort.num_repeated_tiles = 0;
      plan_tile_runs(panel, worker);
      for (const UndecidedRun& tile_run : panel.tile_runs) {
        evaluate_tile_run(tile_run, panel, worker, true);
      }
      collect_ranges(panel, worker);
    }
    panel.effort.evaluating = seconds_since(pruned);
  }

  /// Writes the cells of a partial tile in bitmap order.
  void copy_tile(const Panel& panel, std::int32_t tile, std::uint64_t* words) const {
    const auto after = std::upper_bound(panel.tile_runs.begin(), panel.tile_runs.end(), tile,
                                        [](std::int32_t value, const UndecidedRun& tile_run) {
                                          return value < tile_run.first_tile;
                                        });
    const UndecidedRun& tile_run = *(after - 1);
    const std::int64_t first_bit = std::int64_t{tile} * block_.block_kv - 64 * tile_run.first_word;
    const auto* from =
        reinterpret_cast<const unsigned char*>(panel.words.data() + tile_run.offset) +
        first_bit / 8;
    auto* to = reinterpret_cast<unsigned char*>(words);
    const std::int64_t row_bytes = block_.block_kv / 8;
    const std::int64_t stride = panel.stride * 8;
    const std::int64_t num_rows = rows_of(panel.tile_row);
    if (row_bytes == 16) {
      for (std::int64_t r = 0; r < num_rows; ++r) std::memcpy(to + r * 16, from + r * stride, 16);
    } else {
      const auto size = static_cast<std::size_t>(row_bytes);
      for (std::int64_t r = 0; r < num_rows; ++r) {
        std::memcpy(to + r * row_bytes, from + r * stride, size);
      }
    }
  }

 private:
  std::int64_t rows_of(std::int32_t tile_row) const {
    return std::min<std::int64_t>(block_.block_q, q_len_ - std::int64_t{tile_row} * block_.block_q);
  }

  /// Gives the tiles of a row their classes. Returns how many are undecided.
  std::int64_t prune_for_cells(std::int32_t tile_row, Worker& worker) const {
    worker.classes.assign(static_cast<std::size_t>(num_tile_cols_), TileClass::undecided);
    std::int64_t num_undecided = 0;
    prune(whole_row(tile_row), 0, worker,
          [&](std::int32_t first, std::int32_t end, TileClass known) {
            if (known == TileClass::undecided) {
              num_undecided += end - first;
            } else {
              std::fill(worker.classes.begin() + first, worker.classes.begin() + end, known);
            }
          });
    return num_undecided;
  }

  /// Divides a row into stretches. Returns how many tiles are undecided. Numbers are as cheap as
  /// bounds: boxes are not halved down to tiles, and rows in which boxes decide little are followed
  /// by rows without bounds.
  std::int64_t prune_for_numbers(std::int32_t tile_row, Worker& worker) const {
    worker.stretches.clear();
    if (worker.rows_to_skip > 0) {
      --worker.rows_to_skip;
      worker.stretches.push_back({0, num_tile_cols_, TileClass::undecided});
      return num_tile_cols_;
    }
    std::int64_t num_undecided = 0;
    const bool has_chunks = worker.chunks && worker.chunks->is_useful();
    prune(whole_row(tile_row), has_chunks ? box::kChunkLevel : kNumberedLevel, worker,
          [&](std::int32_t first, std::int32_t end, TileClass known) {
            if (known == TileClass::empty) return;
            if (known == TileClass::undecided) num_undecided += end - first;
            worker.stretches.push_back({first, end, known});
          });
    const bool decides_little = num_undecided > num_tile_cols_ - num_tile_cols_ / 4;
    worker.last_skip = decides_little ? std::min(2 * worker.last_skip + 1, kMaxSkip) : 0;
    worker.rows_to_skip = worker.last_skip;
    return num_undecided;
  }

  /// Finds the ranges of the row and the kinds of its partial tiles. Evaluates one tile of each
  /// number. False if a cell is undefined; then the row must be evaluated as a whole, which finds
  /// the first such cell.
  bool find_kinds(Panel& panel, Worker& worker) const {
    worker.kinds->begin_row(panel.tile_row, rows_of(panel.tile_row) < block_.block_q);
    panel.kinds.clear();
    const bool has_chunks = worker.chunks && worker.chunks->is_useful();
    if (has_chunks) {
      worker.chunks->begin_row(panel.tile_row, rows_of(panel.tile_row) < block_.block_q);
      for (const TileStretch& stretch : worker.stretches) {
        if (stretch.known == TileClass::full) {
          append_range(panel, stretch.first, stretch.end, true);
        } else if (!find_chunks(stretch.first, stretch.end, panel, worker)) {
          return false;
        }
      }
    } else if (!find_tiles(worker.stretches, panel, worker)) {
      return false;
    }
    panel.has_kinds = true;
    return true;
  }

  /// find_kinds for some stretches, tile by tile.
  bool find_tiles(const std::vector<TileStretch>& stretches, Panel& panel, Worker& worker) const {
    using State = TileKinds::State;
    TileKinds& kinds = *worker.kinds;
    worker.numbers.resize(static_cast<std::size_t>(num_tile_cols_));
    for (const TileStretch& stretch : stretches) {
      if (stretch.known == TileClass::full) {
        append_range(panel, stretch.first, stretch.end, true);
        continue;
      }
      kinds.number(stretch.first, stretch.end, worker.numbers.data() + stretch.first);
      panel.effort.num_repeated_tiles += stretch.end - stretch.first;
      for (const std::int32_t tile : tiles_to_find(stretch, worker)) {
        const bool is_cut = std::int64_t{tile + 1} * block_.block_kv > kv_len_;
        TileKinds::Found found = kinds.find(worker.numbers[static_cast<std::size_t>(tile)], is_cut);
        if (found.state == State::unknown) {
          --panel.effort.num_repeated_tiles;
          found = evaluate_tile(panel, tile, worker);
          if (panel.undefined || meter_.has_stopped()) {
            reset_undecided(panel, worker);
            return false;
          }
        }
        if (found.state == State::empty) continue;
        append_range(panel, tile, tile + 1, found.state == State::full);
        if (found.state == State::partial) panel.kinds.push_back(found.kind);
      }
    }
    return true;
  }

  /// The tiles of a stretch that are not numbered as empty. A branch for each tile would mostly be
  /// predicted wrongly where tiles are random.
  std::span<const std::int32_t> tiles_to_find(const TileStretch& stretch, Worker& worker) const {
    worker.tiles.resize(static_cast<std::size_t>(num_tile_cols_));
    std::size_t count = 0;
    for (std::int32_t tile = stretch.first; tile < stretch.end; ++tile) {
      worker.tiles[count] = tile;
      count +=
          worker.numbers[static_cast<std::size_t>(tile)] == TileNumbers::Worker::kEmpty ? 0 : 1;
    }
    return std::span(worker.tiles).first(count);
  }

  /// find_kinds for the undecided tiles [first, end), chunk by chunk.
  bool find_chunks(std::int32_t first, std::int32_t end, Panel& panel, Worker& worker) const {
    for (std::int32_t tile = first; tile < end; tile += box::kChunkTiles) {
      const std::int32_t chunk = tile / box::kChunkTiles;
      const std::int32_t chunk_end = std::min(tile + box::kChunkTiles, end);
      if (const box::ChunkTiles* known = worker.chunks->find(chunk)) {
        panel.effort.num_repeated_tiles += chunk_end - tile;
        for (const TileRange& range : known->ranges) {
          append_range(panel, tile + range.first, tile + range.end, range.is_full);
        }
        panel.kinds.insert(panel.kinds.end(), known->kinds.begin(), known->kinds.end());
        continue;
      }
      worker.chunk_ranges.clear();
      worker.chunk_ranges.swap(panel.ranges);  // the ranges of the chunk alone
      const std::size_t num_kinds = panel.kinds.size();
      worker.chunk_stretches.clear();
      prune({panel.tile_row, box::kChunkLevel, chunk}, kNumberedLevel, worker,
            [&](std::int32_t from, std::int32_t to, TileClass known) {
              if (known != TileClass::undecided) panel.effort.num_bounded_tiles += to - from;
              if (known != TileClass::empty) worker.chunk_stretches.push_back({from, to, known});
            });
      if (!find_tiles(worker.chunk_stretches, panel, worker)) return false;
      worker.chunks->add(panel.ranges, tile, std::span(panel.kinds).subspan(num_kinds));
      worker.chunk_ranges.swap(panel.ranges);
      for (const TileRange& range : worker.chunk_ranges) {
        append_range(panel, range.first, range.end, range.is_full);
      }
    }
    return true;
  }

  /// Undoes what find_kinds has done.
  void reset_undecided(Panel& panel, Worker& worker) const {
    worker.classes.assign(static_cast<std::size_t>(num_tile_cols_), TileClass::undecided);
    panel.undefined.reset();
    panel.effort.num_bounded_tiles = 0;
    panel.ranges.clear();
    panel.tile_runs.clear();
  }

  /// Decides one tile by bounds or by its cells, and notes what it is.
  TileKinds::Found evaluate_tile(Panel& panel, std::int32_t tile, Worker& worker) const {
    using State = TileKinds::State;
    const auto note = [&](State state) -> TileKinds::Found {
      return {state, worker.kinds->add(state, {})};
    };
    const Outcomes outcomes = program_.outcomes({panel.tile_row, 0, tile}, worker.bits);
    if (outcomes == kTrue || outcomes == kFalse) {
      ++panel.effort.num_bounded_tiles;
      return note(outcomes == kTrue ? State::full : State::empty);
    }
    ++panel.effort.num_evaluated_tiles;
    const std::int64_t first_word = std::int64_t{tile} * block_.block_kv / 64;
    panel.tile_runs.assign(1, {tile, tile + 1, first_word, end_word(tile + 1) - first_word, 0});
    place_tile_runs(panel);
    worker.classes.resize(static_cast<std::size_t>(num_tile_cols_));
    worker.classes[static_cast<std::size_t>(tile)] = TileClass::undecided;
    evaluate_tile_run(panel.tile_runs[0], panel, worker, false);
    const TileClass known = worker.classes[static_cast<std::size_t>(tile)];
    if (known == TileClass::empty) return note(State::empty);
    if (known == TileClass::full) return note(State::full);
    worker.bitmap.assign(static_cast<std::size_t>(block_.block_q) * block_.block_kv / 64, 0);
    copy_tile(panel, tile, worker.bitmap.data());
    return {State::partial, worker.kinds->add(State::partial, worker.bitmap)};
  }

  TileBox whole_row(std::int32_t tile_row) const {
    int level = 0;
    while ((std::int64_t{1} << level) < num_tile_cols_) ++level;
    return {tile_row, level, 0};
  }

  /// Bounds the boxes of `top` that have at least 2^lowest tiles. Calls take(first, end, class) for each box that is
  /// decided or not halved, in ascending order.
  template <class Take>
  void prune(const TileBox& top, int lowest, Worker& worker, Take take) const {
    std::vector<TileBox>& stack = worker.stack;
    stack.assign(1, top);
    for (std::int64_t num_boxes = 1; !stack.empty(); ++num_boxes) {
      if (num_boxes % kBoxesAtOnce == 0 && meter_.must_stop()) return;
      const TileBox box = stack.back();
      stack.pop_back();
      const Outcomes outcomes = program_.outcomes(box, worker.bits);
      const bool is_decided = outcomes == kTrue || outcomes == kFalse;
      if (!is_decided && box.level > lowest) {
        const std::int64_t right = 2 * box.index + 1;
        if ((right << (box.level - 1)) < num_tile_cols_) {
          stack.push_back({box.tile_row, box.level - 1, right});
        }
        stack.push_back({box.tile_row, box.level - 1, right - 1});
        continue;
      }
      const std::int64_t first = box.index << box.level;
      const std::int64_t end = std::min<std::int64_t>(num_tile_cols_, (box.index + 1) << box.level);
      take(static_cast<std::int32_t>(first), static_cast<std::int32_t>(end),
           outcomes == kTrue    ? TileClass::full
           : outcomes == kFalse ? TileClass::empty
                                : TileClass::undecided);
    }
  }

  /// Joins undecided tiles to ranges of whole words and gives the ranges places in the panel.
  void plan_tile_runs(Panel& panel, const Worker& worker) const {
    for (std::int32_t tile = 0; tile < num_tile_cols_; ++tile) {
      if (worker.classes[static_cast<std::size_t>(tile)] != TileClass::undecided) continue;
      const std::int64_t first_word = std::int64_t{tile} * block_.block_kv / 64;
      if (!panel.tile_runs.empty()) {
        UndecidedRun& last = panel.tile_runs.back();
        if (tile - last.end_tile <= kMaxGap || first_word < last.first_word + last.num_words) {
          last.end_tile = tile + 1;
          last.num_words = end_word(tile + 1) - last.first_word;
          continue;
        }
      }
      panel.tile_runs.push_back({tile, tile + 1, first_word, end_word(tile + 1) - first_word, 0});
    }
    place_tile_runs(panel);
  }

  /// Gives the ranges of a panel places in its words.
  void place_tile_runs(Panel& panel) const {
    std::int64_t num_words = 0;
    for (UndecidedRun& tile_run : panel.tile_runs) {
      tile_run.offset = num_words;
      // Reserves a whole last tile, past the last word of the row if need be.
      num_words +=
          ceil_div(std::int64_t{tile_run.end_tile} * block_.block_kv, 64) - tile_run.first_word;
    }
    // A stride that is no power of two puts the rows of a tile into different cache sets.
    panel.stride = num_words == 0 ? 0 : num_words + 8 + (num_words % 16 == 8 ? 8 : 0);
    const std::int64_t size = panel.stride * rows_of(panel.tile_row);
    if (static_cast<std::int64_t>(panel.words.size()) < size) {
      panel.words.resize(static_cast<std::size_t>(size));
    }
  }

  std::int64_t end_word(std::int32_t end_tile) const {
    return ceil_div(std::min(kv_len_, std::int64_t{end_tile} * block_.block_kv), 64);
  }

  /// `is_whole_row`: most of the row is evaluated, so it may fill the caches of rows.
  void evaluate_tile_run(const UndecidedRun& tile_run, Panel& panel, Worker& worker,
                         bool is_whole_row) const {
    const auto num_words = static_cast<std::size_t>(tile_run.num_words);
    worker.row_every.assign(num_words, ~std::uint64_t{0});
    worker.row_some.assign(num_words, 0);
    const std::int64_t q_begin = std::int64_t{panel.tile_row} * block_.block_q;
    const std::int64_t num_rows = rows_of(panel.tile_row);
    const std::int64_t room =
        ceil_div(std::int64_t{tile_run.end_tile} * block_.block_kv, 64) - tile_run.first_word;
    for (std::int64_t w = 0; w < tile_run.num_words; w += program_.max_words()) {
      const std::int64_t count = std::min(program_.max_words(), tile_run.num_words - w);
      const std::int64_t first_word = tile_run.first_word + w;
      const bool has_tail = 64 * (first_word + count) > kv_len_;
      const std::uint64_t tail = low_bits(kv_len_ - 64 * (first_word + count - 1));
      for (std::int64_t r = 0; r < num_rows; ++r) {
        if (r % kRowsAtOnce == 0 ? meter_.must_stop() : meter_.has_stopped()) return;
        std::uint64_t* out = panel.words.data() + r * panel.stride + tile_run.offset + w;
        if (r > 0 && repeats_[static_cast<std::size_t>(q_begin + r)] != 0) {
          std::memcpy(out, out - panel.stride, static_cast<std::size_t>(count) * 8);
          continue;
        }
        const RowBlock block{q_begin + r, first_word, count, is_whole_row};
        const Planes planes = program_.row(block, worker.bits);
        if (program_.may_be_undefined()) check_defined(planes, block, panel);
        store(planes.is_true, out, worker.row_every.data() + w, worker.row_some.data() + w, count);
        if (has_tail) out[count - 1] &= tail;
      }
    }
    for (std::int64_t r = 0; r < num_rows && tile_run.num_words < room; ++r) {
      std::uint64_t* row = panel.words.data() + r * panel.stride + tile_run.offset;
      std::fill(row + tile_run.num_words, row + room, 0);
    }
    classify(tile_run, worker);
  }

  static void store(const Plane& plane, std::uint64_t* out, std::uint64_t* every,
                    std::uint64_t* some, std::int64_t words) {
    if (!plane.is_constant()) {
      box::row_kernels().store_row(out, plane.bits, plane.flip, every, some, words);
      return;
    }
    std::fill_n(out, words, plane.flip);
    std::fill_n(plane.flip == 0 ? every : some, words, plane.flip);
  }

  /// Notes the first undefined cell of a block if it comes before the one noted so far.
  void check_defined(const Planes& planes, const RowBlock& block, Panel& panel) const {
    if (planes.is_true == planes.is_false.complement()) return;
    const auto word_of = [](const Plane& plane, std::int64_t w) {
      std::uint64_t word = 0;
      if (!plane.is_constant()) std::memcpy(&word, plane.bits + 8 * w, 8);
      return word ^ plane.flip;
    };
    for (std::int64_t w = 0; w < block.num_words; ++w) {
      const std::int64_t first = 64 * (block.first_word + w);
      const std::uint64_t undefined =
          ~(word_of(planes.is_true, w) | word_of(planes.is_false, w)) & low_bits(kv_len_ - first);
      if (undefined == 0) continue;
      const BoxCell cell{block.q, first + std::countr_zero(undefined)};
      if (!panel.undefined || cell.q < panel.undefined->q ||
          (cell.q == panel.undefined->q && cell.k < panel.undefined->k)) {
        panel.undefined = cell;
      }
      return;
    }
  }

  void classify(const UndecidedRun& tile_run, Worker& worker) const {
    for (std::int32_t tile = tile_run.first_tile; tile < tile_run.end_tile; ++tile) {
      TileClass& known = worker.classes[static_cast<std::size_t>(tile)];
      if (known != TileClass::undecided) continue;
      const std::int64_t begin = std::int64_t{tile} * block_.block_kv - 64 * tile_run.first_word;
      const std::int64_t end =
          std::min(kv_len_ - 64 * tile_run.first_word, begin + block_.block_kv);
      if (!box::any_bit(worker.row_some.data(), begin, end)) {
        known = TileClass::empty;
      } else if (box::all_bits(worker.row_every.data(), begin, end)) {
        known = TileClass::full;
      }
    }
  }

  static void append_range(Panel& panel, std::int32_t first, std::int32_t end, bool is_full) {
    if (!panel.ranges.empty() && panel.ranges.back().end == first &&
        panel.ranges.back().is_full == is_full) {
      panel.ranges.back().end = end;
    } else {
      panel.ranges.push_back({first, end, is_full});
    }
  }

  void collect_ranges(Panel& panel, const Worker& worker) const {
    for (std::int32_t tile = 0; tile < num_tile_cols_; ++tile) {
      const TileClass known = worker.classes[static_cast<std::size_t>(tile)];
      if (known != TileClass::empty) {
        append_range(panel, tile, tile + 1, known == TileClass::full);
      }
    }
  }

  const BitProgram& program_;
  const TileNumbers& numbers_;
  const TileNumbers* chunk_numbers_;
  std::int64_t q_len_;
  std::int64_t kv_len_;
  BlockShape block_;
  std::int32_t num_tile_rows_;
  std::int32_t num_tile_cols_;
  std::vector<std::uint8_t> repeats_;
  WorkMeter& meter_;
  mutable std::atomic<std::int32_t> next_kind_{0};
};

/// Evaluates all tile rows and feeds them in order. Stops at the first undefined cell, or when the
/// meter has stopped the work.
std::optional<BoxCell> run(const Lowering& lowering, int num_threads, SegmentBuilder& builder,
                           WorkMeter& meter, Effort& effort) {
  std::optional<BoxCell> undefined;
  std::vector<TileSegment> segments;
  std::vector<PartialRun::NumberedTiles> numbers;
  const auto feed = [&](const Panel& panel) {
    if (undefined || lowering.has_stopped()) return;
    undefined = panel.undefined;
    if (undefined) return;
    const Clock::time_point start = Clock::now();
    if (panel.has_kinds) {
      segments.clear();
      std::size_t next = 0;  // of the kinds
      for (const TileRange& range : panel.ranges) {
        if (range.is_full) {
          segments.push_back({range.first, range.end, 0, 0, SegmentKind::full, 0});
          continue;
        }
        const auto count = static_cast<std::size_t>(range.end - range.first);
        box::KindRun kinds(builder, std::span(panel.kinds).subspan(next, count), lowering.block(),
                           numbers);
        next += count;
        builder.add_partial_run(range.first, range.end, 0, kinds, segments);
      }
      builder.add_rows(panel.tile_row, 1, segments);
      builder.skip_to(panel.tile_row + 1);
    } else {
      builder.add_tile_row(panel.ranges, [&](std::int32_t tile, std::uint64_t* words) {
        lowering.copy_tile(panel, tile, words);
      });
    }
    effort.add(panel.effort);
    effort.storing += seconds_since(start);
    meter.add_tile_rows(1);
  };
  const std::int32_t num_rows = lowering.num_tile_rows();
  if (num_threads == 1 || num_rows == 1 || !has_worker_threads()) {
    Lowering::Worker worker(lowering);
    Panel panel;
    for (std::int32_t row = 0; row < num_rows && !undefined && !lowering.has_stopped(); ++row) {
      lowering.evaluate(row, panel, worker);
      feed(panel);
    }
    return undefined;
  }
  const int num_cores = tbb::info::default_concurrency();
  in_arena(num_threads <= 0 ? num_cores : std::min(num_threads, num_cores), [&] {
    const std::int64_t num_fitting = kMaxPanelBytes / lowering.max_panel_bytes();
    const std::int64_t num_wanted = std::int64_t{2} * max_concurrency();
    const auto num_tokens = static_cast<std::size_t>(
        std::clamp(num_fitting, std::min(kFewPanels, num_wanted), num_wanted));
    std::vector<Panel> panels(num_tokens);
    tbb::enumerable_thread_specific<Lowering::Worker> workers(
        [&] { return Lowering::Worker(lowering); });
    std::int32_t next = 0;
    std::atomic<bool> is_over{false};
    // Tokens finish in order, so that panel `row % num_tokens` is free when row starts.
    tbb::parallel_pipeline(
        num_tokens,
        tbb::make_filter<void, Panel*>(
            tbb::filter_mode::serial_in_order,
            [&](tbb::flow_control& control) -> Panel* {
              if (next == num_rows || is_over.load() || lowering.has_stopped()) {
                control.stop();
                return nullptr;
              }
              Panel& panel = panels[static_cast<std::size_t>(next) % num_tokens];
              panel.tile_row = next++;
              return &panel;
            }) &
            tbb::make_filter<Panel*, Panel*>(tbb::filter_mode::parallel,
                                             [&](Panel* panel) {
                                               lowering.evaluate(panel->tile_row, *panel,
                                                                 workers.local());
                                               return panel;
                                             }) &
            tbb::make_filter<Panel*, void>(tbb::filter_mode::serial_in_order, [&](Panel* panel) {
              feed(*panel);
              if (undefined) is_over.store(true);
            }));
  });
  return undefined;
}

Error undefined_cell(const BoxProgram& program, const BoxCell& cell) {
  const IrId outputs[] = {program.root()};
  box::LaneEvaluator lanes(program, outputs, {}, nullptr, 1);
  if (lanes.reaches(program.q_node())) lanes.fill(program.q_node(), cell.q, false);
  if (lanes.reaches(program.k_node())) lanes.fill(program.k_node(), cell.k, false);
  lanes.run(1);
  return {ErrorCode::invalid_argument, fmt::format("mask undefined at q = {}, k = {}: {}", cell.q,
                                                   cell.k, lanes.culprit(program.root()))};
}

void fill_report(const Effort& effort, std::string condition, ProgramReport& report) {
  report.engine = LoweringEngine::box;
  report.method = std::move(condition);
  report.num_bounded_tiles = effort.num_bounded_tiles;
  report.num_evaluated_tiles = effort.num_evaluated_tiles;
  report.num_repeated_tiles = effort.num_repeated_tiles;
  report.phases = {{"preparing conditions", effort.preparing},
                   {"bounding tiles", effort.pruning},
                   {"evaluating cells", effort.evaluating},
                   {"storing tiles", effort.storing}};
}

}  // namespace

Result<SegmentMask> lower_boxes(const IrProgram& program, BlockShape block, int num_threads,
                                WorkMeter& meter, ProgramReport* report) {
  try {
    SegmentBuilder builder(program.q_len, program.kv_len, block);
    const auto num_tile_rows = static_cast<std::int32_t>(ceil_div(program.q_len, block.block_q));
    if (program.q_len == 0 || program.kv_len == 0) {
      for (std::int32_t row = 0; row < num_tile_rows; ++row) builder.add_tile_row({}, {});
      meter.add_tile_rows(num_tile_rows);
      if (report != nullptr) {
        report->engine = LoweringEngine::box;
        report->method = "no cells";
      }
      return builder.finish();
    }
    const Clock::time_point start = Clock::now();
    BoxProgram prepared(program, &meter);
    if (prepared.is_too_nested()) {
      return Error{ErrorCode::unsupported,
                   fmt::format("any / all: nested more than {} deep", box::kMaxLoopDepth)};
    }
    // Before the bit program, which adds nodes.
    const TileNumbers numbers(prepared, block);
    std::optional<TileNumbers> chunk_numbers;
    if (ceil_div(program.kv_len, block.block_kv) >= kLeastTilesForChunks && numbers.is_usable() &&
        !numbers.has_diagonals()) {
      chunk_numbers.emplace(prepared, box::chunk_shape(block));
      if (!chunk_numbers->is_usable()) chunk_numbers.reset();
    }
    const BitProgram bits(prepared, block);
    prepared.forget_vectors();
    if (meter.must_stop()) return meter.error();
    const Lowering lowering(bits, numbers, chunk_numbers ? &*chunk_numbers : nullptr, program.q_len,
                            program.kv_len, block, meter);
    Effort effort;
    effort.preparing = seconds_since(start);
    const std::optional<BoxCell> undefined = run(lowering, num_threads, builder, meter, effort);
    if (meter.has_stopped()) return meter.error();
    if (undefined) return undefined_cell(prepared, *undefined);
    if (report != nullptr) fill_report(effort, bits.slowest_condition(prepared), *report);
    return builder.finish();
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("lowering a mask of {} x {} cells in {} x {} blocks needs more memory "
                             "than there is",
                             program.q_len, program.kv_len, block.block_q, block.block_kv)};
  }
}

}  // namespace fdma
