// Workspaces that forward calls of all plans share, one for each stream of a device.
#pragma once

#include <memory>
#include <mutex>

#include "attention/plan_on_device.hpp"
#include "fdma/kernels/device_memory.hpp"

namespace fdma::python {

/// Memory of one stream's calls. Who holds the lock launches a whole call in it; calls of other
/// threads on that stream come after.
struct StreamWorkspace {
  struct Entry {
    std::mutex mutex;
    DeviceMemory memory;
  };
  std::shared_ptr<Entry> entry;  ///< before the lock, which ends first
  std::unique_lock<std::mutex> lock;
  void* data = nullptr;
};

/// A kept workspace (kept_workspace.hpp) for a call of a forward plan on `stream`, as large as any
/// plan has needed there; for what is captured into a CUDA graph one of the plan's own. The plan's
/// device is current. Any thread, without the GIL.
StreamWorkspace shared_workspace(const PlanOnDevice& plan, Stream stream);

/// Lets go of the memory that no call is using; waits for kernels that do.
void release_shared_workspaces();

}  // namespace fdma::python
