// Traces the outlines of coloured areas that arrive strip by strip. mask_svg.cpp draws with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fdma::maskc {

/// Columns [begin, end) of one strip, in one shade.
struct ShadedSpan {
  std::int64_t begin;
  std::int64_t end;
  int shade;
};

/// Joins the spans of consecutive strips into outlines, as path data of SVG.
///
/// Method. A span that touches a span of the same shade in the strip above continues the outline of
/// that area. The outline is kept as two chains of corners, its left side and its right side; a
/// strip adds corners only where a side moves. A block of any height thus has four corners, and a
/// staircase (causal masks, windows) is one outline. The text grows with the corners of the
/// picture. If an area splits, one of its parts continues the outline; the other parts start
/// outlines of their own.
///
/// Example     OutlineTracer tracer(1, 1000); tracer.add_strip(0, 2, spans {[0, 2)});
///             tracer.add_strip(2, 4, spans {[0, 4)}); tracer.finish() is
///             {"M0 0h2v2h2v2h-4v-4z"}
/// Cost        O(spans); memory O(corners), at most `max_corners` of them
class OutlineTracer {
 public:
  OutlineTracer(int num_shades, std::int64_t max_corners);

  /// Adds the strip of rows [begin, end) below the last one. Spans ascend and are disjoint. Returns
  /// false, and takes no more, if there are more corners than allowed.
  bool add_strip(std::int64_t begin, std::int64_t end, std::span<const ShadedSpan> spans);

  /// The path data of each shade; empty for a shade without an area.
  std::vector<std::string> finish();

  std::int64_t num_outlines() const { return num_outlines_; }

 private:
  struct Corner {
    std::int64_t x;
    std::int64_t y;  ///< from this row on the side is at x
  };
  struct Outline {
    std::vector<Corner> left;
    std::vector<Corner> right;
  };

  void close(int shade, const Outline& outline);

  std::int64_t max_corners_;
  std::int64_t num_corners_ = 0;
  std::int64_t num_outlines_ = 0;
  std::int64_t bottom_ = 0;
  std::vector<std::vector<Outline>> open_;  // by shade, ascending
  std::vector<std::string> paths_;
};

}  // namespace fdma::maskc
