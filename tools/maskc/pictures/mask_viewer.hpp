// A mask as an HTML page that zooms and pans.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/outcome.hpp"
#include "fdma/formats/segment_mask.hpp"

namespace fdma::maskc {

/// The most bytes of arrays that a page may hold. Base64 adds a third to them.
inline constexpr std::int64_t kMaxViewerBytes = std::int64_t{64} << 20;

/// Facts about a mask as names and values, listed beside it.
using ViewerFacts = std::vector<std::pair<std::string, std::string>>;

struct ViewerWords {
  std::string title;
  std::string description;  ///< for readers who cannot see the picture
  ViewerFacts facts;
};

/// The masks of all batch elements and heads, of which a reader of the page chooses one.
struct ViewerChoice {
  /// One of the distinct masks.
  struct Group {
    SegmentMask mask;
    ViewerFacts facts;
  };
  std::int64_t num_batches = 1;
  std::int64_t num_heads = 1;
  std::pair<std::int64_t, std::int64_t> chosen{0, 0};  ///< batch element and head shown first
  std::vector<std::int32_t> group_of_pair;             ///< heads fastest
  std::vector<Group> groups;
};
/// The most (batch, head) pairs that a page lets choose from.
inline constexpr std::int64_t kMaxViewerPairs = std::int64_t{1} << 16;

/// Bytes of the arrays in the page, before base64: 20 B a run, 24 B a segment, the bitmaps, 4 B an
/// offset, 8 B an interval, 16 B a pattern, 8 B a tile of one.
std::int64_t viewer_array_bytes(const SegmentMask& mask);

/// One HTML document that holds everything it needs: the arrays of the mask, style and script
/// (viewer/mask_viewer.js says what it shows). The page makes no network request and forbids itself
/// any. The mask has at least one cell.
///
/// With `choice`, fields for batch element and head show any of its masks.
///
/// Errors      unsupported: the arrays exceed kMaxViewerBytes
/// Cost        O(arrays), independent of the lengths
Outcome<std::string> viewer_page(const SegmentMask& mask, const ViewerWords& words,
                                 const ViewerChoice* choice = nullptr);

}  // namespace fdma::maskc
