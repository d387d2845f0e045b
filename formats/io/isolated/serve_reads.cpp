// The process that reads. It takes requests from its socket until the other end closes, and calls
// the ordinary functions of fdma::io under limits.
//
// CPU time is limited from one sign of progress to the next: the kernel's limit lies a number of
// seconds ahead and is moved on with every panel that was read. Long work goes on, an endless loop
// is ended. Memory is limited as RLIMIT_DATA, counted from what the process has when the request
// comes, because address space alone (thread stacks, arenas, sanitizers) costs nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>

#include "fdma/io/file_contents.hpp"
#include "fdma/io/isolated_reader.hpp"
#include "fdma/io/mask_file.hpp"
#include "io/isolated/child_process.hpp"
#include "io/isolated/mask_message.hpp"
#include "io/isolated/program.hpp"
#include "io/isolated/protocol.hpp"
#include "io/isolated/tensor_message.hpp"

namespace fdma {
namespace io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kExitUsage = 2;
constexpr std::size_t kMaxPathBytes = std::size_t{1} << 20;

void set_soft_limit(int resource, rlim_t value) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return;
  limit.rlim_cur = std::min(value, limit.rlim_max);
  setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

// The limits of every request. A failure leaves the process less confined, not wrong.
void confine() {
  if (const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); file >= 0) {
    [[maybe_unused]] const ssize_t written = write(file, "500", 3);
    close(file);
  }
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  setrlimit(RLIMIT_FSIZE, &none);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

void allow_cpu_seconds(std::int64_t seconds) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const std::int64_t used = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + 1;
  set_soft_limit(RLIMIT_CPU, static_cast<rlim_t>(used + seconds));
}

void allow_memory(std::int64_t bytes) {
  std::int64_t used = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "re"); file != nullptr) {
    long long size = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
    if (std::fscanf(file, "%lld %lld %lld %lld %lld %lld", &size, &resident, &shared, &text,
                    &library, &data) == 6) {
      used = data * sysconf(_SC_PAGESIZE);
    }
    std::fclose(file);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  set_soft_limit(RLIMIT_DATA, static_cast<rlim_t>(bytes > kMost - used ? kMost : used + bytes));
}

bool receive_all(int socket, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t count = recv(socket, at, bytes, MSG_WAITALL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

class Server {
 public:
  explicit Server(int socket)
      : in_([socket](void* data, std::size_t bytes) { return receive_all(socket, data, bytes); }),
        out_([socket](const void* data, std::size_t bytes) {
          return send_all(socket, data, bytes);
        }) {}

  /// Serves one request. False: there are no more.
  Result<bool> serve_one() {
    in_.begin(kMaxSmallMessage);
    const Result<std::uint64_t> kind = in_.number(kLastRequest);
    if (!kind && in_.has_ended()) return false;
    if (!kind) return kind.error();
    FDMA_TRY(const std::string path, in_.text(kMaxPathBytes));
    FDMA_TRY(const std::string name, in_.text(kMaxPathBytes));
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    FDMA_TRY(const std::int64_t memory_bytes, in_.integer(1, kMost));
    FDMA_TRY(cpu_seconds_, in_.integer(1, kMost / 2));
    DenseReadOptions options;
    if (static_cast<Request>(*kind) == Request::dense_mask) {
      FDMA_TRY(options, read_dense_options_message(in_));
      options.progress = [this](std::int64_t done, std::int64_t total) { progress(done, total); };
    }
    TensorSpec spec;
    if (static_cast<Request>(*kind) == Request::tensor) {
      FDMA_TRY(spec, read_spec_message(in_));
    }
    TableCast cast = TableCast::none;
    if (static_cast<Request>(*kind) == Request::table) {
      FDMA_TRY(const std::uint64_t number,
               in_.number(static_cast<std::uint64_t>(TableCast::scores)));
      cast = static_cast<TableCast>(number);
    }
    out_.number(static_cast<std::uint64_t>(Answer::started));
    if (!out_.flush()) return false;
    allow_memory(memory_bytes);
    allow_cpu_seconds(cpu_seconds_);
    try {
      answer(static_cast<Request>(*kind), path, name, options, spec, cast);
    } catch (const std::bad_alloc&) {
      send_error({ErrorCode::out_of_memory, fmt::format("out of memory reading '{}'", path)});
    } catch (const std::exception& error) {
      send_error({ErrorCode::internal, fmt::format("reading '{}': {}", path, error.what())});
    }
    return out_.flush();
  }

 private:
  void answer(Request request, const std::string& path, const std::string& name,
              const DenseReadOptions& options, const TensorSpec& spec, TableCast cast) {
    switch (request) {
      case Request::dense_mask:
        return send(read_dense_mask(path, name, options));
      case Request::table:
        return send(read_table(path, name, cast));
      case Request::interop_group:
        return send(read_interop_group(path, name));
      case Request::mask_names:
        return send(list_masks(path));
      case Request::mask:
        return send(read_mask(path, name));
      case Request::object:
        return send(has_object(path, name));
      case Request::tensor_spec:
        return send(describe_tensor(path, name));
      case Request::tensor:
        return send(read_tensor(path, name, spec));
      case Request::contents:
        return send(list_datasets(path));
    }
  }

  template <class T>
  void send(Result<T> result) {
    if (!result) return send_error(result.error());
    allow_cpu_seconds(cpu_seconds_);
    out_.number(static_cast<std::uint64_t>(Answer::result));
    write_message(out_, *std::move(result));
  }

  void send_error(const Error& error) {
    out_.number(static_cast<std::uint64_t>(Answer::error));
    write_message(out_, error);
  }

  void progress(std::int64_t done, std::int64_t total) {
    const Clock::time_point now = Clock::now();
    if (done != total && now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    allow_cpu_seconds(cpu_seconds_);
    out_.number(static_cast<std::uint64_t>(Answer::progress));
    out_.integer(done);
    out_.integer(total);
    // There is nobody left to read for.
    if (!out_.flush()) _exit(0);
  }

  MessageReader in_;
  MessageWriter out_;
  std::int64_t cpu_seconds_ = 1;
  Clock::time_point last_{};
};

bool is_socket(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
}

bool& program_serves() {
  static bool serves = false;
  return serves;
}

}  // namespace

bool this_program_serves() { return program_serves(); }

}  // namespace io

std::optional<int> serve_isolated_reads(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], io::kServeArgument) != 0) {
    io::program_serves() = true;
    return std::nullopt;
  }
  constexpr int kSocket = io::ChildProcess::kChildSocket;
  // The parent may have ended before the request for this signal took effect.
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (!io::is_socket(kSocket) || std::strtol(argv[2], nullptr, 10) != getppid()) {
    return io::kExitUsage;
  }
  io::confine();
  io::Server server(kSocket);
  for (;;) {
    const Result<bool> served = server.serve_one();
    // Exit handlers of libraries that met a damaged file do nothing that matters.
    if (!served || !*served) _exit(served ? 0 : io::kExitUsage);
  }
}

}  // namespace fdma
