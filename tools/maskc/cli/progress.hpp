// Progress on standard error, shown only on a terminal: the current step, a bar, a waiting clock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace fdma::maskc {

/// The step that the process is at while this object lives: "writing out.h5". Steps nest.
class Step {
 public:
  explicit Step(std::string what);
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step();
  /// The innermost step of any thread; empty if there is none.
  static std::string current();

 private:
  std::string what_;
};

/// Shows the progress of long work, its rate and the time left. The bar appears only if standard
/// error is a terminal and the work has lasted half a second; it erases itself at the end.
///
/// Example     Progress bar("reading", "B", quiet); bar.update(done, total);
/// Cost        a clock read per update; at most ten lines printed a second
class Progress {
 public:
  /// `unit`: "B" prints binary sizes; any other word prints plain counts.
  Progress(std::string what, std::string unit, bool quiet);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void update(std::int64_t done, std::int64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  Step step_;
  std::string unit_;
  bool is_shown_;
  bool has_printed_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

/// Says that work without a measure of progress goes on, and for how long: "lowering  12 s". Like
/// Progress, it prints only on a terminal. A thread of its own prints, since the work blocks the
/// calling thread.
///
/// Example     { Waiting waiting("lowering", quiet); result = lower(ir); }
class Waiting {
 public:
  Waiting(std::string what, bool quiet);
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting();

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  Step step_;
  std::thread thread_;
};

/// Both: a clock until the work first says how far it is, then a bar.
///
/// Example     WaitingProgress bar("compiling", "tile rows", quiet);
///             options.on_progress = bar.callback();
/// Threads     any thread may call update, one at a time
class WaitingProgress {
 public:
  WaitingProgress(const std::string& what, std::string unit, bool quiet)
      : progress_(what, std::move(unit), quiet), waiting_(std::in_place, what, quiet) {}

  void update(std::int64_t done, std::int64_t total) {
    waiting_.reset();
    progress_.update(done, total);
  }
  std::function<void(std::int64_t, std::int64_t)> callback() {
    return [this](std::int64_t done, std::int64_t total) { update(done, total); };
  }

 private:
  Progress progress_;
  std::optional<Waiting> waiting_;
};

/// The bar's line, without control characters: "reading [#####.....] 50 %  1.2 GiB/s  3 s left".
std::string progress_line(const std::string& what, const std::string& unit, std::int64_t done,
                          std::int64_t total, double seconds);

}  // namespace fdma::maskc
