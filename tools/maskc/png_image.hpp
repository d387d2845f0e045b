// A mask as a PNG picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/formats/mask_image.hpp"
#include "outcome.hpp"

namespace fdma::maskc {

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
