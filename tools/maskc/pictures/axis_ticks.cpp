#include "pictures/axis_ticks.hpp"

#include <algorithm>

namespace fdma::maskc {
namespace {

std::int64_t decimal_step(std::int64_t least) {
  for (std::int64_t power = 1;; power *= 10) {
    for (const std::int64_t factor : {1, 2, 5}) {
      if (power * factor >= least) return power * factor;
    }
  }
}

std::int64_t binary_step(std::int64_t least) {
  std::int64_t step = 1;
  while (step < least) step *= 2;
  return step;
}

}  // namespace

std::vector<std::int64_t> axis_ticks(std::int64_t length, std::int64_t most) {
  const std::int64_t least =
      std::max<std::int64_t>(1, (length + most - 1) / std::max<std::int64_t>(1, most));
  constexpr std::int64_t kBinaryLengths = 16;
  const bool is_binary = length % kBinaryLengths == 0;
  const std::int64_t step = is_binary ? binary_step(least) : decimal_step(least);
  std::vector<std::int64_t> ticks;
  for (std::int64_t at = 0; at < length; at += step) ticks.push_back(at);
  return ticks;
}

}  // namespace fdma::maskc
