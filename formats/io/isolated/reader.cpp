// The process that asks.
//
// The child is a new program and not a fork: after fork a process with threads (oneTBB keeps a
// pool) may do next to nothing before exec, and HDF5's state, perhaps damaged by an earlier file,
// would be copied. The connection is a socket and not shared memory: data that is checked here must
// not change afterwards, so it has to be copied anyway, and a copy through a socket runs at memory
// speed.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <new>
#include <thread>

#include "fdma/io/isolated_reader.hpp"
#include "io/hdf5/dataset_storage.hpp"
#include "io/isolated/child_process.hpp"
#include "io/isolated/mask_message.hpp"
#include "io/isolated/program.hpp"
#include "io/isolated/protocol.hpp"
#include "io/isolated/tensor_message.hpp"

namespace fdma {
namespace {

using io::Answer;
using io::ChildProcess;
using io::MessageReader;
using io::MessageWriter;
using io::ProcessEnd;
using io::Request;
using Clock = std::chrono::steady_clock;

constexpr const char* kOwnProgram = "/proc/self/exe";

// Why this side ends a call.
enum class Stop : std::uint8_t { none, cancelled, timed_out };

std::int64_t file_size(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) ? status.st_size : 0;
}

// 1 GiB for the reader itself (slabs, a window of packed rows, HDF5's caches), the memory of its
// threads, and what the file can hold.
std::int64_t default_memory_bytes(std::int64_t file_bytes) {
  constexpr std::int64_t kBase = std::int64_t{1} << 30;
  constexpr std::int64_t kPerThread = std::int64_t{32} << 20;
  const std::int64_t machine =
      std::int64_t{sysconf(_SC_PHYS_PAGES)} * std::int64_t{sysconf(_SC_PAGESIZE)};
  const std::int64_t threads = std::max(1u, std::thread::hardware_concurrency());
  const std::int64_t held =
      file_bytes > machine / io::kMaxCompression ? machine : file_bytes * io::kMaxCompression;
  return std::max(kBase, std::min(machine, kBase + threads * kPerThread + held));
}

std::string signal_text(int number) {
  const char* name = sigabbrev_np(number);
  const char* description = sigdescr_np(number);
  return fmt::format("SIG{}, {}", name != nullptr ? name : fmt::format("{}", number),
                     description != nullptr ? description : "unknown");
}

}  // namespace

// One child at a time, started when there is something to read.
class IsolatedReader::Connection {
 public:
  explicit Connection(IsolationOptions options)
      : options_(std::move(options)),
        in_([this](void* data, std::size_t bytes) { return receive(data, bytes); }) {}

  template <class T>
  Result<T> call(Request request, const std::string& path, const std::string& name,
                 Result<T> (*decode)(MessageReader&), const DenseReadOptions* dense = nullptr,
                 const TensorSpec* spec = nullptr, TableCast cast = TableCast::none) {
    where_ = name.empty() ? fmt::format("'{}'", path) : fmt::format("'{}:{}'", path, name);
    dense_ = dense;
    spec_ = spec;
    cast_ = cast;
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(options_.max_seconds));
    stop_ = Stop::none;
    try {
      FDMA_TRY_VOID(begin(request, path, name));
      for (;;) {
        in_.begin(io::kMaxSmallMessage);
        const Result<std::uint64_t> answer = in_.number(io::kLastAnswer);
        if (!answer) return failure(answer.error());
        switch (static_cast<Answer>(*answer)) {
          case Answer::progress: {
            constexpr std::int64_t kMost = std::int64_t{1} << 62;
            const Result<std::int64_t> done = in_.integer(0, kMost);
            if (!done) return failure(done.error());
            const Result<std::int64_t> total = in_.integer(0, kMost);
            if (!total) return failure(total.error());
            if (dense_ != nullptr && dense_->progress) dense_->progress(*done, *total);
            break;
          }
          case Answer::error: {
            Error error{ErrorCode::internal, {}};
            const Result<void> status = io::read_error_message(in_, error);
            if (!status) return failure(status.error());
            return error;
          }
          case Answer::result: {
            in_.begin(memory_bytes_);
            Result<T> value = decode(in_);
            if (!value) return failure(value.error());
            return value;
          }
          case Answer::started:
            return failure({ErrorCode::corrupt_file, "an answer that was not asked for"});
        }
      }
    } catch (const std::bad_alloc&) {
      child_.reset();
      return Error{ErrorCode::out_of_memory, fmt::format("out of memory reading {}", where_)};
    }
  }

  std::int64_t num_crashes() const { return num_crashes_; }

 private:
  // Sends the request and waits until a child has taken it. A child that waited for it may have
  // ended meanwhile, with the thread that started it; a new child then gets it.
  Result<void> begin(Request request, const std::string& path, const std::string& name) {
    const std::int64_t bytes = file_size(path);
    memory_bytes_ = options_.memory_bytes > 0 ? options_.memory_bytes : default_memory_bytes(bytes);
    cpu_seconds_ = std::max<std::int64_t>(1, options_.cpu_seconds) + bytes / io::kBytesPerSecond;
    if (child_ && path != path_ && ++num_files_ >= options_.files_per_process) child_.reset();
    path_ = path;
    for (;;) {
      const bool is_fresh = !child_;
      if (is_fresh) FDMA_TRY_VOID(start());
      MessageWriter out([this](const void* data, std::size_t count) {
        return io::send_all(child_->socket(), data, count);
      });
      out.number(static_cast<std::uint64_t>(request));
      out.text(path);
      out.text(name);
      out.integer(memory_bytes_);
      out.integer(cpu_seconds_);
      if (request == Request::dense_mask) io::write_message(out, *dense_);
      if (request == Request::tensor) io::write_message(out, *spec_);
      if (request == Request::table) out.number(static_cast<std::uint64_t>(cast_));
      out.flush();
      in_.begin(sizeof(std::uint64_t));
      const Result<std::uint64_t> answer = in_.number(io::kLastAnswer);
      if (answer && static_cast<Answer>(*answer) == Answer::started) return {};
      if (is_fresh || stop_ != Stop::none || answer) {
        return failure(answer ? Error{ErrorCode::corrupt_file, "no sign of a start"}
                              : answer.error());
      }
      child_.reset();
    }
  }

  Result<void> start() {
    if (options_.program.empty() && !io::this_program_serves()) {
      return Error{ErrorCode::unsupported,
                   fmt::format("reading {} in a process of its own: this program does not call "
                               "serve_isolated_reads in its main, and no other was named",
                               where_)};
    }
    const std::string program = options_.program.empty() ? kOwnProgram : options_.program;
    FDMA_TRY(ChildProcess child,
             ChildProcess::start(
                 program, {"fdma-isolated-reader", io::kServeArgument, fmt::format("{}", getpid())},
                 options_.shows_messages));
    child_.emplace(std::move(child));
    num_files_ = 0;
    begin_ = end_ = 0;
    in_ = MessageReader([this](void* data, std::size_t bytes) { return receive(data, bytes); });
    return {};
  }

  // Small reads come from a buffer, large ones go straight to their destination.
  bool receive(void* data, std::size_t bytes) {
    auto* at = static_cast<std::byte*>(data);
    while (bytes > 0) {
      if (begin_ == end_ && bytes < buffer_.size()) {
        begin_ = 0;
        end_ = receive_some(buffer_.data(), buffer_.size());
        if (end_ == 0) return false;
      }
      std::size_t count = std::min(bytes, end_ - begin_);
      if (count > 0) {
        std::memcpy(at, buffer_.data() + begin_, count);
        begin_ += count;
      } else {
        count = receive_some(at, bytes);
        if (count == 0) return false;
      }
      at += count;
      bytes -= count;
    }
    return true;
  }

  // Returns at least one byte, or 0 if the other end is gone or the call is to stop.
  std::size_t receive_some(void* data, std::size_t bytes) {
    const bool is_polled =
        options_.max_seconds > 0 || (dense_ != nullptr && dense_->is_cancelled != nullptr);
    for (;;) {
      if (dense_ != nullptr && dense_->is_cancelled && dense_->is_cancelled()) {
        stop_ = Stop::cancelled;
        return 0;
      }
      if (options_.max_seconds > 0 && Clock::now() > deadline_) {
        stop_ = Stop::timed_out;
        return 0;
      }
      constexpr int kPollMilliseconds = 50;
      pollfd waiting{child_->socket(), POLLIN, 0};
      const int ready = poll(&waiting, 1, is_polled ? kPollMilliseconds : -1);
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      const ssize_t count = recv(child_->socket(), data, bytes, 0);
      if (count < 0 && errno == EINTR) continue;
      return count > 0 ? static_cast<std::size_t>(count) : 0;
    }
  }

  // The error of a call whose answer did not come or was wrong. The child is gone afterwards.
  Error failure(const Error& protocol_error) {
    const bool is_gone = in_.has_ended() && stop_ == Stop::none;
    const ProcessEnd end = child_->end();
    child_.reset();
    if (stop_ == Stop::cancelled) return {ErrorCode::io, fmt::format("{}: interrupted", where_)};
    if (stop_ == Stop::timed_out) {
      return {ErrorCode::corrupt_file,
              fmt::format("{}: reading it took longer than {} s", where_, options_.max_seconds)};
    }
    ++num_crashes_;
    if (!is_gone) {
      return {ErrorCode::corrupt_file,
              fmt::format("{}: the process that read it answered what it may not: {}", where_,
                          protocol_error.message)};
    }
    if (end.signal == SIGXCPU) {
      return {
          ErrorCode::corrupt_file,
          fmt::format("{}: reading it made no progress in {} s of CPU time and was stopped; the "
                      "file is damaged, or made to do this",
                      where_, cpu_seconds_)};
    }
    if (end.signal == SIGKILL) {
      return {ErrorCode::out_of_memory,
              fmt::format("{}: the process that read it was killed, as the system does when memory "
                          "runs out",
                          where_)};
    }
    if (end.signal != 0) {
      return {ErrorCode::corrupt_file,
              fmt::format("{}: reading it crashed the HDF5 library ({}), in a process of its own; "
                          "the file is damaged, or made to do this",
                          where_, signal_text(end.signal))};
    }
    return {ErrorCode::corrupt_file,
            fmt::format("{}: the process that read it ended before it was done (exit code {})",
                        where_, end.exit_code)};
  }

  IsolationOptions options_;
  std::optional<ChildProcess> child_;
  MessageReader in_;
  std::string path_;  // of the last call
  int num_files_ = 0;
  std::int64_t num_crashes_ = 0;

  // The current call:
  std::string where_;
  const DenseReadOptions* dense_ = nullptr;
  const TensorSpec* spec_ = nullptr;
  TableCast cast_ = TableCast::none;
  std::int64_t memory_bytes_ = 0;
  std::int64_t cpu_seconds_ = 0;
  Clock::time_point deadline_{};
  Stop stop_ = Stop::none;
  std::array<std::byte, std::size_t{16} << 10> buffer_{};
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

IsolatedReader::IsolatedReader(IsolationOptions options)
    : connection_(std::make_unique<Connection>(std::move(options))) {}
IsolatedReader::IsolatedReader(IsolatedReader&&) noexcept = default;
IsolatedReader& IsolatedReader::operator=(IsolatedReader&&) noexcept = default;
IsolatedReader::~IsolatedReader() = default;

Result<BlockMask> IsolatedReader::read_dense_mask(const std::string& path,
                                                  const std::string& dataset,
                                                  const DenseReadOptions& options) {
  return connection_->call(Request::dense_mask, path, dataset, io::read_mask_message, &options);
}

Result<OwnedTable> IsolatedReader::read_table(const std::string& path, const std::string& dataset,
                                              TableCast cast) {
  return connection_->call(Request::table, path, dataset, io::read_table_message, nullptr, nullptr,
                           cast);
}

Result<InteropGroup> IsolatedReader::read_interop_group(const std::string& path,
                                                        const std::string& group) {
  return connection_->call(Request::interop_group, path, group, io::read_interop_message);
}

Result<std::vector<std::string>> IsolatedReader::list_masks(const std::string& path) {
  return connection_->call(Request::mask_names, path, {}, io::read_names_message);
}

Result<BlockMask> IsolatedReader::read_mask(const std::string& path, const std::string& name) {
  return connection_->call(Request::mask, path, name, io::read_mask_message);
}

Result<bool> IsolatedReader::has_object(const std::string& path, const std::string& object) {
  return connection_->call(Request::object, path, object, io::read_flag_message);
}

Result<TensorSpec> IsolatedReader::describe_tensor(const std::string& path,
                                                   const std::string& dataset) {
  return connection_->call(Request::tensor_spec, path, dataset, io::read_spec_message);
}

Result<OwnedTensor> IsolatedReader::read_tensor(const std::string& path, const std::string& dataset,
                                                const TensorSpec& expected) {
  Result<OwnedTensor> tensor = connection_->call(Request::tensor, path, dataset,
                                                 io::read_tensor_message, nullptr, &expected);
  if (tensor && !(tensor->spec() == expected)) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("'{}:{}': expected {}, got {}", path, dataset, to_string(expected),
                             to_string(tensor->spec()))};
  }
  return tensor;
}

Result<FileContents> IsolatedReader::list_datasets(const std::string& path) {
  return connection_->call(Request::contents, path, {}, io::read_contents_message);
}

std::int64_t IsolatedReader::num_crashes() const { return connection_->num_crashes(); }

}  // namespace fdma
