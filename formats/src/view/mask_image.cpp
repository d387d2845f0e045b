// Rasterization. Counts of true cells per pixel come from the segments: rectangles for full ones,
// popcounts for bitmaps (one per distinct bitmap where a pixel holds whole tiles, which are added
// pixel by pixel), intervals for row panels, sums over turns of the pattern row for patterns. For a mask with a column table they come from that table alone, which holds all of
// its cells. The cost therefore follows what is stored, not q_len * kv_len.
#include "fdma/formats/mask_image.hpp"

#include <algorithm>
#include <bit>
#include <optional>

#include "segment/pattern_bounds.hpp"
#include "segment/stored_rows.hpp"
#include "segment/written_out.hpp"

namespace fdma {
namespace {

// The smallest divisor or multiple of `side` that is at least `wanted`.
std::int64_t pixel_side(std::int64_t side, std::int64_t wanted) {
  if (wanted > side) return side * ceil_div(wanted, side);
  for (std::int64_t divisor = wanted; divisor < side; ++divisor) {
    if (side % divisor == 0) return divisor;
  }
  return side;
}

std::int64_t count_bits(const std::uint64_t* words, std::int64_t begin, std::int64_t end) {
  std::int64_t count = 0;
  while (begin < end) {
    const std::int64_t shift = begin % 64;
    const std::int64_t take = std::min<std::int64_t>(64 - shift, end - begin);
    const std::uint64_t mask = take == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << take) - 1;
    count += std::popcount((words[begin / 64] >> shift) & mask);
    begin += take;
  }
  return count;
}

// Counts true cells in one band of pixel rows after another. A band is a tile row, or a sixteenth
// of the image where a column table has to be walked for each band.
class Rasterizer {
 public:
  Rasterizer(const SegmentMask& mask, const MaskImage& frame, const PixelRow& row)
      : mask_(mask),
        row_(row),
        pixel_q_(frame.cells_per_pixel_q),
        pixel_kv_(frame.cells_per_pixel_kv),
        width_(frame.width),
        height_(frame.height),
        is_fine_(pixel_q_ <= mask.block.block_q && pixel_kv_ <= mask.block.block_kv),
        holds_tiles_(pixel_q_ >= mask.block.block_q && pixel_kv_ >= mask.block.block_kv),
        tiles_per_pixel_(std::max<std::int64_t>(1, pixel_kv_ / mask.block.block_kv)),
        densities_(static_cast<std::size_t>(width_)) {
    constexpr std::int64_t kWalks = 16;
    const std::int64_t of_tile_row = std::max<std::int64_t>(1, mask.block.block_q / pixel_q_);
    band_rows_ = of_tile_row;
    if (has_table()) band_rows_ *= ceil_div(height_, kWalks * of_tile_row);
  }

  void run(const ImageProgress& progress) {
    if (width_ == 0) return;
    for_each_stored_row(mask_, [&](std::int32_t row, std::span<const TileSegment> segments) {
      if (std::int64_t{row} * mask_.block.block_q / pixel_q_ >= end_) {
        finish_band();
        begin_band();
      }
      add_tile_row(row, segments);
      if (progress) progress(row + 1, mask_.num_tile_rows());
    });
    finish_band();
  }

 private:
  bool has_table() const { return !mask_.column_offsets.empty(); }

  void begin_band() {
    begin_ = end_;
    end_ = std::min(begin_ + band_rows_, height_);
    counts_.assign(static_cast<std::size_t>((end_ - begin_) * width_), 0);
    if (is_fine_) kinds_.assign(counts_.size(), PixelKind::empty);
    if (has_table()) add_column_table();
  }

  void add_column_table() {
    // Whole pixels of an interval are added at its ends and summed along the row afterwards.
    std::vector<std::int64_t> ends(static_cast<std::size_t>((end_ - begin_) * width_));
    const auto end_at = [&](std::int64_t y, std::int64_t x) -> std::int64_t& {
      return ends[static_cast<std::size_t>((y - begin_) * width_ + x)];
    };
    for (std::int64_t k = 0; k < mask_.kv_len; ++k) {
      const std::int64_t x = k / pixel_kv_;
      const auto first = mask_.column_offsets[static_cast<std::size_t>(k)];
      const auto last = mask_.column_offsets[static_cast<std::size_t>(k) + 1];
      for (std::int64_t i = first; i < last; ++i) {
        const Interval whole = mask_.column_intervals[static_cast<std::size_t>(i)];
        const std::int64_t q_begin = std::max<std::int64_t>(whole.begin, begin_ * pixel_q_);
        const std::int64_t q_end = std::min<std::int64_t>(whole.end, end_ * pixel_q_);
        if (q_begin >= q_end) continue;
        const std::int64_t top = q_begin / pixel_q_;
        const std::int64_t bottom = (q_end - 1) / pixel_q_;
        if (top == bottom) {
          at(top, x) += q_end - q_begin;
          continue;
        }
        at(top, x) += (top + 1) * pixel_q_ - q_begin;
        at(bottom, x) += q_end - bottom * pixel_q_;
        end_at(top + 1, x) += pixel_q_;
        end_at(bottom, x) -= pixel_q_;
      }
    }
    std::vector<std::int64_t> covered(static_cast<std::size_t>(width_));
    for (std::int64_t y = begin_; y < end_; ++y) {
      for (std::int64_t x = 0; x < width_; ++x) {
        covered[static_cast<std::size_t>(x)] += end_at(y, x);
        at(y, x) += covered[static_cast<std::size_t>(x)];
      }
    }
  }

  void add_tile_row(std::int32_t row, std::span<const TileSegment> segments) {
    const std::int64_t q_begin = std::int64_t{row} * mask_.block.block_q;
    const std::int64_t q_end = std::min<std::int64_t>(q_begin + mask_.block.block_q, mask_.q_len);
    for (const TileSegment& segment : segments) {
      if (segment.kind == SegmentKind::pattern) {
        if (holds_tiles_ && !is_fine_) {
          add_turns(row, segment);
        } else {  // at most a few tiles a pixel, so few in all
          written_out_.clear();
          append_written_out(mask_, row, segment, written_out_);
          add_tile_row(row, written_out_);
        }
        continue;
      }
      const std::int64_t k_begin = std::int64_t{segment.first_tile} * mask_.block.block_kv;
      const std::int64_t k_end = std::min<std::int64_t>(
          std::int64_t{segment.end_tile} * mask_.block.block_kv, mask_.kv_len);
      if (is_fine_) {
        mark(q_begin, q_end, k_begin, k_end,
             segment.kind == SegmentKind::full ? PixelKind::full : PixelKind::partial);
      }
      if (has_table()) continue;
      if (segment.kind == SegmentKind::full) {
        for (std::int64_t q = q_begin; q < q_end;) {
          const std::int64_t next = std::min((q / pixel_q_ + 1) * pixel_q_, q_end);
          add_keys(q / pixel_q_, k_begin, k_end, next - q);
          q = next;
        }
      } else if (segment.kind == SegmentKind::rows) {
        add_panel(segment.data_index, q_begin, q_end, k_begin);
      } else {
        add_bitmaps(segment, q_begin, q_end);
      }
    }
  }

  void finish_band() {
    for (std::int64_t y = begin_; y < end_; ++y) {
      const auto offset = static_cast<std::size_t>((y - begin_) * width_);
      const std::int64_t rows = std::min(pixel_q_, mask_.q_len - y * pixel_q_);
      if (!is_fine_) kinds_.resize(counts_.size());
      for (std::int64_t x = 0; x < width_; ++x) {
        const std::int64_t cells = rows * std::min(pixel_kv_, mask_.kv_len - x * pixel_kv_);
        const auto pixel = offset + static_cast<std::size_t>(x);
        densities_[static_cast<std::size_t>(x)] =
            static_cast<float>(static_cast<double>(counts_[pixel]) / static_cast<double>(cells));
        if (is_fine_) continue;
        kinds_[pixel] = counts_[pixel] == 0       ? PixelKind::empty
                        : counts_[pixel] == cells ? PixelKind::full
                                                  : PixelKind::partial;
      }
      row_(static_cast<std::int32_t>(y),
           std::span(kinds_).subspan(offset, static_cast<std::size_t>(width_)), densities_);
    }
  }

  std::int64_t& at(std::int64_t y, std::int64_t x) {
    return counts_[static_cast<std::size_t>((y - begin_) * width_ + x)];
  }

  // Adds `times` rows with keys [begin, end) to pixel row y.
  void add_keys(std::int64_t y, std::int64_t begin, std::int64_t end, std::int64_t times) {
    while (begin < end) {
      const std::int64_t next = std::min((begin / pixel_kv_ + 1) * pixel_kv_, end);
      at(y, begin / pixel_kv_) += times * (next - begin);
      begin = next;
    }
  }

  void mark(std::int64_t q_begin, std::int64_t q_end, std::int64_t k_begin, std::int64_t k_end,
            PixelKind kind) {
    for (std::int64_t y = q_begin / pixel_q_; y * pixel_q_ < q_end; ++y) {
      const auto row = kinds_.begin() + (y - begin_) * width_;
      std::fill(row + k_begin / pixel_kv_, row + ceil_div(k_end, pixel_kv_), kind);
    }
  }

  void add_panel(std::int64_t panel, std::int64_t q_begin, std::int64_t q_end,
                 std::int64_t k_begin) {
    for (std::int64_t q = q_begin; q < q_end; ++q) {
      const auto row = static_cast<std::size_t>(panel * mask_.block.block_q + q - q_begin);
      for (std::int64_t i = mask_.row_offsets[row]; i < mask_.row_offsets[row + 1]; ++i) {
        const Interval keys = mask_.row_intervals[static_cast<std::size_t>(i)];
        add_keys(q / pixel_q_, k_begin + keys.begin, k_begin + keys.end, 1);
      }
    }
  }

  void add_bitmaps(const TileSegment& segment, std::int64_t q_begin, std::int64_t q_end) {
    const std::int64_t block_kv = mask_.block.block_kv;
    const std::uint64_t* words = mask_.bitmap(segment.data_index).data();
    if (holds_tiles_) {
      const std::int64_t cells = bitmap_cells(segment.data_index);
      for (std::int64_t first = segment.first_tile; first < segment.end_tile;) {
        const std::int64_t x = first / tiles_per_pixel_;
        const std::int64_t next =
            std::min<std::int64_t>((x + 1) * tiles_per_pixel_, segment.end_tile);
        at(q_begin / pixel_q_, x) += (next - first) * cells;
        first = next;
      }
      return;
    }
    for (std::int32_t tile = segment.first_tile; tile < segment.end_tile; ++tile) {
      const std::int64_t first_key = tile * block_kv;
      const std::int64_t keys = std::min(block_kv, mask_.kv_len - first_key);
      for (std::int64_t q = q_begin; q < q_end; ++q) {
        const std::int64_t row = (q - q_begin) * block_kv;
        for (std::int64_t c = 0; c < keys;) {
          const std::int64_t x = (first_key + c) / pixel_kv_;
          const std::int64_t next = std::min((x + 1) * pixel_kv_ - first_key, keys);
          at(q / pixel_q_, x) += count_bits(words, row + c, row + next);
          c = next;
        }
      }
    }
  }

  // Adds the tiles of a pattern, where each pixel holds whole tiles.
  void add_turns(std::int64_t row, const TileSegment& segment) {
    const TilePattern& pattern = mask_.patterns[static_cast<std::size_t>(segment.data_index)];
    const std::int64_t block_q = mask_.block.block_q, block_kv = mask_.block.block_kv;
    const std::int64_t y = row * block_q / pixel_q_;
    if (!pattern_rows_) {
      pattern_rows_.emplace(mask_, [&](const PatternTile& tile) {
        return tile.bitmap == kFullTile ? PatternTotals{1, 0, block_q * block_kv}
                                        : PatternTotals{0, 1, bitmap_cells(tile.bitmap)};
      });
    }
    const std::int64_t missing_rows = std::max<std::int64_t>((row + 1) * block_q - mask_.q_len, 0);
    const std::int64_t end = segment.end_tile;
    PatternRowWalk walk(mask_, pattern, row, segment.first_tile);
    const auto next_tiles = [&](std::int64_t count) {
      const PatternBound from = walk.bound();
      walk.advance(count);
      return sum_between(*pattern_rows_, from, walk.bound());
    };
    for (std::int64_t first = segment.first_tile; first < end;) {
      const std::int64_t x = first / tiles_per_pixel_;
      const std::int64_t next = std::min((x + 1) * tiles_per_pixel_, end);
      const std::int64_t missing_keys = std::max<std::int64_t>(next * block_kv - mask_.kv_len, 0);
      // A full tile in the last column has fewer keys, and all of them in the last row fewer rows.
      const PatternTotals tiles = next_tiles(next - first - (missing_keys > 0 ? 1 : 0));
      std::int64_t cells = tiles.cells - tiles.full * block_kv * missing_rows;
      if (missing_keys > 0) {
        const PatternTotals last = next_tiles(1);
        cells += last.full > 0 ? (block_q - missing_rows) * (block_kv - missing_keys) : last.cells;
      }
      at(y, x) += cells;
      first = next;
    }
  }

  std::int64_t bitmap_cells(std::int32_t index) {
    if (bitmap_cells_.empty()) {
      bitmap_cells_.resize(static_cast<std::size_t>(mask_.num_bitmaps()), -1);
    }
    std::int64_t& cells = bitmap_cells_[static_cast<std::size_t>(index)];
    if (cells < 0) {
      cells = 0;
      for (std::uint64_t word : mask_.bitmap(index)) cells += std::popcount(word);
    }
    return cells;
  }

  const SegmentMask& mask_;
  const PixelRow& row_;
  std::int64_t pixel_q_;
  std::int64_t pixel_kv_;
  std::int64_t width_;
  std::int64_t height_;
  bool is_fine_;      // no pixel holds more than one tile, so kinds come from the segments
  bool holds_tiles_;  // each pixel holds whole tiles
  std::int64_t tiles_per_pixel_;  // of a tile row
  std::int64_t band_rows_;
  std::int64_t begin_ = 0;  // pixel rows of the band
  std::int64_t end_ = 0;
  std::vector<std::int64_t> counts_;
  std::vector<PixelKind> kinds_;
  std::vector<float> densities_;  // of one row
  std::vector<std::int64_t> bitmap_cells_;
  std::optional<PatternRowSums<PatternTotals>> pattern_rows_;
  std::vector<TileSegment> written_out_;
};

}  // namespace

MaskImage image_frame(const SegmentMask& mask, std::int32_t max_side) {
  const std::int64_t wanted =
      ceil_div(std::max<std::int64_t>({mask.q_len, mask.kv_len, 1}), max_side);
  MaskImage frame;
  frame.cells_per_pixel_q = pixel_side(mask.block.block_q, wanted);
  frame.cells_per_pixel_kv = pixel_side(mask.block.block_kv, wanted);
  frame.height = static_cast<std::int32_t>(ceil_div(mask.q_len, frame.cells_per_pixel_q));
  frame.width = static_cast<std::int32_t>(ceil_div(mask.kv_len, frame.cells_per_pixel_kv));
  return frame;
}

void rasterize_rows(const SegmentMask& mask, std::int32_t max_side, const PixelRow& row,
                    const ImageProgress& progress) {
  Rasterizer(mask, image_frame(mask, max_side), row).run(progress);
}

MaskImage rasterize(const SegmentMask& mask, std::int32_t max_side, const ImageProgress& progress) {
  MaskImage image = image_frame(mask, max_side);
  const std::size_t num_pixels =
      static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height);
  image.kinds.reserve(num_pixels);
  image.densities.reserve(num_pixels);
  rasterize_rows(
      mask, max_side,
      [&](std::int32_t, std::span<const PixelKind> kinds, std::span<const float> densities) {
        image.kinds.insert(image.kinds.end(), kinds.begin(), kinds.end());
        image.densities.insert(image.densities.end(), densities.begin(), densities.end());
      },
      progress);
  return image;
}

}  // namespace fdma
