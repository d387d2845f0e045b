#include "staged_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

namespace fdma::maskc {
namespace {

namespace fs = std::filesystem;

std::mutex staging_mutex;
std::string staging_folder;  // guarded by staging_mutex

// A thread that still writes may add a file while the folder is being removed: repeat until it is
// gone, after which nothing can be created in it.
void remove_folder(const std::string& folder) {
  std::error_code error;
  for (int attempt = 0; attempt < 100 && fs::exists(folder, error); ++attempt) {
    fs::remove_all(folder, error);
  }
}

[[noreturn]] void end_interrupted(const std::string& verb) {
  staging_mutex.lock();  // never released: the main thread can no longer rename
  if (!staging_folder.empty()) remove_folder(staging_folder);
  const std::string message = fmt::format("{}fdma-maskc {}: interrupted\n",
                                          isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "", verb);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message.data(), message.size());
  _exit(static_cast<int>(ExitCode::interrupted));
}

CommandFailure cannot_write(const std::string& destination, int error) {
  return {ExitCode::file, fmt::format("{}: cannot write: {}", destination, std::strerror(error))};
}

int sync_path(const std::string& path, int flags) {
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = fsync(descriptor) != 0 ? errno : 0;
  close(descriptor);
  return error == EINVAL || error == ENOTSUP ? 0 : error;
}

}  // namespace

void start_interrupt_handling(const std::string& verb) {
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A file size limit is an ordinary write error (EFBIG), not a reason to die.
  signal(SIGXFSZ, SIG_IGN);
  std::thread([signals, verb] {
    int number = 0;
    while (sigwait(&signals, &number) != 0) {
    }
    end_interrupted(verb);
  }).detach();
}

StagedFile::StagedFile(std::string destination, std::string folder, std::string path)
    : destination_(std::move(destination)), folder_(std::move(folder)), path_(std::move(path)) {}

StagedFile::StagedFile(StagedFile&& other) noexcept
    : destination_(std::move(other.destination_)),
      folder_(std::exchange(other.folder_, {})),
      path_(std::move(other.path_)) {}

Outcome<StagedFile> StagedFile::create(const std::string& given) {
  if (given.empty()) return usage_failure("--output: expected a file name, got ''");
  std::error_code error;
  std::string destination = given;
  if (fs::is_symlink(given, error)) {
    const fs::path target = fs::weakly_canonical(given, error);
    if (!error) destination = target.string();
  }
  const fs::file_status status = fs::status(destination, error);
  if (fs::is_directory(status)) return cannot_write(given, EISDIR);
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status)) {
      return CommandFailure{ExitCode::file,
                            fmt::format("{}: cannot write: not a regular file", given)};
    }
    if (access(destination.c_str(), W_OK) != 0) return cannot_write(given, errno);
  }
  const fs::path parent = fs::path(destination).parent_path();
  std::string folder = ((parent.empty() ? fs::path(".") : parent) / ".fdma-maskc-XXXXXX").string();
  const std::string name = fs::path(destination).filename().string();
  if (name.empty()) return cannot_write(given, EISDIR);

  const std::lock_guard lock(staging_mutex);
  if (mkdtemp(folder.data()) == nullptr) return cannot_write(given, errno);
  staging_folder = folder;
  return StagedFile(std::move(destination), folder, (fs::path(folder) / name).string());
}

StagedFile::~StagedFile() {
  if (folder_.empty()) return;
  const std::lock_guard lock(staging_mutex);
  remove_folder(folder_);
  staging_folder.clear();
}

Status StagedFile::commit() {
  if (const int error = sync_path(path_, O_RDONLY)) return cannot_write(destination_, error);
  const std::lock_guard lock(staging_mutex);
  if (rename(path_.c_str(), destination_.c_str()) != 0) return cannot_write(destination_, errno);
  remove_folder(folder_);
  staging_folder.clear();
  folder_.clear();
  const fs::path parent = fs::path(destination_).parent_path();
  sync_path(parent.empty() ? "." : parent.string(), O_RDONLY | O_DIRECTORY);
  return Nothing{};
}

std::string StagedFile::with_destination(std::string message) const {
  for (std::size_t at = message.find(path_); at != std::string::npos;
       at = message.find(path_, at)) {
    message.replace(at, path_.size(), destination_);
    at += destination_.size();
  }
  return message;
}

}  // namespace fdma::maskc
