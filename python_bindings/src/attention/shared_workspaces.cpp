// A program with another mask at every step makes a plan at every step. A workspace kept by each
// plan would add up, since it takes megabytes if keys are split among multiprocessors. Calls on one
// stream follow each other, so they share one workspace.
#include "attention/shared_workspaces.hpp"

#include <cstdint>
#include <map>
#include <utility>

#include "arrays/python_error.hpp"

namespace fdma::python {
namespace {

constexpr std::size_t kMaxStreams = 64;  // destroyed streams keep their entries until this limit

using Entry = StreamWorkspace::Entry;
using Entries = std::map<std::pair<int, std::uint64_t>, std::shared_ptr<Entry>>;

struct Pool {
  std::mutex mutex;
  Entries entries;  ///< the key is the device and the number of the stream
};

// The pool is never destroyed: at the end of the process the driver may be unloaded before it.
Pool& pool() {
  static auto* const the_pool = new Pool;
  return *the_pool;
}

}  // namespace

StreamWorkspace shared_workspace(const PlanOnDevice& plan, Stream stream) {
  const StreamNumber number = value_or_throw(number_of(stream));
  StreamWorkspace result;
  if (number.capture != 0) {
    result.data = plan.workspace(stream);
    return result;
  }
  Entries dropped;
  {
    Pool& all = pool();
    const std::lock_guard lock(all.mutex);
    const std::pair key(plan.place().index, number.stream);
    if (all.entries.size() >= kMaxStreams && all.entries.count(key) == 0) {
      dropped.swap(all.entries);
    }
    std::shared_ptr<Entry>& entry = all.entries[key];
    if (entry == nullptr) entry = std::make_shared<Entry>();
    result.entry = entry;
  }
  result.lock = std::unique_lock(result.entry->mutex);
  DeviceMemory& memory = result.entry->memory;
  const std::int64_t needed = plan.plan().workspace_bytes();
  if (memory.data() == nullptr || memory.size_bytes() < needed) {
    DeviceMemory larger = value_or_throw(DeviceMemory::allocate(needed));
    value_or_throw(plan.plan().prepare_workspace(larger.data(), stream));
    memory = std::move(larger);
  }
  result.data = memory.data();
  return result;
}

void release_shared_workspaces() {
  Entries dropped;
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  dropped.swap(all.entries);
}

}  // namespace fdma::python
