// Ctrl-C during long work: how a call without the GIL learns that it is to stop.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace fdma::python {

/// Whether a handler of a signal has raised an exception since this was made.
///
/// Example     const Interruption interruption;
///             work({.is_cancelled = [&] { return interruption.is_requested(); }});   // no GIL
///             interruption.rethrow();                                                // GIL
/// Threads     is_requested may be asked by any; the one that made this looks for signals, at most
///             every 20 ms, and runs their handlers
class Interruption {
 public:
  /// Without the GIL.
  bool is_requested() const;
  /// With the GIL: throws the handler's exception, KeyboardInterrupt for instance.
  void rethrow() const;

 private:
  static constexpr std::chrono::milliseconds kBetweenLooks{20};

  std::thread::id maker_ = std::this_thread::get_id();
  mutable std::chrono::steady_clock::time_point next_look_ =
      std::chrono::steady_clock::now() + kBetweenLooks;
  mutable std::atomic<bool> has_raised_{false};
};

}  // namespace fdma::python
