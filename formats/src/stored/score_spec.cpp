#include "fdma/formats/score_spec.hpp"

#include <fmt/format.h>

namespace fdma {

std::vector<std::string_view> part_names(const ScoreSpec& score) {
  std::vector<std::string_view> names;
#define FDMA_SCORE_PART(name, meaning) \
  if (score.name) names.push_back(#name);
#include "fdma/formats/score_parts.def"
  return names;
}

std::string to_string(const ScoreSpec& score) {
  const std::vector<std::string_view> names = part_names(score);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, "+"));
}

ScoreSpec common_parts(const ScoreSpec& a, const ScoreSpec& b) {
  ScoreSpec parts;
#define FDMA_SCORE_PART(name, meaning) parts.name = a.name && b.name;
#include "fdma/formats/score_parts.def"
  return parts;
}

Result<ScoreSpec> parse_score(std::string_view text) {
  ScoreSpec score;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    bool* part = nullptr;
#define FDMA_SCORE_PART(name, meaning) \
  if (word == #name) part = &score.name;
#include "fdma/formats/score_parts.def"
    if (part == nullptr) {
      ScoreSpec all;
#define FDMA_SCORE_PART(name, meaning) all.name = true;
#include "fdma/formats/score_parts.def"
      return Error{ErrorCode::invalid_argument,
                   fmt::format("score: expected parts of {}, got '{}'",
                               fmt::join(part_names(all), ", "), word)};
    }
    *part = true;
    if (comma == std::string_view::npos) return score;
    rest.remove_prefix(comma + 1);
  }
}

Result<void> check_computed(const ScoreSpec& score, const ScoreSpec& computed,
                            std::string_view by) {
  ScoreSpec missing;
#define FDMA_SCORE_PART(name, meaning) missing.name = score.name && !computed.name;
#include "fdma/formats/score_parts.def"
  const std::vector<std::string_view> names = part_names(missing);
  if (names.empty()) return {};
  return Error{ErrorCode::unsupported,
               fmt::format("score: {} {} not computed by {}, which computes {}",
                           fmt::join(names, ", "), names.size() == 1 ? "is" : "are", by,
                           computed == ScoreSpec{}
                               ? "none"
                               : fmt::format("{}", fmt::join(part_names(computed), ", ")))};
}

}  // namespace fdma
