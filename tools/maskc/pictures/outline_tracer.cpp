#include "pictures/outline_tracer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace fdma::maskc {

OutlineTracer::OutlineTracer(int num_shades, std::int64_t max_corners)
    : max_corners_(max_corners),
      open_(static_cast<std::size_t>(num_shades)),
      paths_(static_cast<std::size_t>(num_shades)) {}

bool OutlineTracer::add_strip(std::int64_t begin, std::int64_t end,
                              std::span<const ShadedSpan> spans) {
  for (std::size_t shade = 0; shade < open_.size(); ++shade) {
    std::vector<Outline> previous = std::move(open_[shade]);
    std::vector<Outline>& current = open_[shade];
    current.clear();
    std::size_t next = 0;
    for (const ShadedSpan& span : spans) {
      if (span.shade != static_cast<int>(shade)) continue;
      while (next < previous.size() && previous[next].right.back().x < span.begin) {
        close(span.shade, previous[next++]);
      }
      if (next < previous.size() && previous[next].left.back().x <= span.end) {
        Outline& outline = current.emplace_back(std::move(previous[next++]));
        if (outline.left.back().x != span.begin) {
          outline.left.push_back({span.begin, begin});
          num_corners_ += 2;
        }
        if (outline.right.back().x != span.end) {
          outline.right.push_back({span.end, begin});
          num_corners_ += 2;
        }
      } else {
        current.push_back({{{span.begin, begin}}, {{span.end, begin}}});
        num_corners_ += 4;
        ++num_outlines_;
      }
    }
    while (next < previous.size()) close(static_cast<int>(shade), previous[next++]);
  }
  bottom_ = end;
  return num_corners_ <= max_corners_;
}

void OutlineTracer::close(int shade, const Outline& outline) {
  auto out = std::back_inserter(paths_[static_cast<std::size_t>(shade)]);
  const std::vector<Corner>& left = outline.left;
  const std::vector<Corner>& right = outline.right;
  // The outline goes across the top, down the right side, across the bottom, up the left side.
  fmt::format_to(out, "M{} {}h{}", left.front().x, left.front().y,
                 right.front().x - left.front().x);
  for (std::size_t i = 1; i < right.size(); ++i) {
    fmt::format_to(out, "v{}h{}", right[i].y - right[i - 1].y, right[i].x - right[i - 1].x);
  }
  fmt::format_to(out, "v{}h{}", bottom_ - right.back().y, left.back().x - right.back().x);
  std::int64_t y = bottom_;
  for (std::size_t i = left.size(); i-- > 1;) {
    fmt::format_to(out, "v{}h{}", left[i].y - y, left[i - 1].x - left[i].x);
    y = left[i].y;
  }
  fmt::format_to(out, "v{}z", left.front().y - y);
}

std::vector<std::string> OutlineTracer::finish() {
  for (std::size_t shade = 0; shade < open_.size(); ++shade) {
    for (const Outline& outline : open_[shade]) close(static_cast<int>(shade), outline);
    open_[shade].clear();
  }
  return std::move(paths_);
}

}  // namespace fdma::maskc
