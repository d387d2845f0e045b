// Rasterization. Counts of true cells per pixel come from the segments: rectangles for full ones,
// popcounts for bitmaps (one per distinct bitmap where a pixel holds whole tiles), intervals for
// row panels, and for a mask with a column table from that table alone, which holds all of its
// cells. So the cost follows what is stored, not q_len * kv_len.
#include "fdma/formats/mask_image.hpp"

#include <algorithm>
#include <bit>

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

class Rasterizer {
 public:
  Rasterizer(const SegmentMask& mask, std::int32_t max_side) : mask_(mask) {
    const std::int64_t wanted =
        ceil_div(std::max<std::int64_t>({mask.q_len, mask.kv_len, 1}), max_side);
    pixel_q_ = pixel_side(mask.block.block_q, wanted);
    pixel_kv_ = pixel_side(mask.block.block_kv, wanted);
    height_ = ceil_div(mask.q_len, pixel_q_);
    width_ = ceil_div(mask.kv_len, pixel_kv_);
    is_fine_ = pixel_q_ <= mask.block.block_q && pixel_kv_ <= mask.block.block_kv;
    counts_.resize(static_cast<std::size_t>(height_ * width_));
    if (is_fine_) kinds_.resize(counts_.size(), PixelKind::empty);
  }

  void add_column_table() {
    // Whole pixels of an interval are added at its ends and summed down the rows afterwards.
    std::vector<std::int64_t> ends(static_cast<std::size_t>((height_ + 1) * width_));
    for (std::int64_t k = 0; k < mask_.kv_len; ++k) {
      const std::int64_t x = k / pixel_kv_;
      const auto first = mask_.column_offsets[static_cast<std::size_t>(k)];
      const auto last = mask_.column_offsets[static_cast<std::size_t>(k) + 1];
      for (std::int64_t i = first; i < last; ++i) {
        const Interval interval = mask_.column_intervals[static_cast<std::size_t>(i)];
        const std::int64_t top = interval.begin / pixel_q_;
        const std::int64_t bottom = (interval.end - 1) / pixel_q_;
        if (top == bottom) {
          at(top, x) += interval.end - interval.begin;
          continue;
        }
        at(top, x) += (top + 1) * pixel_q_ - interval.begin;
        at(bottom, x) += interval.end - bottom * pixel_q_;
        ends[static_cast<std::size_t>((top + 1) * width_ + x)] += pixel_q_;
        ends[static_cast<std::size_t>(bottom * width_ + x)] -= pixel_q_;
      }
    }
    std::vector<std::int64_t> covered(static_cast<std::size_t>(width_));
    for (std::int64_t y = 0; y < height_; ++y) {
      for (std::int64_t x = 0; x < width_; ++x) {
        covered[static_cast<std::size_t>(x)] += ends[static_cast<std::size_t>(y * width_ + x)];
        at(y, x) += covered[static_cast<std::size_t>(x)];
      }
    }
  }

  void add_tile_row(std::int32_t row, std::span<const TileSegment> segments) {
    const bool has_table = !mask_.column_offsets.empty();
    const std::int64_t q_begin = std::int64_t{row} * mask_.block.block_q;
    const std::int64_t q_end = std::min<std::int64_t>(q_begin + mask_.block.block_q, mask_.q_len);
    for (const TileSegment& segment : segments) {
      const std::int64_t k_begin = std::int64_t{segment.first_tile} * mask_.block.block_kv;
      const std::int64_t k_end = std::min<std::int64_t>(
          std::int64_t{segment.end_tile} * mask_.block.block_kv, mask_.kv_len);
      if (is_fine_) {
        mark(q_begin, q_end, k_begin, k_end,
             segment.kind == SegmentKind::full ? PixelKind::full : PixelKind::partial);
      }
      if (has_table) continue;
      if (segment.kind == SegmentKind::full) {
        for (std::int64_t q = q_begin; q < q_end;) {
          const std::int64_t next = std::min((q / pixel_q_ + 1) * pixel_q_, q_end);
          add_keys(q / pixel_q_, k_begin, k_end, next - q);
          q = next;
        }
      } else if (segment.kind == SegmentKind::rows) {
        add_panel(segment.payload, q_begin, q_end, k_begin);
      } else {
        add_bitmaps(segment, q_begin, q_end);
      }
    }
  }

  MaskImage finish() {
    MaskImage image;
    image.width = static_cast<std::int32_t>(width_);
    image.height = static_cast<std::int32_t>(height_);
    image.cells_per_pixel_q = pixel_q_;
    image.cells_per_pixel_kv = pixel_kv_;
    image.densities.resize(counts_.size());
    if (!is_fine_) kinds_.resize(counts_.size());
    for (std::int64_t y = 0; y < height_; ++y) {
      const std::int64_t rows = std::min(pixel_q_, mask_.q_len - y * pixel_q_);
      for (std::int64_t x = 0; x < width_; ++x) {
        const std::int64_t cells = rows * std::min(pixel_kv_, mask_.kv_len - x * pixel_kv_);
        const auto pixel = static_cast<std::size_t>(y * width_ + x);
        image.densities[pixel] =
            static_cast<float>(static_cast<double>(counts_[pixel]) / static_cast<double>(cells));
        if (is_fine_) continue;
        kinds_[pixel] = counts_[pixel] == 0       ? PixelKind::empty
                        : counts_[pixel] == cells ? PixelKind::full
                                                  : PixelKind::partial;
      }
    }
    image.kinds = std::move(kinds_);
    return image;
  }

 private:
  std::int64_t& at(std::int64_t y, std::int64_t x) {
    return counts_[static_cast<std::size_t>(y * width_ + x)];
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
      const auto row = kinds_.begin() + y * width_;
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
    const std::uint64_t* words = mask_.bitmap(segment.payload).data();
    const bool holds_tiles = pixel_q_ >= mask_.block.block_q && pixel_kv_ >= block_kv;
    for (std::int32_t tile = segment.first_tile; tile < segment.end_tile; ++tile) {
      const std::int64_t first_key = tile * block_kv;
      if (holds_tiles) {
        at(q_begin / pixel_q_, first_key / pixel_kv_) += bitmap_cells(segment.payload);
        continue;
      }
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
  std::int64_t pixel_q_ = 1;
  std::int64_t pixel_kv_ = 1;
  std::int64_t width_ = 0;
  std::int64_t height_ = 0;
  bool is_fine_ = false;  // no pixel holds more than one tile: kinds come from the segments
  std::vector<std::int64_t> counts_;
  std::vector<PixelKind> kinds_;
  std::vector<std::int64_t> bitmap_cells_;
};

}  // namespace

MaskImage rasterize(const SegmentMask& mask, std::int32_t max_side, const ImageProgress& progress) {
  Rasterizer rasterizer(mask, max_side);
  if (!mask.column_offsets.empty()) rasterizer.add_column_table();
  for_each_tile_row(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    rasterizer.add_tile_row(row, segments);
    if (progress) progress(row + 1, mask.num_tile_rows());
  });
  return rasterizer.finish();
}

}  // namespace fdma
