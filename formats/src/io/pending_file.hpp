// A file that appears under its name only when it is complete.
#pragma once

#include <string>

#include "fdma/formats/result.hpp"

namespace fdma::io {

/// A temporary file beside `path`. commit() syncs it and moves it into place; without commit the
/// destructor removes it, and remove_pending_files() removes it on a signal.
///
/// Errors      io, with the reason of the operating system; `path` itself never changes before
/// commit
class PendingFile {
 public:
  static Result<PendingFile> create(const std::string& path);
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  ~PendingFile();

  int descriptor() const { return descriptor_; }
  Result<void> commit();

 private:
  PendingFile() = default;

  std::string target_;     // where the file will lie, links resolved
  std::string temporary_;  // where it lies now; empty once moved
  int descriptor_ = -1;
  int slot_ = -1;
};

/// "cannot write 'out.h5': No space left on device"
Error write_error(const std::string& path, int error_number);

}  // namespace fdma::io
