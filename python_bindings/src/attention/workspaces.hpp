// The workspaces of all calls on GPUs.
#pragma once

#include <atomic>
#include <cstdint>

#include "attention/workspace_store.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/device_memory.hpp"

namespace fdma::python {

/// A workspace for the launch of one call (workspace_store.hpp).
using Workspace = WorkspaceStore<DeviceMemory>::Lease;

/// Part of an object whose calls need workspaces: a prepared plan, a selection. It takes them from
/// the one store of the process, in which the calls of all objects on a stream share theirs.
///
/// Owner       the destructor frees the workspaces of its captured calls, so that the object must
///             live as long as the graphs
/// Threads     any may call it, without the GIL
class WorkspaceUser {
 public:
  WorkspaceUser();
  WorkspaceUser(const WorkspaceUser&) = delete;
  WorkspaceUser& operator=(const WorkspaceUser&) = delete;
  ~WorkspaceUser();

  /// A workspace of `size_bytes` for a call on `stream`; none for 0 bytes. The GPU that the call
  /// runs on, `device`, is the current device.
  Workspace workspace(int device, std::int64_t size_bytes, Stream stream) const;

  /// Notes a call on `stream` whose workspace the caller provides.
  void note_launch(Stream stream) const;

  /// Whether a call was captured into a CUDA graph, which reads the object at every replay.
  bool is_captured() const { return is_captured_; }

 private:
  std::uint64_t number_;
  mutable std::atomic<bool> is_captured_ = false;
};

/// Frees the workspaces that calls share. One that a call has is freed after that call.
void release_workspaces();

/// The bytes of all workspaces, shared and captured.
std::int64_t workspaces_size_bytes();

}  // namespace fdma::python
