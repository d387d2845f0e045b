// Drawings of a mask as text and as shades of pixels, and the length of its longest row.
#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arrays/python_error.hpp"
#include "bindings.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/draw.hpp"
#include "fdma/formats/mask_image.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Shades = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>>;

constexpr std::int64_t kMaxSide = 16384;
constexpr std::int64_t kMaxCharacters = 1024;

void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw PythonError({ErrorCode::invalid_argument,
                       fmt::format("{}: expected {} to {}, got {}", name, low, high, value)});
  }
}

std::int32_t group_of(const BlockMask& mask, std::int64_t batch, std::int64_t head) {
  check_range("batch", batch, 0, mask.shape.num_batches - 1);
  check_range("head", head, 0, mask.shape.num_heads - 1);
  return mask.group(batch, head);
}

std::string draw_text(const BlockMask& mask, std::int64_t batch, std::int64_t head,
                      std::int64_t max_width, std::int64_t max_height, bool unicode) {
  const std::int32_t group = group_of(mask, batch, head);
  check_range("max_width", max_width, 1, kMaxCharacters);
  check_range("max_height", max_height, 1, kMaxCharacters);
  const nb::gil_scoped_release released;
  return draw(mask, group, {static_cast<int>(max_width), static_cast<int>(max_height), unicode});
}

// The shade of each pixel. 0 is empty and 255 is full. A partial pixel has 1 to 254, in proportion
// to its share of live cells.
std::vector<std::uint8_t> shades_of(const MaskImage& image) {
  constexpr float kSteps = 253;
  std::vector<std::uint8_t> shades(image.kinds.size());
  for (std::size_t i = 0; i < shades.size(); ++i) {
    switch (image.kinds[i]) {
      case PixelKind::empty:
        shades[i] = 0;
        break;
      case PixelKind::full:
        shades[i] = 255;
        break;
      case PixelKind::partial:
        shades[i] = static_cast<std::uint8_t>(
            1 + std::lround(kSteps * std::clamp(image.densities[i], 0.0F, 1.0F)));
        break;
    }
  }
  return shades;
}

std::pair<Shades, std::pair<std::int64_t, std::int64_t>> picture(const BlockMask& mask,
                                                                 std::int64_t batch,
                                                                 std::int64_t head,
                                                                 std::int64_t max_side) {
  const std::int32_t group = group_of(mask, batch, head);
  check_range("max_side", max_side, 1, kMaxSide);
  MaskImage image;
  std::vector<std::uint8_t> shades;
  {
    const nb::gil_scoped_release released;
    image =
        rasterize(segment_of_group(mask, group, mask.block), static_cast<std::int32_t>(max_side));
    shades = shades_of(image);
  }
  auto* const held = new std::vector<std::uint8_t>(std::move(shades));
  const nb::capsule owner(
      held, [](void* memory) noexcept { delete static_cast<std::vector<std::uint8_t>*>(memory); });
  const std::size_t extents[] = {static_cast<std::size_t>(image.height),
                                 static_cast<std::size_t>(image.width)};
  return {Shades(held->data(), 2, extents, owner),
          {image.cells_per_pixel_q, image.cells_per_pixel_kv}};
}

std::int64_t longest_row(const BlockMask& mask) {
  const nb::gil_scoped_release released;
  std::int64_t longest = 0;
  std::vector<Interval> keys;
  for (std::int64_t group = 0; group < mask.num_groups(); ++group) {
    const SegmentMask segments = segment_of_group(mask, group, mask.block);
    for (std::int64_t q = 0; q < segments.q_len; ++q) {
      row_intervals_of(segments, q, keys);
      std::int64_t row = 0;
      for (const Interval& interval : keys) row += interval.end - interval.begin;
      longest = std::max(longest, row);
    }
  }
  return longest;
}

}  // namespace

void bind_drawing(nb::module_& module) {
  module.def("draw", &draw_text, nb::arg("mask"), nb::kw_only(), nb::arg("batch") = 0,
             nb::arg("head") = 0, nb::arg("max_width") = 80, nb::arg("max_height") = 40,
             nb::arg("unicode") = true,
             "Draws one (batch element, head) pair as text.\n\n"
             "A character stands for a tile or a rectangle of tiles. The last line is a\n"
             "legend. max_width and max_height count characters.");
  module.def("picture", &picture, nb::arg("mask"), nb::kw_only(), nb::arg("batch") = 0,
             nb::arg("head") = 0, nb::arg("max_side") = 512,
             nb::sig("def picture(mask: BlockMask, *, batch: int = 0, head: int = 0, max_side: int "
                     "= 512) -> tuple[NDArray[numpy.uint8], tuple[int, int]]"),
             "Draws one (batch element, head) pair in at most max_side x max_side pixels.\n\n"
             "Returns the shades, uint8 [rows, columns], and the (queries, keys) of a\n"
             "pixel. A shade is 0 for an empty pixel, 255 for a full one and otherwise 1\n"
             "to 254, by the share of live cells.");
  module.def("longest_row", &longest_row, nb::arg("mask"),
             "Returns the largest number of keys that a query sees.\n\n"
             "The cost is linear in the intervals of all query rows of the distinct (batch\n"
             "element, head) pairs.");
}

}  // namespace fdma::python
