// The places along an axis that a picture labels.
#pragma once

#include <cstdint>
#include <vector>

namespace fdma::maskc {

/// 0 and multiples of a round step below `length`, at most `most` of them. The step is 1, 2 or 5
/// times a power of ten, or a power of two from 16 on where `length` is a multiple of 16.
///
/// Example     8192, at most 9: 0, 1024, 2048, ..; 100, at most 6: 0, 20, 40, 60, 80
std::vector<std::int64_t> axis_ticks(std::int64_t length, std::int64_t most);

}  // namespace fdma::maskc
