// A child process with one socket to it, and the way it ended.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "fdma/base/result.hpp"

namespace fdma::io {

/// How a process ended.
struct ProcessEnd {
  int signal = 0;     ///< the signal that killed it, or 0
  int exit_code = 0;  ///< its exit code if it ended by itself; -1 if the system does not say
};

/// A running child. Its descriptor kChildSocket is the other end of socket(); its other descriptors
/// are the standard ones only. Every signal has its default action, and signals that a terminal
/// sends to all processes are blocked, because this process decides when the child ends.
///
/// Owner       owns process and socket: the destructor kills and reaps
class ChildProcess {
 public:
  static constexpr int kChildSocket = 3;

  /// Starts `program` by posix_spawn: no code of this process runs in the child, so threads and
  /// locks here do not matter. Standard input and output are /dev/null; so is standard error unless
  /// `shows_messages`. Errors: io (the system's reason).
  static Result<ChildProcess> start(const std::string& program,
                                    const std::vector<std::string>& arguments, bool shows_messages);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), socket_(std::exchange(other.socket_, -1)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~ChildProcess();

  int socket() const { return socket_; }
  /// Kills the child if it still runs, and returns how it ended.
  ProcessEnd end();

 private:
  ChildProcess(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  pid_t pid_ = -1;
  int socket_ = -1;
};

/// Sends all of the bytes; false if it cannot. Raises no SIGPIPE.
bool send_all(int socket, const void* data, std::size_t bytes);

}  // namespace fdma::io
