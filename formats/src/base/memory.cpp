#include "fdma/base/memory.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

namespace fdma {
namespace {

constexpr std::int64_t kNeverAsked = std::int64_t{64} << 20;
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// The number after `key` in a file of lines "key 123 ..".
std::optional<std::int64_t> field(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    try {
      return std::stoll(line.substr(key.size()));
    } catch (const std::exception&) {
      return {};
    }
  }
  return {};
}

// The bytes that one control group leaves: its limit less memory in use that cannot be dropped.
std::int64_t left_in(const std::string& folder, const char* limit_name, const char* used_name,
                     const char* droppable_name) {
  const auto limit = field(folder + limit_name, "");  // "max": no limit
  const auto used = field(folder + used_name, "");
  if (!limit || !used) return kUnlimited;
  const std::int64_t droppable = field(folder + "/memory.stat", droppable_name).value_or(0);
  return std::max<std::int64_t>(1, *limit - *used + droppable);
}

// The control groups (versions 2 and 1) that the process is in, and those above them.
std::int64_t left_in_groups() {
  std::int64_t left = kUnlimited;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t path_at = line.find(':', line.find(':') + 1);
    if (path_at == std::string::npos) continue;
    const bool is_v2 = line.starts_with("0::");
    if (!is_v2 && line.find(":memory:") == std::string::npos) continue;
    const std::string root = is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (std::string path = line.substr(path_at + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      left = std::min(
          left, is_v2 ? left_in(root + path, "/memory.max", "/memory.current", "inactive_file ")
                      : left_in(root + path, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                "total_inactive_file "));
      if (path.find('/') == std::string::npos) break;
    }
  }
  return left;
}

std::int64_t left_of_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur > static_cast<rlim_t>(kUnlimited)) {
    return kUnlimited;
  }
  const auto pages = field("/proc/self/statm", "");
  if (!pages) return kUnlimited;
  return std::max<std::int64_t>(
      1, static_cast<std::int64_t>(limit.rlim_cur) - *pages * sysconf(_SC_PAGESIZE));
}

std::string bytes_text(std::int64_t bytes) {
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (value < 1000) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.3g} {}", value, unit);
}

Error not_enough(std::string_view what, std::int64_t needed, std::int64_t available) {
  return {ErrorCode::out_of_memory, fmt::format("{}: not enough memory: needs {}, available {}",
                                                what, bytes_text(needed), bytes_text(available))};
}

}  // namespace

std::int64_t available_memory_bytes() {
  std::int64_t left = std::min(left_in_groups(), left_of_address_space());
  if (const auto kibibytes = field("/proc/meminfo", "MemAvailable:")) {
    left = std::min(left, *kibibytes * 1024);
  }
  return left == kUnlimited ? 0 : left;
}

Result<void> check_memory(std::int64_t needed_bytes, std::string_view what) {
  if (needed_bytes <= kNeverAsked) return {};
  const std::int64_t available = available_memory_bytes();
  if (available > 0 && needed_bytes > available) return not_enough(what, needed_bytes, available);
  return {};
}

Result<void> MemoryBudget::take(std::int64_t bytes) {
  constexpr std::int64_t kMax = kUnlimited / 2;  // leaves room for what other threads add
  std::int64_t before = taken_;
  while (!taken_.compare_exchange_weak(before, std::min(before, kMax) + std::min(bytes, kMax))) {
  }
  const std::int64_t taken = std::min(before, kMax) + std::min(bytes, kMax);
  if (taken <= kNeverAsked) return {};
  std::int64_t available = available_;
  if (available < 0) {
    available = available_memory_bytes();
    available_ = available;
  }
  if (available > 0 && taken > available) return not_enough(what_, taken, available);
  return {};
}

}  // namespace fdma
