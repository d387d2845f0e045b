// The colours of a mask, the same in every kind of picture (viewer/mask_viewer.css has them too).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace fdma::maskc {

/// Red, green, blue.
using Colour = std::array<std::uint8_t, 3>;

inline constexpr Colour kEmptyColour{244, 244, 240};
inline constexpr Colour kFullColour{24, 78, 119};
inline constexpr Colour kPartialLow{255, 236, 204};  ///< share 0: a masked cell of a partial tile
inline constexpr Colour kPartialHigh{214, 96, 14};   ///< share 1: a live cell of a partial tile
inline constexpr Colour kInk{40, 40, 40};
inline constexpr Colour kPaper{255, 255, 255};

/// The colour of a partial area in which the share `share` of the cells is live.
inline Colour partial_colour(float share) {
  Colour colour{};
  for (std::size_t i = 0; i < 3; ++i) {
    const float low = kPartialLow[i];
    const float high = kPartialHigh[i];
    colour[i] =
        static_cast<std::uint8_t>(std::lround(low + (high - low) * std::clamp(share, 0.0F, 1.0F)));
  }
  return colour;
}

}  // namespace fdma::maskc
