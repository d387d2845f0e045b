// Bounds of a vector over aligned groups of 1, 2, 4, .. tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "boxes/axis_vector.hpp"
#include "fdma/base/interval.hpp"

namespace fdma::box {

/// Bounds by level: entry i of level l bounds the positions of tiles [i << l, (i + 1) << l). The
/// top level has one entry.
template <class Value>
class TilePyramid {
 public:
  TilePyramid() = default;
  /// `leaf(begin, end)` bounds positions [begin, end); `join` unites two bounds. If `num_levels` is
  /// 1, only the leaves are kept.
  template <class Leaf, class Join>
  TilePyramid(std::int64_t length, std::int64_t tile, int num_levels, Leaf leaf, Join join) {
    const std::int64_t num_tiles = ceil_div(length, tile);
    levels_.emplace_back();
    for (std::int64_t t = 0; t < num_tiles; ++t) {
      levels_[0].push_back(leaf(t * tile, std::min(length, (t + 1) * tile)));
    }
    while (levels_.back().size() > 1 && static_cast<int>(levels_.size()) < num_levels) {
      const std::vector<Value>& below = levels_.back();
      std::vector<Value> above;
      for (std::size_t i = 0; i < below.size(); i += 2) {
        above.push_back(i + 1 < below.size() ? join(below[i], below[i + 1]) : below[i]);
      }
      levels_.push_back(std::move(above));
    }
  }
  const Value& at(int level, std::int64_t index) const {
    return levels_[static_cast<std::size_t>(level)][static_cast<std::size_t>(index)];
  }

 private:
  std::vector<std::vector<Value>> levels_;
};

inline constexpr int kAllLevels = 64;

inline TilePyramid<NodeRange> make_pyramid(const IntegerVector& vector, std::int64_t tile,
                                           int num_levels) {
  return {vector.length, tile, num_levels,
          [&](std::int64_t begin, std::int64_t end) { return vector.range(begin, end); },
          [](const NodeRange& a, const NodeRange& b) { return unite(a, b); }};
}
inline TilePyramid<Outcomes> make_pyramid(const ConditionVector& vector, std::int64_t tile,
                                          int num_levels) {
  return {vector.length, tile, num_levels,
          [&](std::int64_t begin, std::int64_t end) { return vector.range(begin, end); },
          [](Outcomes a, Outcomes b) { return static_cast<Outcomes>(a | b); }};
}

}  // namespace fdma::box
