// Pages of docs/ that the tool prints itself, compiled in by cmake/embed_text.cmake.
#pragma once

#include <string_view>

namespace fdma::maskc {

extern const std::string_view kLanguagePage;   ///< spec-language.md
extern const std::string_view kToolPage;       ///< maskc.md
extern const std::string_view kJsonPage;       ///< json-schema.md
extern const std::string_view kFilesPage;      ///< file-format.md
extern const std::string_view kPeersPage;      ///< peer-formats.md
extern const std::string_view kEstimatesPage;  ///< estimates.md

}  // namespace fdma::maskc
