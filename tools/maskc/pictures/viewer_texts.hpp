// The files of viewer/, compiled in by cmake/embed_text.cmake.
#pragma once

#include <string_view>

namespace fdma::maskc {

extern const std::string_view kViewerPage;     ///< mask_viewer.html, with {{names}} to be filled in
extern const std::string_view kViewerStyle;    ///< mask_viewer.css
extern const std::string_view kViewerArrays;   ///< mask_arrays.js
extern const std::string_view kViewerPainter;  ///< mask_painter.js, which uses mask_arrays.js
extern const std::string_view kViewerScript;   ///< mask_viewer.js, which uses both

}  // namespace fdma::maskc
