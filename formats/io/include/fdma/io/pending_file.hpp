// A file that appears under its name only when it is complete.
#pragma once

#include <string>

#include "fdma/base/result.hpp"

namespace fdma {

/// A temporary file beside its destination. commit() syncs it and moves it into place. Without
/// commit the destructor removes it; on a signal remove_pending_files() or stop_writing() does.
///
/// A destination that is a symbolic link stays one: the file behind it is written, whether it
/// exists yet or not. A file that replaces another gets its mode, owner and group as far as this
/// process may set them, and never becomes readable to anybody who could not read the old one. A
/// new file gets what the umask leaves.
///
/// Example     FDMA_TRY(PendingFile file, PendingFile::create("out.svg"));
///             write(file.descriptor(), ..);
///             FDMA_TRY_VOID(file.commit());
/// Errors      io, with the reason of the operating system: the folder is absent or not writable,
///             the destination is no regular file, links lead in a circle
/// Invariants  the destination never changes before commit
class PendingFile {
 public:
  static Result<PendingFile> create(const std::string& path);
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  ~PendingFile();

  int descriptor() const { return descriptor_; }
  /// The place of the file until commit, for code that writes by name.
  const std::string& temporary_path() const { return temporary_; }
  /// `message` with the temporary path replaced by the path that create was given.
  std::string with_destination(std::string message) const;

  Result<void> commit();
  /// As commit if there is still no file at the destination. Returns false, and changes nothing, if
  /// another program has put one there. Where a file system cannot check and move in one step, a
  /// file that appears in the same instant is replaced.
  Result<bool> commit_if_new();

 private:
  PendingFile() = default;
  Result<bool> move(bool only_if_new);

  std::string path_;       // as given to create
  std::string target_;     // where the file will be, links resolved
  std::string temporary_;  // where it is now; empty once moved
  int descriptor_ = -1;
  int slot_ = -1;
};

/// Removes the temporary files of unfinished writes of this process, for a signal handler that is
/// about to end it. Async-signal-safe. A write that goes on all the same fails to rename.
void remove_pending_files() noexcept;

/// Stops all writes, for a thread that is about to end the process because of a signal. Returns
/// true if this process has put no file in place: temporary files are then gone, and no file is
/// created or moved into place any more (a thread that tries waits for ever). Returns false, and
/// changes nothing, if it has put a file in place already: its work is done, and the exit status
/// should say so. Not for signal handlers.
bool stop_writing();

}  // namespace fdma
