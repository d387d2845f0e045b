// One entry per form of every named mask, with random tables fitted to a shape.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "table_set.hpp"

namespace fdma::differential {

/// The same numbers on every platform (SplitMix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    if (high <= low) return low;
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::uint64_t state_;
};

/// A mask of one form for a shape.
struct NamedCase {
  std::string label;
  /// The text; adds the tables that it mentions. Empty: the form does not exist for this shape.
  std::function<std::string(Random&, const MaskShape&, reference::TableSet&)> make;
};

/// At least one case per form of mask_names.hpp but topk, and combinations that models use.
const std::vector<NamedCase>& named_cases();

}  // namespace fdma::differential
