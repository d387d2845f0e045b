// Interruption of long work by Ctrl-C or by a time limit. A call that has released the GIL learns
// from it that it has to stop.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace fdma::python {

/// Tells whether, since its construction, a signal handler has raised an exception or the time
/// limit has passed.
///
/// Example     const Interruption interruption;
///             work({.is_cancelled = [&] { return interruption.is_requested(); }});   // no GIL
///             interruption.rethrow();                                                // GIL
/// Threads     any thread may call is_requested; in the thread that made this object, the call also
///             looks for signals, at most every 20 ms, and runs their handlers
class Interruption {
 public:
  Interruption() = default;
  /// With a time limit of `seconds` seconds.
  explicit Interruption(double seconds)
      : seconds_(seconds),
        end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(seconds))) {}

  /// Call it without the GIL.
  bool is_requested() const;
  /// Throws the handler's exception, KeyboardInterrupt for instance, or TimeoutError. Does nothing
  /// if neither is due. Call it with the GIL.
  void rethrow() const;

 private:
  static constexpr std::chrono::milliseconds kBetweenLooks{20};

  double seconds_ = 0;
  std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::time_point::max();
  std::thread::id maker_ = std::this_thread::get_id();
  mutable std::chrono::steady_clock::time_point next_look_ =
      std::chrono::steady_clock::now() + kBetweenLooks;
  mutable std::atomic<bool> has_raised_{false};
  mutable std::atomic<bool> is_over_{false};
};

}  // namespace fdma::python
