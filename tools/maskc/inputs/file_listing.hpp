// What a file holds, as the end of a message about a mask or a table that is not in it.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/base/result.hpp"

namespace fdma::maskc {

/// What was looked for.
enum class Wanted : std::uint8_t { mask, table };

/// The masks and datasets of `file` that could be meant, one a line, by the names under which they
/// are read. A dataset that can be a mask has the --dims that fit its extents. `missing` is the name
/// that is not there; the nearest other name is suggested. Empty if the file cannot be listed.
///
/// Example     "; did you mean d.h5:/mask?\nd.h5 holds\n  d.h5:/mask  boolean [64, 64]  --dims qk"
std::string file_listing(const std::string& file, const std::string& missing, Wanted wanted);

/// `error`, followed by the listing if `file` is there and holds no dataset `dataset`.
Error with_listing(Error error, const std::string& file, const std::string& dataset, Wanted wanted);

}  // namespace fdma::maskc
