// A mask as a PNG picture.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cli/outcome.hpp"
#include "fdma/formats/mask_image.hpp"
#include "pictures/picture_frame.hpp"

namespace fdma::maskc {

/// A PNG file in 8-bit RGB, written row by row. Its memory is that of a few rows, independent of
/// the size of the picture.
///
/// Example     FDMA_TRY(PngWriter png, PngWriter::create(path, image, scale, frame));
///             rasterize_rows(.., [&](.., kinds, densities) { png.add(kinds, densities); });
///             FDMA_TRY_VOID(png.finish());
class PngWriter {
 public:
  /// Each pixel of `image` becomes a square of `scale` x `scale`. Letters grow with the picture.
  /// Failure: file.
  static Outcome<PngWriter> create(const std::string& path, const MaskImage& image,
                                   std::int32_t scale, const PictureFrame& frame);
  PngWriter(PngWriter&&) noexcept;
  PngWriter& operator=(PngWriter&&) noexcept;
  ~PngWriter();

  std::int32_t width() const;
  std::int32_t height() const;
  /// Adds the next row of pixels of the image. finish() reports any failure of this call.
  void add(std::span<const PixelKind> kinds, std::span<const float> densities);
  /// Writes the legend and the end of the file, after all rows. Failure: file.
  Status finish();

 private:
  struct State;
  explicit PngWriter(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace fdma::maskc
