// A mask as pixels, the source of every kind of picture.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

enum class PixelKind : std::uint8_t { empty, partial, full };

/// A mask in pixels, each of a whole number of cells.
///
/// Example     causal of 1M tokens in blocks of 128, at most 512 pixels a side: 512 x 512 pixels of
///             2048 x 2048 cells; pixels below the diagonal are full, pixels on it are partial and
///             half true
/// Shapes      kinds, densities [height, width]
/// Invariants  pixel sides divide the block or are multiples of it, so that no pixel straddles a
///             tile border without need
///             a pixel inside one tile has that tile's kind; any other pixel is full (empty) iff
///             all its cells are true (false), else partial
///             density = true cells / existing cells
struct MaskImage {
  std::int32_t width = 0;   ///< pixels, along the keys
  std::int32_t height = 0;  ///< pixels, along the query rows
  std::int64_t cells_per_pixel_q = 1;
  std::int64_t cells_per_pixel_kv = 1;
  std::vector<PixelKind> kinds;
  std::vector<float> densities;
};

/// Called after each tile row with the number of rows done and the number in all; may be empty.
using ImageProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// The sides and the scale of the image that rasterize() would make, without its pixels.
MaskImage image_frame(const SegmentMask& mask, std::int32_t max_side);

/// Called with each row of pixels from the top; the spans have `width` elements and are valid
/// during the call.
using PixelRow = std::function<void(std::int32_t y, std::span<const PixelKind> kinds,
                                    std::span<const float> densities)>;

/// Calls `row` for the rows of image_frame(mask, max_side), one after another.
///
/// Cost        time as rasterize(), and with a column table one walk over the table for each
///             sixteenth of the image; memory for the pixels of one tile row, and with a column
///             table one byte for each pixel
void rasterize_rows(const SegmentMask& mask, std::int32_t max_side, const PixelRow& row,
                    const ImageProgress& progress = {});

/// The mask in at most max_side x max_side pixels (max_side at least 1), in cells if it fits. A
/// mask without cells has no pixels.
///
/// Cost        time O(pixels + tile rows * segments + stored partial cells); memory O(pixels)
MaskImage rasterize(const SegmentMask& mask, std::int32_t max_side,
                    const ImageProgress& progress = {});

}  // namespace fdma
