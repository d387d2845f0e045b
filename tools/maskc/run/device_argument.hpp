// --device of estimate, run and bench: the device profile by whose costs plans are made.
#pragma once

#include <string_view>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/kernels/device_profile.hpp"

namespace fdma::maskc {

/// The shipped profile or the file that --device names, else the shipped profile `fallback`.
/// Failures: usage, for a name that is neither; file.
Outcome<DeviceProfile> read_device(const Arguments& arguments, std::string_view fallback);

OptionSpec device_option(std::string_view help);

}  // namespace fdma::maskc
