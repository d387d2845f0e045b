#include "io/isolated/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

extern "C" char** environ;

namespace fdma::io {
namespace {

Error refused(const char* what, int error_number) {
  return {ErrorCode::io, fmt::format("cannot start a process to read in: {}: {}", what,
                                     std::generic_category().message(error_number))};
}

// The arguments of posix_spawn, freed at the end. The first error is kept.
class SpawnSettings {
 public:
  SpawnSettings() {
    keep(posix_spawn_file_actions_init(&actions));
    keep(posix_spawnattr_init(&attributes));
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  void keep(int result) {
    if (error == 0) error = result;
  }

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  int error = 0;
};

}  // namespace

Result<ChildProcess> ChildProcess::start(const std::string& program,
                                         const std::vector<std::string>& arguments,
                                         bool shows_messages) {
  int sockets[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return refused("socketpair", errno);
  }
  SpawnSettings settings;
  auto* actions = &settings.actions;
  // The socket comes first, because its number may be one of those that are replaced afterwards.
  settings.keep(posix_spawn_file_actions_adddup2(actions, sockets[1], kChildSocket));
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (standard == STDERR_FILENO && shows_messages) continue;
    settings.keep(posix_spawn_file_actions_addopen(actions, standard, "/dev/null", O_RDWR, 0));
  }
  settings.keep(posix_spawn_file_actions_addclosefrom_np(actions, kChildSocket + 1));
  sigset_t blocked, defaults;
  sigemptyset(&blocked);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&blocked, number);
  sigfillset(&defaults);
  settings.keep(posix_spawnattr_setsigmask(&settings.attributes, &blocked));
  settings.keep(posix_spawnattr_setsigdefault(&settings.attributes, &defaults));
  settings.keep(posix_spawnattr_setflags(&settings.attributes,
                                         POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  std::vector<char*> words;  // posix_spawn takes pointers without const, and writes nothing
  words.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  pid_t pid = -1;
  if (settings.error == 0) {
    settings.keep(
        posix_spawn(&pid, program.c_str(), actions, &settings.attributes, words.data(), environ));
  }
  close(sockets[1]);
  if (settings.error != 0) {
    close(sockets[0]);
    return refused(program.c_str(), settings.error);
  }
  return ChildProcess(pid, sockets[0]);
}

ChildProcess::~ChildProcess() {
  if (pid_ >= 0) end();
  if (socket_ >= 0) close(socket_);
}

// A process that is already ending by itself keeps its reason, whatever signal it then gets.
ProcessEnd ChildProcess::end() {
  const pid_t pid = std::exchange(pid_, -1);
  if (pid < 0) return {0, -1};
  kill(pid, SIGKILL);
  int status = 0;
  pid_t reaped = -1;
  while ((reaped = waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
  }
  if (reaped != pid) return {0, -1};  // the program ignores SIGCHLD: the system keeps no status
  if (WIFSIGNALED(status)) return {WTERMSIG(status), 0};
  return {0, WEXITSTATUS(status)};
}

bool send_all(int socket, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t count = send(socket, at, bytes, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace fdma::io
