// Colours, legend and the PNG file of an image of a mask.
#include "png_image.hpp"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "picture_colours.hpp"

namespace fdma::maskc {
namespace {

Colour colour_of(PixelKind kind, float density) {
  switch (kind) {
    case PixelKind::empty:
      return kEmptyColour;
    case PixelKind::full:
      return kFullColour;
    case PixelKind::partial:
      return partial_colour(density);
  }
  return kEmptyColour;
}

// Letters of the legend, five columns of seven rows; bit 0 of a column is its top.
struct Glyph {
  char letter;
  std::array<std::uint8_t, 5> columns;
};
constexpr Glyph kGlyphs[] = {
    {'a', {0x20, 0x54, 0x54, 0x54, 0x78}}, {'e', {0x38, 0x54, 0x54, 0x54, 0x18}},
    {'f', {0x08, 0x7e, 0x09, 0x01, 0x02}}, {'i', {0x00, 0x44, 0x7d, 0x40, 0x00}},
    {'l', {0x00, 0x41, 0x7f, 0x40, 0x00}}, {'m', {0x7c, 0x04, 0x18, 0x04, 0x78}},
    {'p', {0x7c, 0x14, 0x14, 0x14, 0x08}}, {'r', {0x7c, 0x08, 0x04, 0x04, 0x08}},
    {'t', {0x04, 0x3f, 0x44, 0x40, 0x20}}, {'u', {0x3c, 0x40, 0x40, 0x20, 0x7c}},
    {'y', {0x0c, 0x50, 0x50, 0x50, 0x3c}},
};
constexpr std::int32_t kGlyphPitch = 6;
constexpr std::int32_t kLegendHeight = 15;
constexpr std::int32_t kSwatch = 11;

void put(RgbImage& image, std::int32_t x, std::int32_t y, const Colour& colour) {
  if (x < 0 || x >= image.width || y < 0 || y >= image.height) return;
  const std::size_t at = 3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) +
                              static_cast<std::size_t>(x));
  std::copy(colour.begin(), colour.end(), image.rgb.begin() + static_cast<std::ptrdiff_t>(at));
}

std::int32_t write_word(RgbImage& image, std::int32_t x, std::int32_t y, std::string_view word) {
  for (char letter : word) {
    for (const Glyph& glyph : kGlyphs) {
      if (glyph.letter != letter) continue;
      for (std::int32_t column = 0; column < 5; ++column) {
        for (std::int32_t row = 0; row < 7; ++row) {
          if ((glyph.columns[static_cast<std::size_t>(column)] >> row & 1) != 0) {
            put(image, x + column, y + row, kInk);
          }
        }
      }
    }
    x += kGlyphPitch;
  }
  return x;
}

std::int32_t fill_swatch(RgbImage& image, std::int32_t x, std::int32_t y, std::int32_t width,
                         PixelKind kind) {
  for (std::int32_t i = 0; i < width; ++i) {
    const float density = static_cast<float>(i) / static_cast<float>(std::max(width - 1, 1));
    for (std::int32_t j = 0; j < kSwatch; ++j) put(image, x + i, y + j, colour_of(kind, density));
  }
  return x + width;
}

void draw_legend(RgbImage& image, std::int32_t top) {
  std::int32_t x = 2;
  const std::int32_t y = top + 2;
  const auto entry = [&](PixelKind kind, std::int32_t width, std::string_view word) {
    x = fill_swatch(image, x, y, width, kind) + 3;
    x = write_word(image, x, y + 2, word) + 6;
  };
  entry(PixelKind::full, kSwatch, "full");
  entry(PixelKind::partial, 3 * kSwatch, "partial");
  entry(PixelKind::empty, kSwatch, "empty");
}

constexpr std::int32_t kLegendWidth = 2 + 5 * kSwatch + 3 * 9 + 16 * kGlyphPitch;

}  // namespace

RgbImage paint(const MaskImage& image, std::int32_t scale, bool with_legend) {
  RgbImage out;
  const std::int32_t legend_top = image.height * scale;
  out.width = with_legend ? std::max(image.width * scale, kLegendWidth) : image.width * scale;
  out.height = legend_top + (with_legend ? kLegendHeight : 0);
  out.rgb.resize(3 * static_cast<std::size_t>(out.width) * static_cast<std::size_t>(out.height),
                 kPaper[0]);
  for (std::int32_t y = 0; y < legend_top; ++y) {
    for (std::int32_t x = 0; x < image.width * scale; ++x) {
      const std::size_t pixel =
          static_cast<std::size_t>(y / scale) * static_cast<std::size_t>(image.width) +
          static_cast<std::size_t>(x / scale);
      put(out, x, y, colour_of(image.kinds[pixel], image.densities[pixel]));
    }
  }
  if (with_legend) draw_legend(out, legend_top);
  return out;
}

Status write_png(const std::string& path, const RgbImage& image) {
  png_image header;
  std::memset(&header, 0, sizeof header);
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = PNG_FORMAT_RGB;
  errno = 0;
  if (png_image_write_to_file(&header, path.c_str(), 0, image.rgb.data(), 0, nullptr) == 0) {
    const std::string reason = errno != 0 ? std::strerror(errno) : header.message;
    png_image_free(&header);
    return CommandFailure{ExitCode::file, fmt::format("{}: cannot write: {}", path, reason)};
  }
  return Nothing{};
}

}  // namespace fdma::maskc
