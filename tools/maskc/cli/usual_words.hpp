// Words that users of other tools try, and the tool's own.
#pragma once

#include <optional>
#include <string_view>

namespace fdma::maskc {

/// The verb for what `word` does elsewhere: "show" -> "inspect".
std::optional<std::string_view> usual_verb(std::string_view word);

/// What to give instead of option --`word`, as the end of a sentence: "seqlen" -> "lengths are
/// --q-len and --kv-len".
std::optional<std::string_view> usual_option(std::string_view word);

/// The value of an option or operand that is called `word` elsewhere: "cuda" -> "sm90".
std::optional<std::string_view> usual_value(std::string_view word);

}  // namespace fdma::maskc
