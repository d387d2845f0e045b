// The temporary file lies in the folder of its target, since only then rename() replaces in one
// step. Its name is entered in a fixed table before it is created, and leaves the table after the
// rename, so that a signal handler finds every file that could be left behind. The table holds
// plain bytes and lock-free states because a handler may neither allocate nor lock.
#include "fdma/io/pending_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include "io/hdf5/write_error.hpp"

namespace fdma {
namespace {

using io::write_error;

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

// Held while a temporary file is made and while one is moved into place, so that stop_writing()
// finds neither half done.
std::mutex moves_mutex;
pid_t moved_by = 0;  // the process that has put a file in place; guarded by moves_mutex

// The folder part of a path, "." if it has none.
std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The target of `path`. Links are followed one by one, because realpath fails for a link whose
// target does not exist yet.
Result<std::string> follow_links(const std::string& path) {
  constexpr int kMaxLinks = 40;
  std::string target = path;
  for (int i = 0; i < kMaxLinks; ++i) {
    struct stat status {};
    if (lstat(target.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return target;
    std::array<char, PATH_MAX> text{};
    const ssize_t size = readlink(target.c_str(), text.data(), text.size());
    if (size < 0) return write_error(path, errno);
    std::string next(text.data(), static_cast<std::size_t>(size));
    const std::size_t slash = target.rfind('/');
    if (!next.starts_with('/') && slash != std::string::npos) {
      next.insert(0, target, 0, slash + 1);
    }
    target = std::move(next);
  }
  return write_error(path, ELOOP);
}

// Takes over owner, group and mode of the file that is replaced. Where the group cannot be kept,
// the new group gets no more rights than everybody.
void take_permissions(int descriptor, const struct stat& replaced) {
  struct stat created {};
  if (fstat(descriptor, &created) != 0) return;
  mode_t mode = replaced.st_mode & 07777;
  if (created.st_uid != replaced.st_uid &&
      fchown(descriptor, replaced.st_uid, static_cast<gid_t>(-1)) != 0) {
    mode &= static_cast<mode_t>(~S_ISUID);
  }
  if (created.st_gid != replaced.st_gid &&
      fchown(descriptor, static_cast<uid_t>(-1), replaced.st_gid) != 0) {
    mode &= static_cast<mode_t>(~S_ISGID) & (~static_cast<mode_t>(S_IRWXG) | (mode & S_IRWXO) << 3);
  }
  fchmod(descriptor, mode);
}

// 0, or the error number: EEXIST if there is a file at `to`.
int move_if_new(const char* from, const char* to) {
  if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  if (link(from, to) == 0) return unlink(from) == 0 ? 0 : errno;
  if (errno == EEXIST) return EEXIST;
  struct stat status {};
  if (stat(to, &status) == 0) return EEXIST;
  return rename(from, to) == 0 ? 0 : errno;
}

}  // namespace

void remove_pending_files() noexcept {
  const int saved = errno;
  for (Slot& slot : slots) {
    if (slot.state.load() == kActive && slot.owner.load() == getpid()) unlink(slot.path);
  }
  errno = saved;
}

bool stop_writing() {
  std::unique_lock lock(moves_mutex);
  if (moved_by == getpid()) return false;
  remove_pending_files();
  lock.release();  // for ever
  return true;
}

Result<PendingFile> PendingFile::create(const std::string& path) {
  PendingFile file;
  file.path_ = path;
  struct stat target {};
  const bool exists = stat(path.c_str(), &target) == 0;
  if (exists && S_ISDIR(target.st_mode)) return write_error(path, EISDIR);
  if (exists && !S_ISREG(target.st_mode)) {
    return Error{ErrorCode::io, fmt::format("cannot write '{}': not a regular file", path)};
  }
  FDMA_TRY(file.target_, follow_links(path));
  // The name in messages: a link is shown with its target.
  const std::string shown =
      file.target_ == path ? path : fmt::format("{}' -> '{}", path, file.target_);
  const std::string folder = folder_of(file.target_);
  const std::string base = file.target_.substr(file.target_.rfind('/') + 1);
  if (base.empty()) return write_error(shown, path.empty() ? ENOENT : EISDIR);

  static std::atomic<unsigned> counter{0};
  const std::lock_guard lock(moves_mutex);
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto now = static_cast<unsigned long long>(
        std::chrono::steady_clock::now().time_since_epoch().count());
    const std::string suffix =
        fmt::format(".fdma-{}-{}-{:x}", getpid(), counter++, now & 0xffffffffu);
    file.temporary_ =
        fmt::format("{}/.{}{}", folder, base.substr(0, NAME_MAX - 1 - suffix.size()), suffix);
    file.slot_ = enter(file.temporary_);
    // Nobody else may open a private file before it has its mode.
    file.descriptor_ = open(file.temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
                            exists ? S_IRUSR | S_IWUSR : 0666);
    if (file.descriptor_ >= 0) break;
    const int error_number = errno;
    leave(std::exchange(file.slot_, -1));
    file.temporary_.clear();
    if (error_number != EEXIST) return write_error(shown, error_number);
  }
  if (file.descriptor_ < 0) return write_error(shown, EEXIST);
  if (exists) take_permissions(file.descriptor_, target);
  return file;
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      slot_(std::exchange(other.slot_, -1)) {}

PendingFile::~PendingFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
  leave(slot_);
}

std::string PendingFile::with_destination(std::string message) const {
  for (std::size_t at = message.find(temporary_); at != std::string::npos;
       at = message.find(temporary_, at + path_.size())) {
    message.replace(at, temporary_.size(), path_);
  }
  return message;
}

Result<void> PendingFile::commit() {
  FDMA_TRY_VOID(move(false));
  return {};
}

Result<bool> PendingFile::commit_if_new() { return move(true); }

Result<bool> PendingFile::move(bool only_if_new) {
  if (fsync(descriptor_) != 0) return write_error(path_, errno);
  // Some file systems report a full disk or quota only here.
  if (close(std::exchange(descriptor_, -1)) != 0) return write_error(path_, errno);
  {
    const std::lock_guard lock(moves_mutex);
    const int failed = only_if_new ? move_if_new(temporary_.c_str(), target_.c_str())
                       : rename(temporary_.c_str(), target_.c_str()) == 0 ? 0
                                                                          : errno;
    if (failed == EEXIST && only_if_new) return false;
    if (failed != 0) return write_error(path_, failed);
    temporary_.clear();
    leave(std::exchange(slot_, -1));
    moved_by = getpid();
  }
  const int folder = open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {  // the file is complete either way; not every file system can sync a folder
    fsync(folder);
    close(folder);
  }
  return true;
}

}  // namespace fdma
