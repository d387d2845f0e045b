// Pictures of a mask as files: PNG, SVG or an HTML page, chosen by the suffix of the file name.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "cli/json_output.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma::maskc {

enum class PictureKind : std::uint8_t { png, svg, html };
std::string_view to_string(PictureKind kind);

/// The kind that the suffix of `path` names, in upper or lower case. Failure: usage.
Outcome<PictureKind> picture_kind(const std::string& path);

/// The subject of a picture: one (batch, head) pair of a mask.
struct PictureSubject {
  const SegmentMask& segments;
  const BlockMask& mask;  ///< after any crop; the picture states its origin and specification
  std::string label;
  std::pair<std::int64_t, std::int64_t> pair;       ///< in the numbering of the user
  std::pair<std::int64_t, std::int64_t> num_pairs;  ///< batch elements and heads of the whole mask
};

struct PictureOptions {
  std::int32_t size = 1024;
  bool has_legend = false;
  bool has_axes = false;
  std::string title;  ///< a line above the picture; of a page, its heading
  bool quiet = false;
};

/// A report on the written picture: members of the JSON document, and the same in words.
struct PictureReport {
  Json members;
  std::string summary;
};

/// Writes the picture to `path`. Failures: file; unsupported for a mask without cells or a mask
/// that is too large for a page.
Outcome<PictureReport> write_picture(PictureKind kind, const std::string& path,
                                     const PictureSubject& subject, const PictureOptions& options);

}  // namespace fdma::maskc
