// What a picture shows around the mask.
#pragma once

#include <cstdint>
#include <string>

namespace fdma::maskc {

/// Rows or keys [begin, end) in the numbering of the user.
struct Interval64 {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// What surrounds the mask in a picture.
struct PictureFrame {
  bool has_legend = false;  ///< a strip below that names the colours
  bool has_axes = false;    ///< numbers of query rows to the left, of keys above
  std::string title;        ///< a line above; empty: none
  Interval64 rows;          ///< query rows of the picture, as the axes number them
  Interval64 keys;
};

}  // namespace fdma::maskc
