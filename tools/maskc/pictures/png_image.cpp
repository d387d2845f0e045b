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

#include "pictures/axis_ticks.hpp"
#include "pictures/picture_colours.hpp"
#include "pictures/pixel_font.hpp"

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

// Lengths of the frame in pixels of letters of scale 1.
constexpr std::int32_t kMargin = 2;
constexpr std::int32_t kLineHeight = kLetterHeight + 4;
constexpr std::int32_t kLegendHeight = 15;
constexpr std::int32_t kSwatch = 11;
constexpr std::int32_t kTick = 3;
/// Pixels of a picture for each step of the letters' scale.
constexpr std::int32_t kPixelsPerScale = 512;

void put(RgbImage& image, std::int32_t x, std::int32_t y, const Colour& colour) {
  if (x < 0 || x >= image.width || y < 0 || y >= image.height) return;
  const std::size_t at = 3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) +
                              static_cast<std::size_t>(x));
  std::copy(colour.begin(), colour.end(), image.rgb.begin() + static_cast<std::ptrdiff_t>(at));
}

void fill(RgbImage& image, std::int32_t x, std::int32_t y, std::int32_t width, std::int32_t height,
          const Colour& colour) {
  for (std::int32_t j = 0; j < height; ++j) {
    for (std::int32_t i = 0; i < width; ++i) put(image, x + i, y + j, colour);
  }
}

// A text whose upper left corner is (x, y).
void write_text(RgbImage& image, std::int32_t x, std::int32_t y, std::int32_t scale,
                std::string_view text) {
  draw_text(text, [&](std::int32_t column, std::int32_t row) {
    fill(image, x + column * scale, y + row * scale, scale, scale, kInk);
  });
}

/// One entry of the legend.
struct LegendEntry {
  PixelKind kind;
  std::int32_t num_swatches;
  std::string_view word;
};
constexpr LegendEntry kLegend[] = {{PixelKind::full, 1, "full"},
                                   {PixelKind::partial, 3, "partial"},
                                   {PixelKind::empty, 1, "empty"}};

void draw_legend(RgbImage& image, std::int32_t scale) {
  std::int32_t x = kMargin * scale;
  const std::int32_t y = kMargin * scale;
  for (const LegendEntry& entry : kLegend) {
    const std::int32_t width = entry.num_swatches * kSwatch * scale;
    for (std::int32_t i = 0; i < width; ++i) {
      const float density = static_cast<float>(i) / static_cast<float>(std::max(width - 1, 1));
      fill(image, x + i, y, 1, kSwatch * scale, colour_of(entry.kind, density));
    }
    x += width + 3 * scale;
    write_text(image, x, y + 2 * scale, scale, entry.word);
    x += (text_width(entry.word) + 6) * scale;
  }
}

std::int32_t legend_width(std::int32_t scale) {
  std::int32_t width = kMargin;
  for (const LegendEntry& entry : kLegend) {
    width += entry.num_swatches * kSwatch + 9 + text_width(entry.word);
  }
  return width * scale;
}

// The frame's measures, and its two images that hold the axes and the title.
struct Surroundings {
  std::int32_t scale = 1;  // of the letters
  RgbImage top;            // title and numbers of keys, as wide as the picture
  RgbImage left;           // numbers of query rows, as high as the mask
};

// Numbers of an axis with the place of each, in pixels of the mask.
std::vector<std::pair<std::string, std::int32_t>> labels_of(const Interval64& range,
                                                            std::int64_t cells_per_pixel,
                                                            std::int32_t pixel_scale,
                                                            std::int64_t most) {
  std::vector<std::pair<std::string, std::int32_t>> labels;
  for (const std::int64_t tick : axis_ticks(range.end - range.begin, most)) {
    labels.emplace_back(fmt::format("{}", range.begin + tick),
                        static_cast<std::int32_t>(tick / cells_per_pixel * pixel_scale));
  }
  return labels;
}

Surroundings surroundings_of(const MaskImage& image, std::int32_t pixel_scale,
                             const PictureFrame& frame) {
  const std::int32_t width = image.width * pixel_scale, height = image.height * pixel_scale;
  Surroundings around;
  around.scale = std::max(1, std::max(width, height) / kPixelsPerScale);
  const std::int32_t letters = around.scale;
  std::int32_t left = 0, top = frame.title.empty() ? 0 : kLineHeight * letters;
  if (frame.has_axes) {
    left = (text_width(fmt::format("{}", frame.rows.end)) + kMargin + kTick) * letters;
    top += (kLineHeight + kTick) * letters;
  }
  std::int32_t whole = left + width;
  if (frame.has_legend) whole = std::max(whole, legend_width(letters));
  whole = std::max(whole, (text_width(frame.title) + 2 * kMargin) * letters);
  around.top = blank(whole, top);
  around.left = blank(left, height);
  write_text(around.top, kMargin * letters, kMargin * letters, letters, frame.title);
  if (!frame.has_axes) return around;
  const std::int32_t room =
      (text_width(fmt::format("{}", frame.keys.end)) + kLetterPitch) * letters;
  for (const auto& [label, at] :
       labels_of(frame.keys, image.cells_per_pixel_kv, pixel_scale, width / room)) {
    fill(around.top, left + at, top - kTick * letters, letters, kTick * letters, kInk);
    write_text(around.top, left + at, top - (kTick + kLineHeight - kMargin) * letters, letters,
               label);
  }
  for (const auto& [label, at] : labels_of(frame.rows, image.cells_per_pixel_q, pixel_scale,
                                           height / (2 * kLineHeight * letters))) {
    fill(around.left, left - kTick * letters, at, kTick * letters, letters, kInk);
    write_text(around.left, left - (kTick + 1) * letters - text_width(label) * letters, at, letters,
               label);
  }
  return around;
}

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
  Surroundings around;
  std::int32_t next_row = 0;  // of the mask's pixels
  RgbImage row;               // one row of the picture
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

Outcome<PngWriter> PngWriter::create(const std::string& path, const MaskImage& image,
                                     std::int32_t scale, const PictureFrame& frame) {
  auto state = std::make_unique<State>();
  State& s = *state;
  s.path = path;
  s.scale = scale;
  s.has_legend = frame.has_legend;
  s.around = surroundings_of(image, scale, frame);
  s.row = blank(s.around.top.width, 1);
  s.height = s.around.top.height + image.height * scale +
             (frame.has_legend ? kLegendHeight * s.around.scale : 0);
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
  s.write(s.around.top);
  if (s.has_failed) return s.failure();
  return PngWriter(std::move(state));
}

void PngWriter::add(std::span<const PixelKind> kinds, std::span<const float> densities) {
  State& s = *state_;
  for (std::size_t x = 0; x < kinds.size(); ++x) {
    const Colour colour = colour_of(kinds[x], densities[x]);
    for (std::int32_t i = 0; i < s.scale; ++i) {
      put(s.row, s.around.left.width + static_cast<std::int32_t>(x) * s.scale + i, 0, colour);
    }
  }
  const std::size_t margin = 3 * static_cast<std::size_t>(s.around.left.width);
  for (std::int32_t i = 0; i < s.scale; ++i, ++s.next_row) {
    const std::uint8_t* left =
        s.around.left.rgb.data() + static_cast<std::size_t>(s.next_row) * margin;
    std::copy(left, left + margin, s.row.rgb.begin());
    s.write(s.row);
  }
}

Status PngWriter::finish() {
  State& s = *state_;
  if (s.has_legend) {
    RgbImage legend = blank(s.row.width, kLegendHeight * s.around.scale);
    draw_legend(legend, s.around.scale);
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
