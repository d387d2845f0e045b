// The limits of one call of lower (cancellation, the work of loops) and its progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "fdma/base/result.hpp"

namespace fdma {

/// The error of a cancelled lowering.
inline Error interrupted() { return {ErrorCode::io, "interrupted"}; }

/// Every engine asks it in its loops.
///
/// Example     WorkMeter meter(options.max_work, options.is_cancelled);
///             for (..) { if (meter.must_stop()) break; .. }
///             if (meter.has_stopped()) return meter.error();
/// Unit        an evaluation: one operation in the body of a loop (any, all), for one cell, query
///             row or key, and for one value of the loop's variable; work outside loops does not
///             count, because the size of the text and of the mask bounds it
/// Threads     any thread may ask and spend; the caller's function is called from that thread
class WorkMeter {
 public:
  /// `max_work` 0: no limit. `is_cancelled` may be empty.
  explicit WorkMeter(std::int64_t max_work = 0, std::function<bool()> is_cancelled = {})
      : max_work_(max_work), is_cancelled_(std::move(is_cancelled)) {}
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;

  /// Asks whether the caller cancelled. True once anything has stopped the work.
  bool must_stop() {
    if (!has_stopped() && is_cancelled_ && is_cancelled_()) stop(State::cancelled);
    return has_stopped();
  }
  bool has_stopped() const { return state_.load(std::memory_order_relaxed) != State::going; }

  /// Counts evaluations of a loop of `turns` turns. False if the work must stop.
  bool spend(std::int64_t evaluations, std::int64_t turns);
  /// Stops if fewer than `evaluations` are left, which a loop of `turns` turns is about to take.
  bool expect(double evaluations, std::int64_t turns);

  /// Why the work stopped.
  Error error() const;

  /// Calls on_progress(done, total) whenever tile rows are added. Set before the work begins.
  void report_progress(std::int64_t total_tile_rows,
                       std::function<void(std::int64_t, std::int64_t)> on_progress) {
    total_tile_rows_ = total_tile_rows;
    on_progress_ = std::move(on_progress);
  }
  /// Counts tile rows that are done. A thread that comes while another one reports does not wait.
  void add_tile_rows(std::int64_t count);

 private:
  enum class State : std::uint8_t { going, cancelled, exhausted };
  void stop(State state);
  void exhaust(std::int64_t turns);

  const std::int64_t max_work_;
  const std::function<bool()> is_cancelled_;
  std::atomic<std::int64_t> spent_{0};
  std::atomic<State> state_{State::going};
  std::atomic<std::int64_t> turns_{0};  // turns of the loop at which the work ended
  std::int64_t total_tile_rows_ = 0;
  std::function<void(std::int64_t, std::int64_t)> on_progress_;
  std::atomic<std::int64_t> num_tile_rows_done_{0};
  std::mutex progress_mutex_;
};

}  // namespace fdma
