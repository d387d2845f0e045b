// What one call of lower may still do: whether it was cancelled, and what the loops have cost.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "fdma/base/result.hpp"

namespace fdma {

/// What a lowering that was cancelled ends with.
inline Error interrupted() { return {ErrorCode::io, "interrupted"}; }

/// Asked by every engine in its loops.
///
/// Example     WorkMeter meter(options.max_work, options.is_cancelled);
///             for (..) { if (meter.must_stop()) break; .. }   if (meter.has_stopped()) return
///             meter.error();
/// Unit        an evaluation: one operation in the body of a loop (any, all), for one cell, query
///             row or key, and for one value of the loop's variable. What is not in a loop costs
///             nothing here: it is bounded by the size of the text and of the mask.
/// Threads     any may ask and spend; the caller's function is asked as it comes
class WorkMeter {
 public:
  /// `max_work` 0: no limit. `is_cancelled` may be empty.
  explicit WorkMeter(std::int64_t max_work = 0, std::function<bool()> is_cancelled = {})
      : max_work_(max_work), is_cancelled_(std::move(is_cancelled)) {}
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;

  /// Asks whether the caller cancelled; true from when anything stopped the work.
  bool must_stop() {
    if (!has_stopped() && is_cancelled_ && is_cancelled_()) stop(State::cancelled);
    return has_stopped();
  }
  bool has_stopped() const { return state_.load(std::memory_order_relaxed) != State::going; }

  /// Counts evaluations of a loop with so many turns; false if the work is to stop.
  bool spend(std::int64_t evaluations, std::int64_t turns);
  /// Stops if `evaluations` more, which a loop of so many turns is about to cost, are not left.
  bool expect(double evaluations, std::int64_t turns);

  /// Why the work stopped.
  Error error() const;

 private:
  enum class State : std::uint8_t { going, cancelled, exhausted };
  void stop(State state);
  void exhaust(std::int64_t turns);

  const std::int64_t max_work_;
  const std::function<bool()> is_cancelled_;
  std::atomic<std::int64_t> spent_{0};
  std::atomic<State> state_{State::going};
  std::atomic<std::int64_t> turns_{0};  // of the loop at which the work ended
};

}  // namespace fdma
