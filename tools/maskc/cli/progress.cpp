#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "cli/number_text.hpp"

namespace fdma::maskc {
namespace {

std::mutex steps_mutex;
std::vector<const std::string*> steps;  // guarded by steps_mutex

}  // namespace

Step::Step(std::string what) : what_(std::move(what)) {
  const std::lock_guard lock(steps_mutex);
  steps.push_back(&what_);
}

Step::~Step() {
  const std::lock_guard lock(steps_mutex);
  std::erase(steps, &what_);
}

std::string Step::current() {
  const std::lock_guard lock(steps_mutex);
  return steps.empty() ? std::string() : *steps.back();
}

std::string progress_line(const std::string& what, const std::string& unit, std::int64_t done,
                          std::int64_t total, double seconds) {
  constexpr int kBarWidth = 30;
  const double fraction =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 0.0;
  const int filled = static_cast<int>(fraction * kBarWidth);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0.0;
  const double left = fraction > 0 ? seconds * (1 - fraction) / fraction : 0.0;
  const std::string rate_text =
      unit == "B" ? fmt::format("{}/s", bytes_text(static_cast<std::int64_t>(rate)))
                  : fmt::format("{} {}/s", count_text(static_cast<std::int64_t>(rate)), unit);
  return fmt::format("{} [{}{}] {:3.0f} %  {}  {} left", what,
                     std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(kBarWidth - filled), '.'), 100 * fraction,
                     rate_text, duration_text(left));
}

Progress::Progress(std::string what, std::string unit, bool quiet)
    : what_(std::move(what)),
      step_(what_),
      unit_(std::move(unit)),
      is_shown_(!quiet && isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (has_printed_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(std::int64_t done, std::int64_t total) {
  if (!is_shown_) return;
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> elapsed = now - start_;
  if (elapsed.count() < 0.5 || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  has_printed_ = true;
  const std::string line = progress_line(what_, unit_, done, total, elapsed.count());
  std::fputs(fmt::format("\r\x1b[K{}", line).c_str(), stderr);
  std::fflush(stderr);
}

Waiting::Waiting(std::string what, bool quiet) : step_(what) {
  if (quiet || isatty(STDERR_FILENO) == 0) return;
  thread_ = std::thread([this, text = std::move(what)] {
    bool has_printed = false;
    std::unique_lock lock(mutex_);
    for (int seconds = 1;
         !ended_.wait_for(lock, std::chrono::seconds(1), [&] { return has_ended_; }); ++seconds) {
      has_printed = true;
      std::fputs(fmt::format("\r\x1b[K{}  {}", text, duration_text(seconds)).c_str(), stderr);
      std::fflush(stderr);
    }
    if (has_printed) std::fputs("\r\x1b[K", stderr);
  });
}

Waiting::~Waiting() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

}  // namespace fdma::maskc
