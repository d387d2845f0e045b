// The tile of sm90, for what is planned for its kernels without make_plan.
#pragma once

#include <cstdint>

namespace fdma {

/// Rows of a tile, which belong to one head or to several, and its keys.
inline constexpr std::int32_t kSm90TileRows = 128;
inline constexpr std::int32_t kSm90TileKeys = 128;
/// Multiprocessors of an H100 or H200.
inline constexpr std::int32_t kSm90Workers = 132;

}  // namespace fdma
