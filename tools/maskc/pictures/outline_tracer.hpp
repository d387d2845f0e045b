// Outlines of coloured areas that come strip by strip.
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
/// Method. A span that touches one of the same shade in the strip above continues that area's
/// outline; the outline is kept as two chains of corners, its left and its right side, to which a
/// strip adds only where the side moves. So a block of any height is four corners, a staircase
/// (causal masks, windows) is one outline, and the text grows with the corners of the picture. An
/// area that splits goes on in one of its parts; the others start outlines of their own.
///
/// Example     OutlineTracer tracer(1, 1000); tracer.add_strip(0, 2, spans {[0, 2)});
///             tracer.add_strip(2, 4, spans {[0, 4)}); tracer.finish() is
///             {"M0 0h2v2h2v2h-4v-4z"}
/// Cost        O(spans); memory O(corners), at most `max_corners` of them
class OutlineTracer {
 public:
  OutlineTracer(int num_shades, std::int64_t max_corners);

  /// The strip of rows [begin, end) under the last one; spans ascend and are disjoint. False, and
  /// nothing more is taken, if there are more corners than allowed.
  bool add_strip(std::int64_t begin, std::int64_t end, std::span<const ShadedSpan> spans);

  /// Path data by shade; empty where there is no such area.
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
