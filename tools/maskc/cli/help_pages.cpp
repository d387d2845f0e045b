#include "cli/help_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/page_texts.hpp"

namespace fdma::maskc {
namespace {

/// A heading of a page and the text from it to the next heading of its level or above.
struct Section {
  std::string_view heading;
  std::string_view text;
};

// The number of '#' at the begin of a line; 0 if it is no heading.
std::size_t heading_level(std::string_view line) {
  const std::size_t level = std::min(line.find_first_not_of('#'), line.size());
  return level < line.size() && line[level] == ' ' ? level : 0;
}

std::vector<Section> sections_of(std::string_view text) {
  struct Heading {
    std::size_t begin, level;
    std::string_view name;
  };
  std::vector<Heading> headings;
  bool is_code = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with("```")) is_code = !is_code;
    const std::size_t level = is_code ? 0 : heading_level(line);
    if (level > 1) headings.push_back({at, level, line.substr(level + 1)});
    at = end + 1;
  }
  std::vector<Section> sections;
  for (std::size_t i = 0; i < headings.size(); ++i) {
    std::size_t end = text.size();
    for (std::size_t j = i + 1; j < headings.size() && end == text.size(); ++j) {
      if (headings[j].level <= headings[i].level) end = headings[j].begin;
    }
    sections.push_back({headings[i].name, text.substr(headings[i].begin, end - headings[i].begin)});
  }
  return sections;
}

}  // namespace

std::span<const HelpPage> help_pages() {
  static const HelpPage pages[] = {
      {"language", "what a specification can say, with an example of every name", kLanguagePage},
      {"tool", "a tour, and every rule of the command line", kToolPage},
      {"json", "the documents that --json prints", kJsonPage},
      {"files", "mask files, and dense masks that are read", kFilesPage},
      {"peers", "arrays of other systems: convert --from, --to", kPeersPage},
      {"estimates", "what estimate computes, and device profiles", kEstimatesPage},
  };
  return pages;
}

const HelpPage* find_help_page(std::string_view topic) {
  for (const HelpPage& page : help_pages()) {
    if (page.topic == topic) return &page;
  }
  return nullptr;
}

Outcome<std::string> page_section(const HelpPage& page, std::string_view section) {
  const std::vector<Section> sections = sections_of(page.text);
  std::vector<std::string_view> names;
  for (const Section& each : sections) {
    if (each.heading == section) return std::string(each.text);
    names.push_back(each.heading);
  }
  const auto near = nearest(section, names);
  return usage_failure(fmt::format("help {}: no section '{}'{}; its sections are {}", page.topic,
                                   section, near ? fmt::format(", did you mean {}?", *near) : "",
                                   fmt::join(names, ", ")));
}

}  // namespace fdma::maskc
