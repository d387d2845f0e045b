// Words of other systems that a specification may hold by habit, and what the language has instead.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace fdma {

/// What to write instead of a word of FlexAttention, FlashAttention, Hugging Face, PyTorch or
/// Python, as the end of a sentence; empty for other words.
///
/// Example     "kv_idx" -> "the key is k here"
std::optional<std::string_view> remedy_of_foreign_word(std::string_view word);

/// All words that have a remedy.
std::vector<std::string_view> foreign_words();

}  // namespace fdma
