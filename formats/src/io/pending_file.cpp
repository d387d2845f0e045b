// The temporary lies in the folder of its target, since only then rename() replaces in one step.
// Its name is entered in a fixed table before it is created and leaves the table after the rename,
// so that a signal handler finds every file that could be left behind; the table holds plain bytes
// and lock-free states because a handler may neither allocate nor lock.
#include "pending_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "fdma/io/mask_file.hpp"

namespace fdma {
namespace {

struct Slot {
  std::atomic<int> state{0};  // kFree, kTaken (being written), kActive
  std::atomic<pid_t> owner{0};
  char path[PATH_MAX];
};
constexpr int kFree = 0, kTaken = 1, kActive = 2;
constexpr int kNumSlots = 16;
std::array<Slot, kNumSlots> slots;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

int enter(const std::string& path) {
  if (path.size() >= PATH_MAX) return -1;
  for (int i = 0; i < kNumSlots; ++i) {
    Slot& slot = slots[static_cast<std::size_t>(i)];
    int expected = kFree;
    if (!slot.state.compare_exchange_strong(expected, kTaken)) continue;
    std::memcpy(slot.path, path.c_str(), path.size() + 1);
    slot.owner.store(getpid());
    slot.state.store(kActive);
    return i;
  }
  return -1;
}

void leave(int slot) {
  if (slot >= 0) slots[static_cast<std::size_t>(slot)].state.store(kFree);
}

std::string reason_of(int error_number) { return std::generic_category().message(error_number); }

// The folder part of a path, "." if it has none.
std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

void remove_pending_files() noexcept {
  const int saved = errno;
  for (Slot& slot : slots) {
    if (slot.state.load() == kActive && slot.owner.load() == getpid()) unlink(slot.path);
  }
  errno = saved;
}

namespace io {

Error write_error(const std::string& path, int error_number) {
  return {ErrorCode::io, fmt::format("cannot write '{}': {}", path, reason_of(error_number))};
}

Result<PendingFile> PendingFile::create(const std::string& path) {
  PendingFile file;
  file.target_ = path;
  struct stat target {};
  const bool exists = stat(path.c_str(), &target) == 0;
  if (exists && S_ISDIR(target.st_mode)) return write_error(path, EISDIR);
  if (exists && !S_ISREG(target.st_mode)) {
    return Error{ErrorCode::io, fmt::format("cannot write '{}': not a regular file", path)};
  }
  if (exists) {  // through a symbolic link the file behind it is replaced, not the link
    if (char* resolved = realpath(path.c_str(), nullptr)) {
      file.target_ = resolved;
      free(resolved);
    }
  }
  const std::string folder = folder_of(file.target_);
  const std::string base = file.target_.substr(file.target_.rfind('/') + 1);
  if (base.empty()) return write_error(path, path.empty() ? ENOENT : EISDIR);

  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto now = static_cast<unsigned long long>(
        std::chrono::steady_clock::now().time_since_epoch().count());
    const std::string suffix =
        fmt::format(".fdma-{}-{}-{:x}", getpid(), counter++, now & 0xffffffffu);
    file.temporary_ =
        fmt::format("{}/.{}{}", folder, base.substr(0, NAME_MAX - 1 - suffix.size()), suffix);
    file.slot_ = enter(file.temporary_);
    file.descriptor_ = open(file.temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.descriptor_ >= 0) break;
    const int error_number = errno;
    leave(std::exchange(file.slot_, -1));
    file.temporary_.clear();
    if (error_number != EEXIST) return write_error(path, error_number);
  }
  if (file.descriptor_ < 0) return write_error(path, EEXIST);
  if (exists) fchmod(file.descriptor_, target.st_mode & 07777);  // as far as we may
  return file;
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      slot_(std::exchange(other.slot_, -1)) {}

PendingFile::~PendingFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
  leave(slot_);
}

Result<void> PendingFile::commit() {
  if (fsync(descriptor_) != 0) return write_error(target_, errno);
  // Some file systems report a full disk or quota only here.
  if (close(std::exchange(descriptor_, -1)) != 0) return write_error(target_, errno);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) return write_error(target_, errno);
  temporary_.clear();
  leave(std::exchange(slot_, -1));
  const int folder = open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {  // the file is complete either way; not every file system can sync a folder
    fsync(folder);
    close(folder);
  }
  return {};
}

}  // namespace io
}  // namespace fdma
