// Draws the mask in an inner svg element whose units are cells. Numbers are then whole and corners
// exact; the viewer stretches the element to the picture. The legend is outside it, in pixels.
#include "pictures/mask_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/json_output.hpp"
#include "cli/progress.hpp"
#include "fdma/formats/mask_image.hpp"
#include "pictures/axis_ticks.hpp"
#include "pictures/outline_tracer.hpp"
#include "pictures/picture_colours.hpp"

namespace fdma::maskc {
namespace {

constexpr int kFullShade = 0;
constexpr int kPartialShade = 1;
constexpr int kNumAreaShades = 8;
constexpr std::int32_t kMinSide = 16;
constexpr std::int32_t kLegendHeight = 28;
constexpr std::int32_t kLineHeight = 18;
constexpr std::int32_t kTick = 4;
constexpr std::int32_t kSwatch = 14;

struct LegendEntry {
  std::vector<Colour> colours;
  std::string_view words;
};

// The path data of each colour, and the facts that the picture states beside them.
struct Layers {
  std::vector<std::pair<Colour, std::string>> paths;
  std::vector<LegendEntry> legend;
  std::string note;
  PictureDetail detail;
  std::int64_t square_q;
  std::int64_t square_kv;
  std::int64_t num_outlines = 0;

  void take(OutlineTracer& tracer, const std::vector<Colour>& colours) {
    num_outlines += tracer.num_outlines();
    std::vector<std::string> drawn = tracer.finish();
    for (std::size_t shade = 0; shade < drawn.size(); ++shade) {
      if (!drawn[shade].empty()) paths.emplace_back(colours[shade], std::move(drawn[shade]));
    }
  }
};

std::string hex(const Colour& colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour[0], colour[1], colour[2]);
}

void append_span(std::vector<ShadedSpan>& spans, std::int64_t begin, std::int64_t end, int shade) {
  if (!spans.empty() && spans.back().end == begin && spans.back().shade == shade) {
    spans.back().end = end;
  } else {
    spans.push_back({begin, end, shade});
  }
}

// Traces the classes of tiles; false if they have too many corners. Patterns are written out row by
// row, and no farther than the corners fit.
bool trace_tiles(const SegmentMask& mask, OutlineTracer& tracer) {
  std::vector<ShadedSpan> spans;
  for (std::int32_t row = 0; row < mask.num_tile_rows(); ++row) {
    spans.clear();
    for (const TileSegment& segment : segments_of_row(mask, row)) {
      append_span(spans, std::int64_t{segment.first_tile} * mask.block.block_kv,
                  std::min(std::int64_t{segment.end_tile} * mask.block.block_kv, mask.kv_len),
                  segment.kind == SegmentKind::full ? kFullShade : kPartialShade);
    }
    const std::int64_t begin = std::int64_t{row} * mask.block.block_q;
    if (!tracer.add_strip(begin, std::min(begin + mask.block.block_q, mask.q_len), spans)) {
      return false;
    }
  }
  return true;
}

// Traces the live cells of partial tiles; false if they have too many corners.
bool trace_live_cells(const SegmentMask& mask, OutlineTracer& tracer) {
  std::vector<ShadedSpan> spans;
  std::vector<Interval> keys;
  for (std::int32_t row = 0; row < mask.num_tile_rows(); ++row) {
    const std::vector<TileSegment> segments = segments_of_row(mask, row);
    const std::int64_t begin = std::int64_t{row} * mask.block.block_q;
    const std::int64_t end = std::min(begin + mask.block.block_q, mask.q_len);
    for (std::int64_t q = begin; q < end; ++q) {
      spans.clear();
      row_intervals_of(mask, q, keys);
      std::size_t next = 0;
      for (const TileSegment& segment : segments) {
        if (segment.kind == SegmentKind::full) continue;
        const std::int64_t left = std::int64_t{segment.first_tile} * mask.block.block_kv;
        const std::int64_t right = std::int64_t{segment.end_tile} * mask.block.block_kv;
        while (next < keys.size() && keys[next].end <= left) ++next;
        for (std::size_t i = next; i < keys.size() && keys[i].begin < right; ++i) {
          append_span(spans, std::max<std::int64_t>(keys[i].begin, left),
                      std::min<std::int64_t>(keys[i].end, right), 0);
        }
      }
      if (!tracer.add_strip(q, q + 1, spans)) return false;
    }
  }
  return true;
}

std::optional<Layers> cell_layers(const SegmentMask& mask) {
  if (mask.q_len > kMaxCellsDrawn / mask.kv_len) return {};
  OutlineTracer tiles(2, kMaxCorners / 2);
  OutlineTracer cells(1, kMaxCorners / 2);
  if (!trace_tiles(mask, tiles) || !trace_live_cells(mask, cells)) return {};
  Layers layers{{},
                {{{kFullColour}, "full tile"},
                 {{kPartialHigh}, "partial tile: live cell"},
                 {{kPartialLow}, "partial tile: masked cell"},
                 {{kEmptyColour}, "empty tile"}},
                "Drawn cell by cell.",
                PictureDetail::cells,
                1,
                1};
  layers.take(tiles, {kFullColour, kPartialLow});
  layers.take(cells, {kPartialHigh});
  return layers;
}

std::optional<Layers> tile_layers(const SegmentMask& mask) {
  OutlineTracer tiles(2, kMaxCorners);
  if (!trace_tiles(mask, tiles)) return {};
  const Colour partial = partial_colour(0.5F);
  Layers layers{
      {},
      {{{kFullColour}, "full tile"}, {{partial}, "partial tile"}, {{kEmptyColour}, "empty tile"}},
      "Drawn tile by tile: every tile has the colour of its class.",
      PictureDetail::tiles,
      mask.block.block_q,
      mask.block.block_kv};
  layers.take(tiles, {kFullColour, partial});
  return layers;
}

// Areas of at least two tiles a side, as fine as the limit on corners allows. 64 x 64 areas always
// keep within the limit.
Layers area_layers(const SegmentMask& mask, Progress& progress) {
  std::vector<Colour> colours{kFullColour};
  for (int i = 0; i < kNumAreaShades; ++i) {
    colours.push_back(
        partial_colour((static_cast<float>(i) + 0.5F) / static_cast<float>(kNumAreaShades)));
  }
  const std::int32_t longest = std::max(mask.num_tile_rows(), mask.num_tile_cols());
  for (std::int32_t side = std::clamp(longest / 2, 64, 1024);; side /= 2) {
    const MaskImage image = rasterize(
        mask, side, [&](std::int64_t done, std::int64_t total) { progress.update(done, total); });
    OutlineTracer tracer(static_cast<int>(colours.size()), kMaxCorners);
    std::vector<ShadedSpan> spans;
    bool fits = true;
    for (std::int32_t y = 0; fits && y < image.height; ++y) {
      spans.clear();
      for (std::int32_t x = 0; x < image.width; ++x) {
        const std::size_t at = static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) +
                               static_cast<std::size_t>(x);
        if (image.kinds[at] == PixelKind::empty) continue;
        const int step = std::min(static_cast<int>(image.densities[at] * float{kNumAreaShades}),
                                  kNumAreaShades - 1);
        append_span(spans, x * image.cells_per_pixel_kv,
                    std::min((x + 1) * image.cells_per_pixel_kv, mask.kv_len),
                    image.kinds[at] == PixelKind::full ? kFullShade : 1 + step);
      }
      fits = tracer.add_strip(y * image.cells_per_pixel_q,
                              std::min((y + 1) * image.cells_per_pixel_q, mask.q_len), spans);
    }
    if (!fits) continue;
    Layers layers{
        {},
        {{{kFullColour}, "full area"},
         {{colours.begin() + 1, colours.end()}, "partial or mixed, by share of live cells"},
         {{kEmptyColour}, "empty area"}},
        fmt::format("Drawn in areas of {} rows by {} keys: an area is full or empty if all its "
                    "cells are true or false; one that holds both is partial, in eight shades by "
                    "its share of live cells.",
                    image.cells_per_pixel_q, image.cells_per_pixel_kv),
        PictureDetail::areas,
        image.cells_per_pixel_q,
        image.cells_per_pixel_kv};
    layers.take(tracer, colours);
    return layers;
  }
}

// An upper estimate of the width of a line of 12 pixel letters.
std::int32_t words_width(std::string_view words) {
  return static_cast<std::int32_t>(words.size()) * 15 / 2;
}

std::int32_t legend_width(const std::vector<LegendEntry>& legend) {
  std::int32_t width = 4;
  for (const LegendEntry& entry : legend) {
    width += static_cast<std::int32_t>(entry.colours.size()) * kSwatch + 6 +
             words_width(entry.words) + 14;
  }
  return width;
}

std::string legend_elements(const std::vector<LegendEntry>& legend, std::int32_t top) {
  std::string out =
      fmt::format("<g font-family=\"sans-serif\" font-size=\"12\" fill=\"{}\">\n", hex(kInk));
  std::int32_t x = 4;
  for (const LegendEntry& entry : legend) {
    for (const Colour& colour : entry.colours) {
      out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>", x,
                         top + 7, kSwatch, kSwatch, hex(colour));
      x += kSwatch;
    }
    out += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", x + 6, top + 18, entry.words);
    x += 6 + words_width(entry.words) + 14;
  }
  return out + "</g>\n";
}

// The title and the numbers of both axes.
std::string frame_elements(const PictureFrame& frame, std::int32_t left, std::int32_t top,
                           std::int32_t width, std::int32_t height) {
  if (frame.title.empty() && !frame.has_axes) return {};
  std::string out =
      fmt::format("<g font-family=\"sans-serif\" font-size=\"12\" fill=\"{}\">\n", hex(kInk));
  if (!frame.title.empty()) {
    out += fmt::format("<text x=\"4\" y=\"13\">{}</text>\n", markup_text(frame.title));
  }
  if (frame.has_axes) {
    const std::int64_t num_keys = frame.keys.end - frame.keys.begin;
    const std::int64_t num_rows = frame.rows.end - frame.rows.begin;
    const std::int32_t room = words_width(fmt::format("{}", frame.keys.end)) + 12;
    for (const std::int64_t tick : axis_ticks(num_keys, width / room)) {
      const std::int64_t x = left + tick * width / num_keys;
      out += fmt::format(
          "<rect x=\"{0}\" y=\"{1}\" width=\"1\" height=\"{2}\"/><text x=\"{0}\" y=\"{3}\">{4}"
          "</text>\n",
          x, top - kTick, kTick, top - kTick - 3, frame.keys.begin + tick);
    }
    for (const std::int64_t tick : axis_ticks(num_rows, height / (2 * kLineHeight))) {
      const std::int64_t y = top + tick * height / num_rows;
      out += fmt::format(
          "<rect x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"1\"/><text x=\"{3}\" y=\"{4}\" "
          "text-anchor=\"end\">{5}</text>\n",
          left - kTick, y, kTick, left - kTick - 2, y + 9, frame.rows.begin + tick);
    }
  }
  return out + "</g>\n";
}

}  // namespace

std::string_view to_string(PictureDetail detail) {
  switch (detail) {
    case PictureDetail::cells:
      return "cells";
    case PictureDetail::tiles:
      return "tiles";
    case PictureDetail::areas:
      return "areas";
  }
  return "";
}

SvgPicture draw_svg(const SegmentMask& mask, const SvgOptions& options, Progress& progress) {
  std::optional<Layers> drawn = cell_layers(mask);
  if (!drawn) drawn = tile_layers(mask);
  if (!drawn) drawn = area_layers(mask, progress);
  const Layers& layers = *drawn;

  const double scale =
      static_cast<double>(options.size) / static_cast<double>(std::max(mask.q_len, mask.kv_len));
  const auto side = [&](std::int64_t length) {
    return std::max(kMinSide,
                    static_cast<std::int32_t>(std::lround(scale * static_cast<double>(length))));
  };
  const std::int32_t mask_width = side(mask.kv_len);
  const std::int32_t mask_height = side(mask.q_len);
  SvgPicture picture;
  const PictureFrame& frame = options.frame;
  const std::int32_t left =
      frame.has_axes ? words_width(fmt::format("{}", frame.rows.end)) + 2 * kTick : 0;
  const std::int32_t top =
      (frame.title.empty() ? 0 : kLineHeight) + (frame.has_axes ? kLineHeight + kTick : 0);
  picture.width = left + mask_width;
  if (frame.has_legend) picture.width = std::max(picture.width, legend_width(layers.legend));
  if (!frame.title.empty()) picture.width = std::max(picture.width, words_width(frame.title) + 8);
  picture.height = top + mask_height + (frame.has_legend ? kLegendHeight : 0);
  picture.detail = layers.detail;
  picture.cells_per_square_q = layers.square_q;
  picture.cells_per_square_kv = layers.square_kv;
  picture.num_outlines = layers.num_outlines;

  std::string& text = picture.text;
  text = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" role=\"img\" aria-labelledby=\"title desc\">\n"
      "<title id=\"title\">{2}</title>\n<desc id=\"desc\">{3} {4}</desc>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"{5}\"/>\n"
      "<svg{11} width=\"{6}\" height=\"{7}\" viewBox=\"0 0 {8} {9}\" preserveAspectRatio=\"none\" "
      "shape-rendering=\"crispEdges\">\n"
      "<rect width=\"{8}\" height=\"{9}\" fill=\"{10}\"/>\n",
      picture.width, picture.height, markup_text(options.title), markup_text(options.description),
      layers.note, hex(kPaper), mask_width, mask_height, mask.kv_len, mask.q_len, hex(kEmptyColour),
      left + top > 0 ? fmt::format(" x=\"{}\" y=\"{}\"", left, top) : "");
  for (const auto& [colour, path] : layers.paths) {
    text += fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", hex(colour), path);
  }
  text += "</svg>\n";
  text += frame_elements(frame, left, top, mask_width, mask_height);
  if (frame.has_legend) text += legend_elements(layers.legend, top + mask_height);
  text += "</svg>\n";
  return picture;
}

std::string markup_text(const std::string& text) {
  // The JSON library replaces bytes that are not UTF-8.
  const std::string valid =
      Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace))
          .get<std::string>();
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  std::string out;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const char c = valid[i];
    const std::string_view rest = std::string_view(valid).substr(i, 3);
    if (rest == "\xef\xbf\xbe" || rest == "\xef\xbf\xbf") {  // U+FFFE, U+FFFF
      out += kReplacement;
      i += 2;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n') {
      out += kReplacement;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace fdma::maskc
