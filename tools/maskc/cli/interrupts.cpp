#include "cli/interrupts.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>

#include "cli/failure_output.hpp"
#include "cli/outcome.hpp"
#include "cli/progress.hpp"
#include "fdma/io/pending_file.hpp"

namespace fdma::maskc {
namespace {

[[noreturn]] void end(const std::string& verb, std::string_view what, ExitCode code) {
  const std::string message = fmt::format("{}fdma-maskc {}: {}\n",
                                          isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "", verb, what);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message.data(), message.size());
  _exit(static_cast<int>(code));
}

void wait_for(const sigset_t& signals) {
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
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
  // A write beyond the file size limit shall fail as an ordinary write error (EFBIG) and not end
  // the process.
  signal(SIGXFSZ, SIG_IGN);
  std::thread([signals, verb] {
    wait_for(signals);
    if (stop_writing()) end(verb, "interrupted", ExitCode::interrupted);
    wait_for(signals);
    end(verb, "error: standard output: interrupted; the output file is in place", ExitCode::file);
  }).detach();
}

void start_time_limit(const std::string& verb, double seconds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::thread([verb, seconds, limit] {
    std::this_thread::sleep_until(limit);
    const std::string step = Step::current();
    if (!stop_writing()) return;
    if (isatty(STDERR_FILENO) != 0) std::fputs("\r\x1b[K", stderr);
    _exit(report_failure(
        verb, {ExitCode::unsupported, fmt::format("stopped after {:g} s (--timeout){}{}", seconds,
                                                  step.empty() ? "" : " while ", step)}));
  }).detach();
}

}  // namespace fdma::maskc
