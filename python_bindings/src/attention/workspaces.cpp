#include "attention/workspaces.hpp"

#include "arrays/python_error.hpp"

namespace fdma::python {
namespace {

// It is never destroyed: at the end of the process the driver may be unloaded before it.
WorkspaceStore<DeviceMemory>& store() {
  static auto* const the_store = new WorkspaceStore<DeviceMemory>;
  return *the_store;
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> number = 0;
  return ++number;
}

}  // namespace

WorkspaceUser::WorkspaceUser() : number_(next_number()) {}

WorkspaceUser::~WorkspaceUser() {
  if (is_captured_) store().release_captured(number_);
}

Workspace WorkspaceUser::workspace(int device, std::int64_t size_bytes, Stream stream) const {
  if (size_bytes == 0) return {};
  const StreamNumber number = value_or_throw(number_of(stream));
  Workspace workspace;
  if (number.capture == 0) {
    workspace = value_or_throw(store().shared(device, number.stream, size_bytes));
  } else {
    is_captured_ = true;
    workspace = value_or_throw(store().captured(number_, number, size_bytes));
  }
  return workspace;
}

void WorkspaceUser::note_launch(Stream stream) const {
  if (value_or_throw(number_of(stream)).capture != 0) is_captured_ = true;
}

void release_workspaces() { store().release_shared(); }

std::int64_t workspaces_size_bytes() { return store().size_bytes(); }

}  // namespace fdma::python
