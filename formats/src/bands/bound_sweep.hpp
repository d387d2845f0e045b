// The cells of the tiles of one tile row whose bounds do not move with the row.
//
// A row of cells is zeros and ones that change at its bounds. A bound in a tile toggles the cells
// of its rows from there on: the rest of this tile, and all cells of these rows in every later
// tile. A tile is therefore a copy of the rows as they stand, toggled at the bounds inside it,
// whatever the number of rows; tiles between two tiles with bounds are equal.
//
// Example     rows 0 to 3 see keys [20, 300), tiles of 128 keys: tile 0 has their cells from 20 on,
//             tile 1 all, tile 2 those below 44
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

class BoundSweep {
 public:
  /// Begins a tile row with tiles of this shape, the first of which begins with key `k_begin`.
  void restart(BlockShape block, std::int64_t k_begin) {
    block_kv_ = block.block_kv;
    k_begin_ = k_begin;
    bounds_.clear();
    next_ = 0;
    rows_.assign(static_cast<std::size_t>(std::int64_t{block.block_q} * block_kv_ / 64), 0);
  }
  /// Rows [r_begin, r_end) change at `key`; any key up to k_begin means the first key. The bounds
  /// of every row come in pairs.
  void add(std::int64_t key, std::int64_t r_begin, std::int64_t r_end) {
    const std::int64_t at = std::max<std::int64_t>(key - k_begin_, 0);
    bounds_.push_back({at, static_cast<std::int32_t>(r_begin), static_cast<std::int32_t>(r_end)});
  }
  /// Must be called when all bounds were added.
  void sort() {
    std::sort(bounds_.begin(), bounds_.end(),
              [](const Bound& a, const Bound& b) { return a.key < b.key; });
  }

  /// Writes the cells of tile `tile`; tiles ascend.
  void write(std::int64_t tile, std::uint64_t* words) {
    const std::int64_t begin = tile * block_kv_;
    for (; next_ < bounds_.size() && bounds_[next_].key <= begin; ++next_) {
      const Bound& bound = bounds_[next_];
      toggle(rows_.data(), bound.r_begin * block_kv_, bound.r_end * block_kv_);
    }
    std::copy(rows_.begin(), rows_.end(), words);
    for (std::size_t i = next_; i < bounds_.size() && bounds_[i].key < begin + block_kv_; ++i) {
      const Bound& bound = bounds_[i];
      for (std::int64_t r = bound.r_begin; r < bound.r_end; ++r) {
        toggle(words, (r - tile) * block_kv_ + bound.key, (r + 1) * block_kv_);
      }
    }
  }
  /// The end of the run of tiles that equal the one written last, which is `tile`.
  std::int64_t run_end(std::int64_t tile, std::int64_t num_tiles) const {
    if (next_ == bounds_.size()) return num_tiles;
    return std::clamp(bounds_[next_].key / block_kv_, tile + 1, num_tiles);
  }

 private:
  struct Bound {
    std::int64_t key;  // counted from the first tile
    std::int32_t r_begin, r_end;
  };

  // Bits [begin, end), not empty.
  static void toggle(std::uint64_t* words, std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin / 64, last = (end - 1) / 64;
    const std::uint64_t head = ~std::uint64_t{0} << (begin & 63);
    const std::uint64_t tail = ~std::uint64_t{0} >> (63 - ((end - 1) & 63));
    if (first == last) {
      words[first] ^= head & tail;
      return;
    }
    words[first] ^= head;
    for (std::int64_t i = first + 1; i < last; ++i) words[i] = ~words[i];
    words[last] ^= tail;
  }

  std::int64_t block_kv_ = 0, k_begin_ = 0;
  std::vector<Bound> bounds_;  // by key
  std::size_t next_ = 0;       // the first bound that is not in rows_ yet
  std::vector<std::uint64_t> rows_;
};

}  // namespace fdma
