// The error message of a file that cannot be written.
#pragma once

#include <fmt/format.h>

#include <string>
#include <system_error>

#include "fdma/base/result.hpp"

namespace fdma::io {

/// "cannot write 'out.h5': No space left on device"
inline Error write_error(const std::string& path, int error_number) {
  return {ErrorCode::io, fmt::format("cannot write '{}': {}", path,
                                     std::generic_category().message(error_number))};
}

}  // namespace fdma::io
