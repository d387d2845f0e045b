// The score of a call: what happens to a logit besides the softmax scale and the mask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"

namespace fdma {

/// A composition of the parts that score_parts.def lists. Each is a member of that name, true where
/// the score has it.
///
/// Example     ScoreSpec score{.key_bias = true};  to_string(score) == "key_bias"
struct ScoreSpec {
#define FDMA_SCORE_PART(name, meaning) bool name = false;
#include "fdma/formats/score_parts.def"

  friend bool operator==(const ScoreSpec&, const ScoreSpec&) = default;
};

/// The names of its parts, in the order of score_parts.def.
std::vector<std::string_view> part_names(const ScoreSpec& score);

/// Its parts, for example "key_bias" or "softcap+key_bias"; "none" if it has none.
std::string to_string(const ScoreSpec& score);

/// The parts that both have.
ScoreSpec common_parts(const ScoreSpec& a, const ScoreSpec& b);

/// The score of parts whose names are separated by commas.
///
/// Example     *parse_score("alibi,dropout") == ScoreSpec{.alibi = true, .dropout = true}
/// Errors      invalid_argument, which names the first word that is no part, and every part
Result<ScoreSpec> parse_score(std::string_view text);

/// Checks that `computed` has every part of `score`.
///
/// Errors      unsupported, which names the parts that `by` does not compute, and those it does
Result<void> check_computed(const ScoreSpec& score, const ScoreSpec& computed, std::string_view by);

}  // namespace fdma
