// A maximal segment of partial tiles whose bitmaps lie one after another in memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "fdma/formats/segment_builder.hpp"
#include "segment/bit_scan.hpp"

namespace fdma {

/// Calls visit(row, begin, end) for every maximal run of ones of each query row of tiles that lie
/// one after another in `words`. Keys are relative to the first tile.
template <class Visit>
void for_each_row_run(const std::uint64_t* words, std::int64_t num_tiles, BlockShape block,
                      Visit&& visit) {
  const std::int64_t block_kv = block.block_kv;
  const std::int64_t words_per_bitmap = std::int64_t{block.block_q} * block_kv / 64;
  for (std::int64_t r = 0; r < block.block_q; ++r) {
    std::int64_t open = -1;  // first key of the current run
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
      const std::uint64_t* bitmap = words + tile * words_per_bitmap;
      for (std::int64_t c = 0; c < block_kv; c += 64) {
        const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
        const std::uint64_t all = width == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
        std::uint64_t bits = read_bits(bitmap, r * block_kv + c, width);
        const std::int64_t key = tile * block_kv + c;
        if (open >= 0) {
          const int length = std::countr_one(bits);
          if (length >= width) continue;
          visit(r, open, key + length);
          open = -1;
          bits &= all << length;
        }
        while (bits != 0) {
          const int begin = std::countr_zero(bits);
          const int length = std::countr_one(bits >> begin);
          if (begin + length >= width) {
            open = key + begin;
            break;
          }
          visit(r, key + begin, key + begin + length);
          bits &= all << (begin + length);
        }
      }
    }
    if (open >= 0) visit(r, open, num_tiles * block_kv);
  }
}

/// A partial segment whose bitmaps lie one after another in memory.
class BitmapsRun final : public PartialRun {
 public:
  BitmapsRun(SegmentBuilder& builder, const std::vector<std::uint64_t>& words, BlockShape block)
      : builder_(builder),
        words_(words.data()),
        block_(block),
        words_per_bitmap_(std::int64_t{block.block_q} * block.block_kv / 64),
        num_tiles_(static_cast<std::int64_t>(words.size()) / words_per_bitmap_) {}

  std::int64_t num_intervals(std::int64_t limit) override {
    return count_row_starts(words_, num_tiles_, block_, limit);
  }
  std::uint64_t bitmap_hash(std::int64_t tile) override {
    return hash_words(words_ + tile * words_per_bitmap_, words_per_bitmap_);
  }
  std::int32_t intern(std::int64_t tile, std::uint64_t hash) override {
    return builder_.intern_bitmap(words_ + tile * words_per_bitmap_, hash);
  }
  void write_panel(std::vector<std::int64_t>& offsets, std::vector<Interval>& intervals) override {
    for_each_row_run(
        words_, num_tiles_, block_, [&](std::int64_t r, std::int64_t begin, std::int64_t end) {
          ++offsets[static_cast<std::size_t>(r) + 1];
          intervals.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
        });
    for (std::size_t r = 1; r < offsets.size(); ++r) offsets[r] += offsets[r - 1];
  }

 private:
  SegmentBuilder& builder_;
  const std::uint64_t* words_;
  const BlockShape block_;
  const std::int64_t words_per_bitmap_;
  const std::int64_t num_tiles_;
};

}  // namespace fdma
