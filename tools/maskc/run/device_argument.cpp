#include "run/device_argument.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace fdma::maskc {

Outcome<DeviceProfile> read_device(const Arguments& arguments, std::string_view fallback) {
  const std::string device = arguments.find("device").value_or(std::string(fallback));
  const std::vector<std::string_view> names = shipped_profile_names();
  if (std::find(names.begin(), names.end(), device) != names.end()) {
    FDMA_TRY(DeviceProfile profile, shipped_profile(device));
    return profile;
  }
  if (device.find_first_of("./") == std::string::npos) {
    std::string hint;
    if (device.starts_with("gpu") || device.starts_with("cuda")) {
      hint = "; where it runs is chosen by --backend";
    } else if (const auto near = nearest(device, names)) {
      hint = fmt::format("; did you mean {}?", *near);
    }
    return usage_failure(
        fmt::format("--device: expected {} or a profile's file (.json), got '{}'{}",
                    fmt::join(names, ", "), device, hint));
  }
  Result<DeviceProfile> profile = read_profile(device);
  if (!profile) {
    return CommandFailure{ExitCode::file, fmt::format("--device: {}", profile.error().message)};
  }
  return *std::move(profile);
}

OptionSpec device_option(std::string_view help) {
  return {.name = "device",
          .value = "DEVICE",
          .help = help,
          .takes_file = true,
          .suggestions = shipped_profile_names()};
}

}  // namespace fdma::maskc
