// Workspaces that forward calls of all plans share, one for each stream of a device.
#pragma once

#include <memory>
#include <mutex>

#include "attention/plan_on_device.hpp"
#include "fdma/kernels/device_memory.hpp"

namespace fdma::python {

/// The workspace of the calls on one stream. The holder of the lock launches a whole call in it;
/// other threads that call on that stream wait for the lock.
struct StreamWorkspace {
  struct Entry {
    std::mutex mutex;
    DeviceMemory memory;
  };
  std::shared_ptr<Entry> entry;  ///< declared before `lock`, so that it is destroyed after it
  std::unique_lock<std::mutex> lock;
  void* data = nullptr;
};

/// A kept workspace (Launch::is_kept) for a call of a forward plan on `stream`. It is as large
/// as the largest that any plan has needed there. A call that is captured into a CUDA graph gets a
/// workspace of the plan's own instead. The plan's device is current. Callable from any thread,
/// without the GIL.
StreamWorkspace shared_workspace(const PlanOnDevice& plan, Stream stream);

/// Drops all shared workspaces. A workspace that a call holds is freed after that call. Freeing
/// waits for the kernels that still use the memory.
void release_shared_workspaces();

}  // namespace fdma::python
