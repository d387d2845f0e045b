#include "available_memory.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace fdma::maskc {
namespace {

// The number after `key` in a file of lines "key 123 ..".
std::optional<std::int64_t> field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::int64_t value = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    try {
      value = std::stoll(line.substr(key.size()));
    } catch (const std::exception&) {
      return {};
    }
    return value;
  }
  return {};
}

// What the control group leaves: its limit less what is in use and cannot be dropped.
std::optional<std::int64_t> group_memory_bytes() {
  std::string path;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::", 0) == 0) path = "/sys/fs/cgroup" + line.substr(3);
  }
  if (path.empty()) return {};
  const auto limit = field(path + "/memory.max", "");  // "max": no limit
  const auto used = field(path + "/memory.current", "");
  if (!limit || !used) return {};
  const std::int64_t droppable = field(path + "/memory.stat", "inactive_file ").value_or(0);
  return std::max<std::int64_t>(1, *limit - *used + droppable);
}

}  // namespace

std::int64_t available_memory_bytes() {
  std::int64_t available = 0;
  if (const auto kibibytes = field("/proc/meminfo", "MemAvailable:")) available = *kibibytes * 1024;
  if (const auto of_group = group_memory_bytes()) {
    available = available == 0 ? *of_group : std::min(available, *of_group);
  }
  return available;
}

}  // namespace fdma::maskc
