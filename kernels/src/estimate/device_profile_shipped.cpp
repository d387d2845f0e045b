// The device profiles that ship with the library: the JSON texts of estimate/profiles/, compiled in.
#include <fmt/format.h>

#include <array>
#include <string>

#include "estimate/profile_texts.hpp"
#include "fdma/kernels/device_profile.hpp"

namespace fdma {
namespace {

struct Shipped {
  std::string_view name;
  const std::string_view& text;
};

const Shipped kShipped[] = {{"h200", kProfileH200}, {"h100", kProfileH100}, {"cpu", kProfileCpu}};

using Profiles = std::array<std::shared_ptr<const DeviceProfile>, std::size(kShipped)>;

Profiles read_all() {
  Profiles profiles;
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    Result<DeviceProfile> profile = profile_from_json(kShipped[i].text);
    if (profile) profiles[i] = std::make_shared<const DeviceProfile>(*std::move(profile));
  }
  return profiles;
}

}  // namespace

std::vector<std::string_view> shipped_profile_names() {
  std::vector<std::string_view> names;
  for (const Shipped& each : kShipped) names.push_back(each.name);
  return names;
}

Result<DeviceProfile> shipped_profile(std::string_view name) {
  for (const Shipped& each : kShipped) {
    if (each.name == name) return profile_from_json(each.text);
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("device profile: expected one of {}, got '{}'",
                           fmt::join(shipped_profile_names(), ", "), name)};
}

std::shared_ptr<const DeviceProfile> default_profile(Backend backend) {
  static const Profiles profiles = read_all();
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    if (kShipped[i].name == backend.traits().profile) return profiles[i];
  }
  return nullptr;
}

}  // namespace fdma
