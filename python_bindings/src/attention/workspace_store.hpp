// Workspaces of calls on GPUs: who shares one, when it grows, and how long it lives.
//
// A program with another mask at every step makes a plan at every step. A workspace for each plan
// would add up, since one takes megabytes to gigabytes. Calls on one stream follow each other, so
// they share one workspace, whatever they compute. A captured CUDA graph is replayed on any stream,
// at any time, with the addresses that it has seen, so each capture of an object's calls has a
// workspace of its own, which is neither shared nor replaced.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "fdma/base/result.hpp"
#include "fdma/kernels/device_stream.hpp"

namespace fdma::python {

/// Workspaces of `Memory`, which is DeviceMemory or, in tests, a type with its members
///
///     static Result<Memory> allocate(int64_t size_bytes)
///     void* data() const, int64_t size_bytes() const, moves, a destructor that frees
///
/// Owner       owns all workspaces. A shared one lives until release_shared, and a captured one
///             until release_captured of its user. A workspace that is dropped while a call has it
///             is freed after that call
/// Threads     any number may call any function at once. Those that ask for one workspace wait for
///             each other
template <class Memory>
class WorkspaceStore {
  struct Entry {
    std::mutex mutex;
    Memory memory;
    std::atomic<std::int64_t> size_bytes = 0;
    bool is_prepared = false;
  };

 public:
  /// A workspace for the launch of one call. Other calls that ask for it wait until this is
  /// destroyed, so that each finds it as the one before leaves it.
  class Lease {
   public:
    Lease() = default;  ///< no memory, for calls that need none

    void* data() const { return entry_ == nullptr ? nullptr : entry_->memory.data(); }
    /// Whether the last call left it prepared for kept launches (Launch::is_kept).
    bool is_prepared() const { return is_prepared_; }
    /// Says that this call leaves it prepared. Without it the next call finds it overwritten.
    void leave_prepared() {
      if (entry_ != nullptr) entry_->is_prepared = true;
    }

   private:
    friend WorkspaceStore;
    explicit Lease(std::shared_ptr<Entry> entry) : entry_(std::move(entry)), lock_(entry_->mutex) {}

    std::shared_ptr<Entry> entry_;  // declared before the lock, so that it is destroyed after it
    std::unique_lock<std::mutex> lock_;
    bool is_prepared_ = false;
  };

  /// The workspace that all calls on a stream share, of at least `size_bytes` (1 or more). A larger
  /// one replaces one that is too small, which waits for the kernels that use it.
  ///
  /// Errors      those of Memory::allocate; the former workspace is then kept
  Result<Lease> shared(int device, std::uint64_t stream, std::int64_t size_bytes) {
    Shared dropped;  // destroyed without the lock
    std::shared_ptr<Entry> entry;
    {
      const std::lock_guard lock(mutex_);
      const std::pair key(device, stream);
      if (shared_.size() >= kMaxStreams && shared_.count(key) == 0) dropped.swap(shared_);
      entry = entry_of(shared_[key]);
    }
    return leased(std::move(entry), size_bytes);
  }

  /// The workspace of the calls of `user` in one capture, of exactly `size_bytes` (1 or more). A
  /// graph points to it, so a call of another size gets another one.
  Result<Lease> captured(std::uint64_t user, const StreamNumber& number, std::int64_t size_bytes) {
    std::shared_ptr<Entry> entry;
    {
      const std::lock_guard lock(mutex_);
      entry = entry_of(captured_[{user, number, size_bytes}]);
    }
    return leased(std::move(entry), size_bytes);
  }

  /// Drops all shared workspaces. Those of captured graphs stay.
  void release_shared() {
    Shared dropped;
    const std::lock_guard lock(mutex_);
    dropped.swap(shared_);
  }

  /// Drops the workspaces of all captures of `user`.
  void release_captured(std::uint64_t user) {
    Captured dropped;
    const std::lock_guard lock(mutex_);
    auto at = captured_.lower_bound({user, StreamNumber{}, 0});
    while (at != captured_.end() && std::get<0>(at->first) == user) {
      dropped.insert(captured_.extract(at++));
    }
  }

  /// The bytes of all workspaces.
  std::int64_t size_bytes() const {
    const std::lock_guard lock(mutex_);
    std::int64_t sum = 0;
    for (const auto& [key, entry] : shared_) sum += entry->size_bytes;
    for (const auto& [key, entry] : captured_) sum += entry->size_bytes;
    return sum;
  }

 private:
  // Destroyed streams keep their workspaces until so many streams were seen; then all are dropped.
  static constexpr std::size_t kMaxStreams = 64;

  using Shared = std::map<std::pair<int, std::uint64_t>, std::shared_ptr<Entry>>;
  using Captured =
      std::map<std::tuple<std::uint64_t, StreamNumber, std::int64_t>, std::shared_ptr<Entry>>;

  static std::shared_ptr<Entry> entry_of(std::shared_ptr<Entry>& place) {
    if (place == nullptr) place = std::make_shared<Entry>();
    return place;
  }

  static Result<Lease> leased(std::shared_ptr<Entry> entry, std::int64_t size_bytes) {
    Lease lease(std::move(entry));
    Entry& held = *lease.entry_;
    if (held.memory.data() == nullptr || held.memory.size_bytes() < size_bytes) {
      FDMA_TRY(Memory larger, Memory::allocate(size_bytes));
      held.memory = std::move(larger);
      held.size_bytes = size_bytes;
      held.is_prepared = false;
    }
    lease.is_prepared_ = std::exchange(held.is_prepared, false);
    return Result<Lease>(std::move(lease));
  }

  mutable std::mutex mutex_;
  Shared shared_;      // by device and number of the stream
  Captured captured_;  // by user, capture and size
};

}  // namespace fdma::python
