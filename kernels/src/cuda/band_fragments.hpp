// Mask fragments of a tile (thread_cells.hpp: mask_cell) whose rows are a ClosedFormBand: the words
// that one lane of a warp makes. These are pure functions, the same on host and device. write_band
// (mask_fragments.cuh) calls them.
//
// The words lie in pieces of 16 bytes, each for two neighbouring threads: rows r and r + 8 of two
// quads of columns. Lane l makes pieces l, l + 32, .., whose rows are 32 apart. From a row to the
// one 8 below it, a bound that moves with the row passes one group of 8 columns, which is two bits.
// Columns are therefore counted once, and each word is a shift. Bounds of documents are separate
// words, which are made once.
#pragma once

#include <cstdint>

#include "cuda/mask_bits.hpp"
#include "fdma/kernels/closed_form_mask.hpp"
#include "fdma/kernels/host_device.hpp"

namespace fdma::gpu {

class BandFragments {
 public:
  static constexpr int kPieces = 4;  ///< of each lane

  /// `band` is valid; `first_column` is column 0 of the tile.
  FDMA_HOST_DEVICE BandFragments(const ClosedFormBand& band, int first_column, int lane)
      : row_(lane / 16 * 16 + lane % 16 / 2), last_row_(band.last_row) {
    constexpr int kColumns = 128, kRows = 128;
    has_begin_ = band.begin + kRows - 1 > first_column;
    has_end_ = band.end < first_column + kColumns;
    const int lane_column = first_column + 4 * (lane % 2);
    for (int quad = 0; quad < 2; ++quad) {
      const int column = lane_column + 2 * quad;
      begin_[quad] = column_count(band.begin + row_ - column);
      end_[quad] = column_count(band.end + row_ - column);
    }
    set_bounds(band.first, first_column, lane_column, first_);
    set_bounds(band.last, first_column, lane_column, last_);
  }

  /// The words of piece lane + 32 * `piece`: quad 0 in rows r and r + 8, then quad 1.
  FDMA_HOST_DEVICE void make(int piece, std::uint32_t (&words)[4]) const {
    for (int half = 0; half < 2; ++half) {
      const int group = 4 * piece + half;  // of 8 rows, counted from the lane's first row
      const bool is_last = row_ + 8 * group >= last_row_;
      for (int quad = 0; quad < 2; ++quad) {
        std::uint32_t word = is_last ? last_[quad] : first_[quad];
        if (has_end_) word &= first_columns(end_[quad] + 2 * group);
        if (has_begin_) word &= ~first_columns(begin_[quad] + 2 * group);
        words[2 * quad + half] = word;
      }
    }
  }

 private:
  FDMA_HOST_DEVICE static void set_bounds(const ClosedFormRange& bounds, int first_column,
                                          int lane_column, std::uint32_t (&words)[2]) {
    words[0] = words[1] = ~0u;
    if (bounds.begin <= first_column && bounds.end >= first_column + 128) return;
    for (int quad = 0; quad < 2; ++quad) {
      const int column = lane_column + 2 * quad;
      words[quad] = columns_below(bounds.end - column) & ~columns_below(bounds.begin - column);
    }
  }

  int row_, last_row_;
  /// False where no row begins or ends in the tile, so that nothing is cut
  bool has_begin_, has_end_;
  int begin_[2], end_[2];
  std::uint32_t first_[2], last_[2];
};

}  // namespace fdma::gpu
