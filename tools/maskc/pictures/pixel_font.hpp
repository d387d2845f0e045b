// Letters for PNG pictures: five columns of seven pixels for each printable ASCII character.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace fdma::maskc {

inline constexpr std::int32_t kLetterPitch = 6;  ///< columns from letter to letter
inline constexpr std::int32_t kLetterHeight = 7;

/// The width of a text, in pixels of scale 1.
std::int32_t text_width(std::string_view text);

/// Calls `put(x, y)` for every dark pixel of the text, from (0, 0) on at scale 1. Other characters
/// than printable ASCII are drawn as '?'.
void draw_text(std::string_view text,
               const std::function<void(std::int32_t x, std::int32_t y)>& put);

}  // namespace fdma::maskc
