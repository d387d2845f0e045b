// The distinct partial tiles that a thread of the box engine has met, and their way into the
// builder.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "boxes/tile_numbers.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma::box {

/// A partial tile's cells in bitmap order.
struct TileKind {
  std::vector<std::uint64_t> words;
  std::uint64_t hash = 0;    ///< hash_words of words
  std::int32_t number = 0;   ///< for the builder, over the kinds of all threads
  std::int32_t bitmap = -1;  ///< its index in the builder; -1 before it is interned
};

/// The kinds of one thread by tile number. They stay where they are, so panels may point to them.
class TileKinds {
 public:
  /// What is known about a tile. `kind` is set where it is partial.
  enum class State : std::uint8_t { unknown, empty, full, partial };
  struct Found {
    State state = State::unknown;
    TileKind* kind = nullptr;
  };

  /// `num_tiles`: of the whole mask. It bounds how many tiles may be new before this is given up.
  /// `next_number` is the number of the next kind of any thread.
  TileKinds(const TileNumbers& numbers, BlockShape block, std::int64_t num_tiles,
            std::atomic<std::int32_t>& next_number);

  /// False once most tiles turned out to be new, or their bitmaps take too much memory.
  bool is_useful() const { return is_useful_; }
  /// `is_cut_below`: the tile row is not whole.
  void begin_row(std::int32_t tile_row, bool is_cut_below);
  /// The numbers of tiles [first_col, end_col) of the row, for `find`.
  void number(std::int32_t first_col, std::int32_t end_col, std::int32_t* out) {
    numbers_.number(first_col, end_col, out);
  }
  Found find(std::int32_t number, bool is_cut_right) {
    is_cut_right_ = is_cut_right;
    number_ = number;
    if (number == TileNumbers::Worker::kEmpty) return {State::empty, nullptr};
    if (number == TileNumbers::Worker::kFull) return {State::full, nullptr};
    const std::size_t at = place_of(number);
    if (number == TileNumbers::Worker::kNone || at >= entries_.size()) return {};
    const Found& known = entries_[at];
    num_found_ += known.state == State::unknown ? 0 : 1;
    return known;
  }
  /// Says what the tile that `find` was last asked for is. `words` are its cells where it is
  /// partial.
  TileKind* add(State state, std::span<const std::uint64_t> words);

 private:
  std::size_t place_of(std::int32_t number) const {
    return 4 * static_cast<std::size_t>(number) + (is_cut_below_ ? 2 : 0) + (is_cut_right_ ? 1 : 0);
  }

  TileNumbers::Worker numbers_;
  std::int64_t bitmap_bytes_;
  std::int64_t max_new_;
  std::atomic<std::int32_t>& next_number_;
  bool is_useful_ = true;
  bool is_cut_below_ = false;
  bool is_cut_right_ = false;
  std::int32_t number_ = TileNumbers::Worker::kNone;
  std::int64_t num_found_ = 0;
  std::int64_t num_new_ = 0;
  std::deque<TileKind> kinds_;
  std::vector<Found> entries_;  ///< four a number: whole, cut at the right, below, both
};

/// Consecutive partial tiles by their kinds.
class KindRun final : public PartialRun {
 public:
  /// `numbers` is scratch memory.
  KindRun(SegmentBuilder& builder, std::span<TileKind* const> kinds, BlockShape block,
          std::vector<NumberedTiles>& numbers)
      : builder_(builder), kinds_(kinds), block_(block), numbers_(numbers) {}

  std::span<const NumberedTiles> numbers() override;
  std::int64_t num_intervals(std::int64_t limit) override;
  std::uint64_t bitmap_hash(std::int64_t tile) override { return at(tile).hash; }
  std::int32_t intern(std::int64_t tile, std::uint64_t hash) override;
  void write_panel(std::vector<std::int64_t>& offsets, std::vector<Interval>& intervals) override;

 private:
  TileKind& at(std::int64_t tile) const { return *kinds_[static_cast<std::size_t>(tile)]; }
  template <class Visit>
  void for_each_interval(Visit&& visit) const;

  SegmentBuilder& builder_;
  std::span<TileKind* const> kinds_;
  BlockShape block_;
  std::vector<NumberedTiles>& numbers_;
};

}  // namespace fdma::box
