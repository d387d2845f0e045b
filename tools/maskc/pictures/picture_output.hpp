// Pictures of a mask as files: PNG, SVG or a web page, chosen by the file's name.
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

/// By the suffix of `path`, in letters of either case. Failure: usage.
Outcome<PictureKind> picture_kind(const std::string& path);

/// What is drawn: one (batch, head) pair of a mask.
struct PictureSubject {
  const SegmentMask& segments;
  const BlockMask& mask;  ///< after any crop: its origin and specification are told
  std::string label;
  std::pair<std::int64_t, std::int64_t> pair;       ///< as the user counts them
  std::pair<std::int64_t, std::int64_t> num_pairs;  ///< batch elements and heads of the whole mask
};

struct PictureOptions {
  std::int32_t size = 1024;
  bool has_legend = false;
  bool quiet = false;
};

/// What was written: members of the JSON document, and the same in words.
struct PictureReport {
  Json members;
  std::string summary;
};

/// Writes the picture to `path`. Failures: file; unsupported for a mask without cells or too large
/// for a page.
Outcome<PictureReport> write_picture(PictureKind kind, const std::string& path,
                                     const PictureSubject& subject, const PictureOptions& options);

}  // namespace fdma::maskc
