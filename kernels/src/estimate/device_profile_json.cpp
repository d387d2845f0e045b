// Device profiles as JSON. The text that is read is untrusted: each member is asked for by name and
// type, unknown members are errors, and the whole profile is validated.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "estimate/profile_members.hpp"

namespace fdma {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMaxFileBytes = std::size_t{4} << 20;
constexpr std::size_t kMaxEntries = 4096;

Error corrupt(std::string message) { return Error{ErrorCode::corrupt_file, std::move(message)}; }

/// Reads members of one JSON object; `where` is its path, for messages.
class Members {
 public:
  Members(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  /// Checks that every member is one of `names`.
  Result<void> check_names(const std::vector<std::string_view>& names) const {
    if (!object_.is_object()) return corrupt(fmt::format("{}: expected an object", place("")));
    for (const auto& [key, value] : object_.items()) {
      bool is_known = false;
      for (const std::string_view name : names) is_known = is_known || key == name;
      if (!is_known) return corrupt(fmt::format("{}: unknown member", place(key)));
    }
    return {};
  }
  Result<std::string> text(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr || !value->is_string()) return wrong(name, "a string", value);
    return value->get<std::string>();
  }
  Result<bool> flag(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr || !value->is_boolean()) return wrong(name, "true or false", value);
    return value->get<bool>();
  }
  bool has(const char* name) const { return find(name) != nullptr; }
  Result<double> number(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr || !value->is_number()) return wrong(name, "a number", value);
    return value->get<double>();
  }
  Result<std::int32_t> integer(const char* name) const {
    const Json* value = find(name);
    const bool fits = value != nullptr && value->is_number_integer() &&
                      (!value->is_number_unsigned() ||
                       value->get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max()) &&
                      (value->is_number_unsigned() ||
                       value->get<std::int64_t>() >= std::numeric_limits<std::int32_t>::min());
    if (!fits) return wrong(name, "a whole number of 32 bits", value);
    return value->get<std::int32_t>();
  }
  Result<const Json*> list(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr || !value->is_array() || value->size() > kMaxEntries) {
      return wrong(name, fmt::format("a list of at most {} entries", kMaxEntries), value);
    }
    return value;
  }
  Result<const Json*> object(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr || !value->is_object()) return wrong(name, "an object", value);
    return value;
  }
  std::string place(const std::string& name) const {
    if (name.empty()) return where_.empty() ? "the document" : where_;
    return where_.empty() ? name : where_ + "." + name;
  }

 private:
  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  Error wrong(const char* name, const std::string& expected, const Json* value) const {
    std::string got = "nothing";
    if (value != nullptr) {
      got = value->is_structured() ? value->type_name()
                                   : value->dump(-1, ' ', false, Json::error_handler_t::replace);
      if (got.size() > 40) got = got.substr(0, 40) + "..";
    }
    return corrupt(fmt::format("{}: expected {}, got {}", place(name), expected, got));
  }

  const Json& object_;
  std::string where_;
};

template <class Owner>
void write_numbers(const Owner& owner, std::span<const NumberMember<Owner>> members,
                   Json& document) {
  for (const NumberMember<Owner>& each : members) document[each.name] = owner.*each.value;
}

template <class Owner>
Result<void> read_numbers(const Members& document, std::span<const NumberMember<Owner>> members,
                          Owner& owner) {
  for (const NumberMember<Owner>& each : members) {
    const std::string name(each.name);
    if (!each.is_required && !document.has(name.c_str())) continue;
    FDMA_TRY(owner.*each.value, document.number(name.c_str()));
  }
  return {};
}

/// `names` and the names of a table.
template <class Owner>
std::vector<std::string_view> with_names(std::vector<std::string_view> names,
                                         std::span<const NumberMember<Owner>> members) {
  for (const NumberMember<Owner>& each : members) names.push_back(each.name);
  return names;
}

Json tile_json(const TileCosts& costs) {
  Json document;
  document["tile"] = {{"q", costs.tile.block_q}, {"kv", costs.tile.block_kv}};
  for (const StepMember& each : kSteps) {
    write_numbers<StepCosts>(costs.*each.value, kStepNumbers, document[each.name]);
  }
  write_numbers<TileCosts>(costs, kTileNumbers, document);
  return document;
}

Result<TileCosts> tile_from(const Json& document, const std::string& where) {
  const Members members(document, where);
  std::vector<std::string_view> names{"tile"};
  for (const StepMember& each : kSteps) names.push_back(each.name);
  FDMA_TRY_VOID(members.check_names(with_names<TileCosts>(names, kTileNumbers)));
  TileCosts costs;
  FDMA_TRY(const Json* tile, members.object("tile"));
  const Members sides(*tile, where + ".tile");
  FDMA_TRY_VOID(sides.check_names({"q", "kv"}));
  FDMA_TRY(costs.tile.block_q, sides.integer("q"));
  FDMA_TRY(costs.tile.block_kv, sides.integer("kv"));
  for (const StepMember& each : kSteps) {
    const std::string name(each.name);
    FDMA_TRY(const Json* object, members.object(name.c_str()));
    const Members steps(*object, members.place(name));
    FDMA_TRY_VOID(steps.check_names(with_names<StepCosts>({}, kStepNumbers)));
    FDMA_TRY_VOID(read_numbers<StepCosts>(steps, kStepNumbers, costs.*each.value));
  }
  FDMA_TRY_VOID(read_numbers<TileCosts>(members, kTileNumbers, costs));
  return costs;
}

/// Error of a member whose value must be a name of a closed list.
template <class T>
Result<T> named(Result<T> parsed, const Members& members, const char* member) {
  if (!parsed) return corrupt(fmt::format("{}: {}", members.place(member), parsed.error().message));
  return parsed;
}

/// Takes the members that `document` lacks from `assumed`. True if one of them is a cost.
template <class Owner>
bool take_assumed(const Members& document, std::span<const NumberMember<Owner>> members,
                  const Owner& assumed, Owner& owner) {
  bool is_assumed = false;
  for (const NumberMember<Owner>& each : members) {
    if (!each.is_assumed || document.has(std::string(each.name).c_str())) continue;
    owner.*each.value = assumed.*each.value;
    is_assumed = is_assumed || owner.*each.value > 0;
  }
  return is_assumed;
}

Result<KernelCosts> kernel_from(const Json& document, const std::string& where,
                                const DeviceProfile& profile) {
  const Members members(document, where);
  FDMA_TRY_VOID(members.check_names(with_names<KernelCosts>(
      {"direction", "dtype", "head_dim", "provisional", "assumed", "overlaps_masks", "tiles"},
      kKernelNumbers)));
  KernelCosts kernel;
  FDMA_TRY(const std::string direction, members.text("direction"));
  FDMA_TRY(kernel.direction, named(parse_direction(direction), members, "direction"));
  FDMA_TRY(const std::string dtype, members.text("dtype"));
  FDMA_TRY(kernel.dtype, named(parse_attention_dtype(dtype), members, "dtype"));
  FDMA_TRY(kernel.head_dim, members.integer("head_dim"));
  if (members.has("provisional")) {
    FDMA_TRY(kernel.is_provisional, members.flag("provisional"));
  }
  if (members.has("assumed")) {
    FDMA_TRY(kernel.is_assumed, members.flag("assumed"));
  }
  if (members.has("overlaps_masks")) {
    FDMA_TRY(kernel.overlaps_masks, members.flag("overlaps_masks"));
  }
  FDMA_TRY_VOID(read_numbers<KernelCosts>(members, kKernelNumbers, kernel));
  if (!members.has("gather_slowdown")) kernel.gather_slowdown = kernel.sustained_slowdown;
  FDMA_TRY(const Json* tiles, members.list("tiles"));
  for (std::size_t i = 0; i < tiles->size(); ++i) {
    FDMA_TRY(const TileCosts costs, tile_from((*tiles)[i], fmt::format("{}.tiles[{}]", where, i)));
    kernel.tiles.push_back(costs);
  }
  const KernelCosts assumed = assumed_costs(kernel, profile.backend, profile.memory_bytes_per_us);
  kernel.is_assumed |= take_assumed<KernelCosts>(members, kKernelNumbers, assumed, kernel);
  for (std::size_t i = 0; i < kernel.tiles.size(); ++i) {
    kernel.is_assumed |= take_assumed<TileCosts>(Members((*tiles)[i], ""), kTileNumbers,
                                                 assumed.tiles[i], kernel.tiles[i]);
  }
  return kernel;
}

}  // namespace

std::string to_json(const DeviceProfile& profile) {
  Json document;
  document["fdma_device_profile"] = kVersion;
  document["name"] = profile.name;
  document["source"] = profile.source;
  document["provisional"] = profile.is_provisional;
  document["backend"] = to_string(profile.backend);
  document["num_workers"] = profile.num_workers;
  document["stripe_rows"] = profile.stripe_rows;
  document["skips_dead_keys"] = profile.skips_dead_keys;
  write_numbers<DeviceProfile>(profile, kProfileNumbers, document);
  document["kernels"] = Json::array();
  for (const KernelCosts& kernel : profile.kernels) {
    Json entry;
    entry["direction"] = to_string(kernel.direction);
    entry["dtype"] = to_string(kernel.dtype);
    entry["head_dim"] = kernel.head_dim;
    entry["provisional"] = kernel.is_provisional;
    entry["assumed"] = kernel.is_assumed;
    entry["overlaps_masks"] = kernel.overlaps_masks;
    write_numbers<KernelCosts>(kernel, kKernelNumbers, entry);
    entry["tiles"] = Json::array();
    for (const TileCosts& costs : kernel.tiles) entry["tiles"].push_back(tile_json(costs));
    document["kernels"].push_back(std::move(entry));
  }
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<DeviceProfile> profile_from_json(std::string_view text) {
  const Json document = Json::parse(text.begin(), text.end(), nullptr, false);
  if (document.is_discarded()) return corrupt("expected a JSON document, got other text");
  const Members members(document, "");
  FDMA_TRY_VOID(members.check_names(
      with_names<DeviceProfile>({"fdma_device_profile", "name", "source", "provisional", "backend",
                                 "num_workers", "stripe_rows", "skips_dead_keys", "kernels"},
                                kProfileNumbers)));
  FDMA_TRY(const std::int32_t version, members.integer("fdma_device_profile"));
  if (version != kVersion) {
    return corrupt(
        fmt::format("fdma_device_profile: expected version {}, got {}", kVersion, version));
  }
  DeviceProfile profile;
  FDMA_TRY(profile.name, members.text("name"));
  FDMA_TRY(profile.source, members.text("source"));
  FDMA_TRY(profile.is_provisional, members.flag("provisional"));
  if (members.has("backend")) {
    FDMA_TRY(const std::string backend, members.text("backend"));
    FDMA_TRY(profile.backend, named(parse_backend(backend), members, "backend"));
  }
  FDMA_TRY(profile.num_workers, members.integer("num_workers"));
  FDMA_TRY(profile.stripe_rows, members.integer("stripe_rows"));
  FDMA_TRY(profile.skips_dead_keys, members.flag("skips_dead_keys"));
  FDMA_TRY_VOID(read_numbers<DeviceProfile>(members, kProfileNumbers, profile));
  FDMA_TRY(const Json* kernels, members.list("kernels"));
  for (std::size_t i = 0; i < kernels->size(); ++i) {
    FDMA_TRY(KernelCosts kernel,
             kernel_from((*kernels)[i], fmt::format("kernels[{}]", i), profile));
    profile.kernels.push_back(std::move(kernel));
  }
  FDMA_TRY_VOID(validate(profile));
  return profile;
}

Result<DeviceProfile> read_profile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) {
    return Error{ErrorCode::io, fmt::format("{}: cannot read: {}", path, std::strerror(errno))};
  }
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return Error{ErrorCode::io, fmt::format("{}: cannot read: {}", path, std::strerror(errno))};
  }
  if (text.size() > kMaxFileBytes) {
    return Error{ErrorCode::io, fmt::format("{}: expected a device profile of at most {} bytes",
                                            path, kMaxFileBytes)};
  }
  Result<DeviceProfile> profile = profile_from_json(text);
  if (!profile) {
    return Error{profile.error().code, fmt::format("{}: {}", path, profile.error().message)};
  }
  return profile;
}

}  // namespace fdma
