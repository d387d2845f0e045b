// Output files that appear complete or not at all, whatever ends the process.
//
// Method. A result is written into a fresh hidden folder beside its destination and moved over by
// one rename. SIGINT, SIGTERM and SIGHUP are blocked in every thread and taken by one thread that
// waits for them: it removes the hidden folder and ends the process with status 130 at once,
// however deep in a library the other threads are. A mutex orders that against the rename, so that
// a file is either there whole or never was. (kill -9 leaves the hidden folder behind, never a
// partial file.)
#pragma once

#include <string>

#include "outcome.hpp"

namespace fdma::maskc {

/// Blocks the signals and starts the waiting thread; call once, before any other thread exists.
/// Signals that are ignored on entry (nohup) stay ignored. `verb` names the tool in the message.
void start_interrupt_handling(const std::string& verb);

/// A file in the making.
///
/// Example     FDMA_TRY(StagedFile file, StagedFile::create("out.h5"));
///             FDMA_TRY_VOID(write_masks(file.path(), masks)); return file.commit();
/// Invariants  at most one at a time in the process
/// Errors      file: the folder is absent or not writable, the destination is no regular file
class StagedFile {
 public:
  static Outcome<StagedFile> create(const std::string& destination);
  StagedFile(StagedFile&& other) noexcept;
  StagedFile& operator=(StagedFile&&) = delete;
  /// Removes what was not committed.
  ~StagedFile();

  /// Where to write.
  const std::string& path() const { return path_; }
  /// Makes the file durable and visible at the destination.
  Status commit();
  /// `message` with the staging path replaced by the destination.
  std::string with_destination(std::string message) const;

 private:
  StagedFile(std::string destination, std::string folder, std::string path);
  std::string destination_;
  std::string folder_;  // empty once committed or moved from
  std::string path_;
};

}  // namespace fdma::maskc
