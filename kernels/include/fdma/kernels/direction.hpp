// Direction: forward or backward.
#pragma once

#include <cstdint>
#include <string_view>

#include "fdma/base/result.hpp"

namespace fdma {

/// Which of the two passes of attention.
enum class Direction : std::uint8_t { forward, backward };
std::string_view to_string(Direction direction);
/// invalid_argument unless "forward" or "backward".
Result<Direction> parse_direction(std::string_view name);

}  // namespace fdma
