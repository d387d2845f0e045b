#include "pictures/picture_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "fdma/formats/convert.hpp"
#include "pictures/mask_svg.hpp"
#include "pictures/mask_viewer.hpp"
#include "pictures/png_image.hpp"

namespace fdma::maskc {
namespace {

struct KindSuffix {
  std::string_view suffix;
  PictureKind kind;
};
constexpr KindSuffix kSuffixes[] = {
    {".png", PictureKind::png}, {".svg", PictureKind::svg}, {".html", PictureKind::html}};

Status write_text(const std::string& path, std::string_view text) {
  const auto failure = [&] {
    return CommandFailure{ExitCode::file,
                          fmt::format("{}: cannot write: {}", path, std::strerror(errno))};
  };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"),
                                                       &std::fclose);
  if (file == nullptr) return failure();
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) return failure();
  if (std::fclose(file.release()) != 0) return failure();
  return Nothing{};
}

// Names and values of what is known of the cells.
ViewerFacts facts_of_cells(const SegmentMask& mask) {
  const TileCounts tiles = count_tiles(mask);
  const std::int64_t total = mask.q_len * mask.kv_len;
  ViewerFacts facts;
  facts.emplace_back("Query rows", count_text(mask.q_len));
  facts.emplace_back("Keys", count_text(mask.kv_len));
  facts.emplace_back("Block", fmt::format("{} x {}", mask.block.block_q, mask.block.block_kv));
  facts.emplace_back("Full tiles", count_text(tiles.full));
  facts.emplace_back("Partial tiles", count_text(tiles.partial));
  facts.emplace_back("Empty tiles", count_text(tiles.empty));
  facts.emplace_back(
      "Allowed pairs",
      fmt::format(
          "{} of {} ({})", count_text(tiles.allowed_pairs), count_text(total),
          percent_text(static_cast<double>(tiles.allowed_pairs), static_cast<double>(total))));
  return facts;
}

// The same with what is known of the mask that the pair belongs to.
ViewerFacts facts_of(const PictureSubject& subject) {
  ViewerFacts facts = facts_of_cells(subject.segments);
  if (subject.num_pairs != std::pair<std::int64_t, std::int64_t>{1, 1}) {
    facts.emplace_back("Batch element", fmt::format("{} of {}", subject.pair.first,
                                                    count_text(subject.num_pairs.first)));
    facts.emplace_back(
        "Head", fmt::format("{} of {}", subject.pair.second, count_text(subject.num_pairs.second)));
  }
  const MaskOrigin& origin = subject.mask.origin;
  if (origin.q_offset != 0 || origin.kv_offset != 0) {
    facts.emplace_back("Cut out at", fmt::format("row {}, key {}", count_text(origin.q_offset),
                                                 count_text(origin.kv_offset)));
  }
  if (!subject.mask.spec.empty()) facts.emplace_back("Specification", subject.mask.spec);
  return facts;
}

std::string title_of(const PictureSubject& subject) {
  if (subject.num_pairs == std::pair<std::int64_t, std::int64_t>{1, 1}) return subject.label;
  return fmt::format("{}, batch element {}, head {}", subject.label, subject.pair.first,
                     subject.pair.second);
}

// One paragraph for readers who cannot see the picture.
std::string description_of(const PictureSubject& subject) {
  std::string text = "Attention mask, query rows downwards and keys to the right.";
  for (const auto& [name, value] : facts_of(subject)) {
    text += fmt::format(" {}: {}.", name, value);
  }
  return text;
}

PictureFrame frame_of(const PictureSubject& subject, const PictureOptions& options) {
  const MaskOrigin& origin = subject.mask.origin;
  const SegmentMask& mask = subject.segments;
  return {options.has_legend,
          options.has_axes,
          options.title,
          {origin.q_offset, origin.q_offset + mask.q_len},
          {origin.kv_offset, origin.kv_offset + mask.kv_len}};
}

Outcome<PictureReport> write_png_picture(const std::string& path, const PictureSubject& subject,
                                         const PictureOptions& options) {
  const SegmentMask& mask = subject.segments;
  const MaskImage image = image_frame(mask, options.size);
  const std::int32_t longest = std::max(image.width, image.height);
  const std::int32_t scale = std::clamp<std::int32_t>(options.size / longest, 1, 16);
  FDMA_TRY(PngWriter picture, PngWriter::create(path, image, scale, frame_of(subject, options)));
  {
    Progress progress("rendering", "tile rows", options.quiet);
    rasterize_rows(
        mask, options.size,
        [&](std::int32_t, std::span<const PixelKind> kinds, std::span<const float> densities) {
          picture.add(kinds, densities);
        },
        [&](std::int64_t done, std::int64_t total) { progress.update(done, total); });
  }
  FDMA_TRY_VOID(picture.finish());
  PictureReport report;
  report.members["width"] = picture.width();
  report.members["height"] = picture.height();
  report.members["cells_per_pixel"] = {{"q", image.cells_per_pixel_q},
                                       {"kv", image.cells_per_pixel_kv}};
  report.members["scale"] = scale;
  const bool is_exact = image.cells_per_pixel_q == 1 && image.cells_per_pixel_kv == 1;
  report.summary = fmt::format("{} x {} pixels, ", picture.width(), picture.height());
  report.summary += is_exact ? fmt::format("a cell is {} x {} pixels", scale, scale)
                             : fmt::format("{} x {} pixels are {} x {} cells", scale, scale,
                                           image.cells_per_pixel_q, image.cells_per_pixel_kv);
  return report;
}

Outcome<PictureReport> write_svg_picture(const std::string& path, const PictureSubject& subject,
                                         const PictureOptions& options) {
  Progress progress("rendering", "tile rows", options.quiet);
  const SvgPicture picture = draw_svg(
      subject.segments,
      {options.size, frame_of(subject, options), title_of(subject), description_of(subject)},
      progress);
  FDMA_TRY_VOID(write_text(path, picture.text));
  PictureReport report;
  report.members["width"] = picture.width;
  report.members["height"] = picture.height;
  report.members["detail"] = to_string(picture.detail);
  report.members["cells_per_square"] = {{"q", picture.cells_per_square_q},
                                        {"kv", picture.cells_per_square_kv}};
  report.members["num_outlines"] = picture.num_outlines;
  report.members["bytes"] = picture.text.size();
  report.summary = fmt::format("{} x {} pixels, drawn in {}", picture.width, picture.height,
                               to_string(picture.detail));
  if (picture.detail == PictureDetail::areas) {
    report.summary +=
        fmt::format(" of {} x {} cells", picture.cells_per_square_q, picture.cells_per_square_kv);
  }
  report.summary += fmt::format(", {}, {}", plural(picture.num_outlines, "outline"),
                                bytes_text(static_cast<std::int64_t>(picture.text.size())));
  return report;
}

// All masks of the subject, if there are several and a page may hold them. A crop has one.
std::optional<ViewerChoice> choice_of(const PictureSubject& subject) {
  const BlockMask& mask = subject.mask;
  const std::pair pairs{mask.shape.num_batches, mask.shape.num_heads};
  if (pairs != subject.num_pairs || mask.num_groups() < 2 ||
      pairs.first * pairs.second > kMaxViewerPairs) {
    return std::nullopt;
  }
  ViewerChoice choice;
  choice.num_batches = pairs.first;
  choice.num_heads = pairs.second;
  choice.chosen = subject.pair;
  for (std::int64_t b = 0; b < pairs.first; ++b) {
    for (std::int64_t h = 0; h < pairs.second; ++h) {
      choice.group_of_pair.push_back(mask.group(b, h));
    }
  }
  std::int64_t bytes = viewer_array_bytes(subject.segments);
  for (std::int64_t group = 0; group < mask.num_groups(); ++group) {
    SegmentMask segments = segment_of_group(mask, group, mask.block);
    if (segments.q_len == 0 || segments.kv_len == 0) return std::nullopt;
    bytes += viewer_array_bytes(segments);
    if (bytes > kMaxViewerBytes) return std::nullopt;
    ViewerFacts facts = facts_of_cells(segments);
    choice.groups.push_back({std::move(segments), std::move(facts)});
  }
  return choice;
}

Outcome<PictureReport> write_page(const std::string& path, const PictureSubject& subject,
                                  const PictureOptions& options) {
  const std::optional<ViewerChoice> choice = choice_of(subject);
  FDMA_TRY(const std::string page,
           viewer_page(subject.segments,
                       {options.title.empty() ? title_of(subject) : options.title,
                        description_of(subject), facts_of(subject)},
                       choice ? &*choice : nullptr));
  FDMA_TRY_VOID(write_text(path, page));
  PictureReport report;
  report.members["bytes"] = page.size();
  report.members["array_bytes"] = viewer_array_bytes(subject.segments);
  report.summary = fmt::format(
      "a page of {} x {} cells, {} of arrays", count_text(subject.segments.q_len),
      count_text(subject.segments.kv_len), bytes_text(viewer_array_bytes(subject.segments)));
  return report;
}

}  // namespace

std::string_view to_string(PictureKind kind) {
  for (const KindSuffix& known : kSuffixes) {
    if (known.kind == kind) return known.suffix.substr(1);
  }
  return "";
}

Outcome<PictureKind> picture_kind(const std::string& path) {
  const auto to_lower = [](char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  };
  for (const KindSuffix& known : kSuffixes) {
    const std::size_t length = known.suffix.size();
    if (path.size() < length) continue;
    std::string suffix = path.substr(path.size() - length);
    std::transform(suffix.begin(), suffix.end(), suffix.begin(), to_lower);
    if (suffix == known.suffix) return known.kind;
  }
  return usage_failure(
      fmt::format("--output: expected a name that ends in .png, .svg or .html, got '{}'", path));
}

Outcome<PictureReport> write_picture(PictureKind kind, const std::string& path,
                                     const PictureSubject& subject, const PictureOptions& options) {
  const SegmentMask& mask = subject.segments;
  if (mask.q_len == 0 || mask.kv_len == 0) {
    return CommandFailure{
        ExitCode::unsupported,
        fmt::format("{}: {} x {} has no cell to render", subject.label, mask.q_len, mask.kv_len)};
  }
  switch (kind) {
    case PictureKind::png:
      return write_png_picture(path, subject, options);
    case PictureKind::svg:
      return write_svg_picture(path, subject, options);
    case PictureKind::html:
      return write_page(path, subject, options);
  }
  return CommandFailure{ExitCode::internal, "render: unknown kind of picture"};
}

}  // namespace fdma::maskc
