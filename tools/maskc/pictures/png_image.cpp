// Colours, legend and the PNG file of an image of a mask.
//
// The simplified interface of libpng needs the whole picture in memory (0.8 GB for 16384 x 16384
// pixels); the older interface takes rows. The older interface leaves a failed call by longjmp, so
// each call has its own function, in which nothing needs a destructor.
#include "pictures/png_image.hpp"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "pictures/picture_colours.hpp"

namespace fdma::maskc {
namespace {

// An image in 8-bit RGB, rows from the top.
struct RgbImage {
  std::int32_t width = 0;
  std::int32_t height = 0;
  std::vector<std::uint8_t> rgb;
};

RgbImage blank(std::int32_t width, std::int32_t height) {
  const auto bytes = 3 * static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  return {width, height, std::vector<std::uint8_t>(bytes, kPaper[0])};
}

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

void draw_legend(RgbImage& image) {
  std::int32_t x = 2;
  constexpr std::int32_t y = 2;
  const auto entry = [&](PixelKind kind, std::int32_t width, std::string_view word) {
    x = fill_swatch(image, x, y, width, kind) + 3;
    x = write_word(image, x, y + 2, word) + 6;
  };
  entry(PixelKind::full, kSwatch, "full");
  entry(PixelKind::partial, 3 * kSwatch, "partial");
  entry(PixelKind::empty, kSwatch, "empty");
}

constexpr std::int32_t kLegendWidth = 2 + 5 * kSwatch + 3 * 9 + 16 * kGlyphPitch;

// Keeps a message of libpng. The text lives longer than the jump.
void keep_message(png_structp png, png_const_charp message) {
  auto* text = static_cast<std::array<char, 128>*>(png_get_error_ptr(png));
  std::snprintf(text->data(), text->size(), "%s", message);
  longjmp(png_jmpbuf(png), 1);
}
void ignore_warning(png_structp, png_const_charp) {}

// True unless libpng jumps out of `call`, which owns nothing.
template <class Call>
bool is_done(png_structp png, const Call& call) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  call();
  return true;
}

}  // namespace

struct PngWriter::State {
  std::string path;
  std::int32_t scale = 1;
  bool has_legend = false;
  std::int32_t height = 0;
  RgbImage row;  // one row of the picture
  std::FILE* file = nullptr;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::array<char, 128> message{};
  bool has_failed = false;
  int error_number = 0;

  ~State() {
    if (png != nullptr) png_destroy_write_struct(&png, &info);
    if (file != nullptr) std::fclose(file);
  }

  template <class Call>
  void run(const Call& call) {
    if (has_failed) return;
    errno = 0;
    if (is_done(png, call)) return;
    has_failed = true;
    error_number = errno;
  }

  void write(const RgbImage& image) {
    const std::size_t row_bytes = 3 * static_cast<std::size_t>(image.width);
    for (std::int32_t y = 0; y < image.height; ++y) {
      const std::uint8_t* bytes = image.rgb.data() + static_cast<std::size_t>(y) * row_bytes;
      run([&] { png_write_row(png, bytes); });
    }
  }

  CommandFailure failure() const {
    const char* reason = error_number != 0 ? std::strerror(error_number) : message.data();
    return {ExitCode::file, fmt::format("{}: cannot write: {}", path, reason)};
  }
};

PngWriter::PngWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
PngWriter::PngWriter(PngWriter&&) noexcept = default;
PngWriter& PngWriter::operator=(PngWriter&&) noexcept = default;
PngWriter::~PngWriter() = default;

std::int32_t PngWriter::width() const { return state_->row.width; }
std::int32_t PngWriter::height() const { return state_->height; }

Outcome<PngWriter> PngWriter::create(const std::string& path, const MaskImage& frame,
                                     std::int32_t scale, bool with_legend) {
  auto state = std::make_unique<State>();
  State& s = *state;
  s.path = path;
  s.scale = scale;
  s.has_legend = with_legend;
  s.row = blank(with_legend ? std::max(frame.width * scale, kLegendWidth) : frame.width * scale, 1);
  s.height = frame.height * scale + (with_legend ? kLegendHeight : 0);
  s.file = std::fopen(path.c_str(), "wb");
  if (s.file == nullptr) {
    s.error_number = errno;
    return s.failure();
  }
  s.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &s.message, keep_message, ignore_warning);
  if (s.png != nullptr) s.info = png_create_info_struct(s.png);
  if (s.info == nullptr) return CommandFailure{ExitCode::unsupported, path + ": out of memory"};
  s.run([&] {
    png_init_io(s.png, s.file);
    png_set_IHDR(s.png, s.info, static_cast<png_uint_32>(s.row.width),
                 static_cast<png_uint_32>(s.height), 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_sRGB(s.png, s.info, PNG_sRGB_INTENT_PERCEPTUAL);
    png_write_info(s.png, s.info);
  });
  if (s.has_failed) return s.failure();
  return PngWriter(std::move(state));
}

void PngWriter::add(std::span<const PixelKind> kinds, std::span<const float> densities) {
  State& s = *state_;
  for (std::size_t x = 0; x < kinds.size(); ++x) {
    const Colour colour = colour_of(kinds[x], densities[x]);
    for (std::int32_t i = 0; i < s.scale; ++i) {
      put(s.row, static_cast<std::int32_t>(x) * s.scale + i, 0, colour);
    }
  }
  for (std::int32_t i = 0; i < s.scale; ++i) s.write(s.row);
}

Status PngWriter::finish() {
  State& s = *state_;
  if (s.has_legend) {
    RgbImage legend = blank(s.row.width, kLegendHeight);
    draw_legend(legend);
    s.write(legend);
  }
  s.run([&] { png_write_end(s.png, s.info); });
  if (s.has_failed) return s.failure();
  if (std::fclose(std::exchange(s.file, nullptr)) != 0) {
    s.error_number = errno;
    return s.failure();
  }
  return Nothing{};
}

}  // namespace fdma::maskc
