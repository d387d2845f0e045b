// The turns of deterministic calls of parametric backward plans: which key tile adds to a query
// tile before which. The same code on host and device.
//
// Key tiles that some query sees are numbered from the last to the first, and blocks take them in
// this order. A key tile has one stretch of query tiles. Where stretches begin never grows with the
// number. Where they end does not either, among far tiles, and among near ones, whose first key
// lies in the prefix or the sink; near ones have the highest numbers. So those that visit a query
// tile are an interval of the far numbers and one of the near ones, and how many come before number
// n is n plus something that the query tile knows.
//
// A number waits for lower ones only, which were taken before: of all that are under way the lowest
// waits for nobody.
//
// Example     causal with a sink, 4 tiles: tile 3 has number 0 and queries [3, 4), .. tile 0 (near)
//             has number 3 and [0, 4). Query tile 2 is visited by numbers 1, 2 and 3: turns 0, 1, 2
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// To be added to the number of a key tile: its turn at a query tile that it visits.
struct alignas(8) TurnOffsets {
  std::int32_t far;
  std::int32_t near;
};

/// Query tiles [first, end) that a key tile visits.
struct TurnStretch {
  std::int32_t first;
  std::int32_t end;
};

/// The first of [begin, end) for which `is_after` holds, which then holds for all behind it.
template <class IsAfter>
FDMA_HOST_DEVICE std::int32_t first_after(std::int32_t begin, std::int32_t end,
                                          const IsAfter& is_after) {
  while (begin < end) {
    const std::int32_t middle = begin + (end - begin) / 2;
    if (is_after(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

/// Of query tile `tile`, where stretch(n) is that of number n: of far ones below `num_far`, of near
/// ones from there up to `num_tiles`.
template <class StretchOf>
FDMA_HOST_DEVICE TurnOffsets turn_offsets(const StretchOf& stretch, std::int32_t num_far,
                                          std::int32_t num_tiles, std::int32_t tile) {
  const auto begins = [&](std::int32_t n) { return stretch(n).first <= tile; };
  const auto has_ended = [&](std::int32_t n) { return stretch(n).end <= tile; };
  const std::int32_t far_begin = first_after(0, num_far, begins);
  const std::int32_t far_end = first_after(far_begin, num_far, has_ended);
  const std::int32_t near_begin = first_after(num_far, num_tiles, begins);
  return {-far_begin, far_end - far_begin - near_begin};
}

}  // namespace fdma
