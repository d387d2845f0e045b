// The accumulation order of deterministic calls of closed-form backward plans: the rank of a key
// tile at a query tile. Host and device share the code.
//
// Key tiles that some query sees are numbered from the last to the first, and blocks take them in
// this order. A key tile visits one interval of query tiles. The begin of the interval never grows
// with the number. Its end does not grow either, separately among far tiles and among near ones,
// whose first key lies in the prefix or the sink. Near tiles have the highest numbers. The tiles
// that visit a query tile are therefore an interval of the far numbers and one of the near numbers,
// and the rank of number n is n plus an offset that depends on the query tile only.
//
// A number waits only for lower ones, which were taken before. Among all numbers in progress the
// lowest one therefore waits for nobody.
//
// Example     causal with a sink, 4 tiles: tile 3 has number 0 and queries [3, 4), .. tile 0 (near)
//             has number 3 and [0, 4). Query tile 2 is visited by numbers 1, 2 and 3: ranks 0, 1, 2
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// Added to the number of a key tile, an offset gives its rank at a query tile that it visits.
struct alignas(8) DqSemaphoreOffsets {
  std::int32_t far;
  std::int32_t near;
};

/// The query tiles [first, end) that a key tile visits.
struct DqOrderRun {
  std::int32_t first;
  std::int32_t end;
};

/// The first index of [begin, end) for which `is_after` holds; it holds for all later ones.
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

/// The offsets of query tile `tile`. run(n) are the query tiles of number n. Far numbers are
/// below `num_far`, near ones from there up to `num_tiles`.
template <class TileRunOf>
FDMA_HOST_DEVICE DqSemaphoreOffsets dq_semaphore_offsets(const TileRunOf& tile_run,
                                                         std::int32_t num_far,
                                                         std::int32_t num_tiles,
                                                         std::int32_t tile) {
  const auto begins = [&](std::int32_t n) { return tile_run(n).first <= tile; };
  const auto has_ended = [&](std::int32_t n) { return tile_run(n).end <= tile; };
  const std::int32_t far_begin = first_after(0, num_far, begins);
  const std::int32_t far_end = first_after(far_begin, num_far, has_ended);
  const std::int32_t near_begin = first_after(num_far, num_tiles, begins);
  return {-far_begin, far_end - far_begin - near_begin};
}

}  // namespace fdma
