// A mask as an SVG drawing.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/formats/segment_mask.hpp"
#include "pictures/picture_frame.hpp"

namespace fdma::maskc {

class Progress;

/// What one square of a drawing stands for.
enum class PictureDetail : std::uint8_t { cells, tiles, areas };
std::string_view to_string(PictureDetail detail);

struct SvgOptions {
  std::int32_t size = 1024;  ///< longest side of the mask, in pixels
  PictureFrame frame;
  std::string title;
  std::string description;  ///< a sentence on the level of detail follows it
};

/// The most corners of outlines that a drawing may have. Beyond them coarser squares are drawn.
inline constexpr std::int64_t kMaxCorners = std::int64_t{1} << 17;
/// The most cells of a mask that is drawn cell by cell (512 x 512).
inline constexpr std::int64_t kMaxCellsDrawn = std::int64_t{1} << 18;

struct SvgPicture {
  std::string text;
  std::int32_t width = 0;  ///< pixels, legend included
  std::int32_t height = 0;
  PictureDetail detail = PictureDetail::tiles;
  std::int64_t cells_per_square_q = 1;
  std::int64_t cells_per_square_kv = 1;
  std::int64_t num_outlines = 0;
};

/// A stand-alone SVG document with title and description. It has the finest of three levels of
/// detail that keeps within kMaxCorners: cells (masks up to kMaxCellsDrawn), classes of tiles, or
/// areas of whole tiles. The mask has at least one cell.
///
/// Invariants  an area is full (empty) iff all its cells are true (false), else partial, in eight
///             shades by its share of live cells; one path element per colour
/// Cost        O(tile rows * segments) for cells and tiles; the cost of rasterize() for areas. The text
///             has at most about 2 MiB and a bounded number of elements
SvgPicture draw_svg(const SegmentMask& mask, const SvgOptions& options, Progress& progress);

/// `text` as character data of XML and HTML: no markup, no character that XML forbids, UTF-8.
std::string markup_text(const std::string& text);

}  // namespace fdma::maskc
