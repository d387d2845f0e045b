// A mask as pixels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "outcome.hpp"

namespace fdma::maskc {

class Progress;

enum class PixelKind : std::uint8_t { empty, partial, full };

/// A mask in pixels of a whole number of cells each.
///
/// Invariants  pixel sides divide the block or are multiples of it, so that no pixel straddles a
/// tile
///             border it does not have to; a pixel is full (empty) iff all tiles it touches are,
///             else partial, with density = true cells / existing cells
struct MaskImage {
  std::int32_t width = 0;   ///< pixels, along the keys
  std::int32_t height = 0;  ///< pixels, along the query rows
  std::int64_t cells_per_pixel_q = 1;
  std::int64_t cells_per_pixel_kv = 1;
  std::vector<PixelKind> kinds;  ///< [height, width]
  std::vector<float> densities;  ///< [height, width]
};

/// The mask in at most max_side x max_side pixels, in cells if it fits. The mask has a cell at
/// least. Cost: O(pixels + tile rows * segments + stored partial cells); memory O(pixels).
MaskImage rasterize(const SegmentMask& mask, std::int32_t max_side, Progress& progress);

/// An image in 8-bit RGB, rows from the top.
struct RgbImage {
  std::int32_t width = 0;
  std::int32_t height = 0;
  std::vector<std::uint8_t> rgb;
};

/// Colours the pixels, each as a square of `scale` x `scale`; with_legend adds a strip below that
/// names the colours.
RgbImage paint(const MaskImage& image, std::int32_t scale, bool with_legend);

/// Writes a PNG file with libpng's simplified interface. Failure: file.
Status write_png(const std::string& path, const RgbImage& image);

}  // namespace fdma::maskc
