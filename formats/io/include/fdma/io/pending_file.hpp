// A file that appears under its name only when it is complete.
#pragma once

#include <string>

#include "fdma/base/result.hpp"

namespace fdma {

/// A temporary file beside its destination. commit() syncs it and moves it into place; without
/// commit the destructor removes it, and remove_pending_files() or stop_writing() on a signal.
///
/// A destination that is a symbolic link keeps being one: the file behind it is written, whether it
/// is there yet or not. A file that takes the place of another has its mode, owner and group as far
/// as this process may set them, and never lets anybody read who could not before; a new one has
/// what the umask leaves.
///
/// Example     FDMA_TRY(PendingFile file, PendingFile::create("out.svg"));
///             write(file.descriptor(), ..); FDMA_TRY_VOID(file.commit());
/// Errors      io, with the reason of the operating system: the folder is absent or not writable,
///             the destination is no regular file, links that lead in a circle; the destination
///             itself never changes before commit
class PendingFile {
 public:
  static Result<PendingFile> create(const std::string& path);
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  ~PendingFile();

  int descriptor() const { return descriptor_; }
  /// Where the file lies until commit, for those who write by name.
  const std::string& temporary_path() const { return temporary_; }
  /// `message` with the temporary path replaced by the path that create was given.
  std::string with_destination(std::string message) const;

  Result<void> commit();
  /// As commit if there is still no file at the destination; false, and nothing changes, if another
  /// program has put one there. (Where a file system can do neither that in one step, a file
  /// that appears in the same instant is replaced.)
  Result<bool> commit_if_new();

 private:
  PendingFile() = default;
  Result<bool> move(bool only_if_new);

  std::string path_;       // as create was given it
  std::string target_;     // where the file will lie, links resolved
  std::string temporary_;  // where it lies now; empty once moved
  int descriptor_ = -1;
  int slot_ = -1;
};

/// Removes the temporary files of writes that are under way in this process: for a signal handler
/// that is about to end it. Async-signal-safe; a write that goes on all the same fails to rename.
void remove_pending_files() noexcept;

/// For a thread that is to end the process because of a signal: true, and from then on no file of
/// this process is created or moved into place (whoever tries waits for ever), and temporary files
/// are gone. False, and nothing changes, if this process has put a file in place already: its work
/// is done, and the exit status should say so. Not for signal handlers.
bool stop_writing();

}  // namespace fdma
