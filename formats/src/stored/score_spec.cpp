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
