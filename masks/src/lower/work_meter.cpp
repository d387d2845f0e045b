#include "lower/work_meter.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fdma/masks/lower.hpp"

namespace fdma {

void WorkMeter::stop(State state) {
  State before = State::going;
  state_.compare_exchange_strong(before, state);
}

void WorkMeter::exhaust(std::int64_t turns) {
  std::int64_t none = 0;
  turns_.compare_exchange_strong(none, turns);
  stop(State::exhausted);
}

bool WorkMeter::spend(std::int64_t evaluations, std::int64_t turns) {
  const std::int64_t spent = spent_.fetch_add(evaluations, std::memory_order_relaxed) + evaluations;
  if (max_work_ > 0 && spent > max_work_) exhaust(turns);
  return !must_stop();
}

bool WorkMeter::expect(double evaluations, std::int64_t turns) {
  if (max_work_ > 0 &&
      evaluations > static_cast<double>(max_work_ - spent_.load(std::memory_order_relaxed))) {
    exhaust(turns);
  }
  return !has_stopped();
}

void WorkMeter::add_tile_rows(std::int64_t count) {
  if (!on_progress_) return;
  num_tile_rows_done_.fetch_add(count);
  const std::unique_lock lock(progress_mutex_, std::try_to_lock);
  if (lock.owns_lock()) on_progress_(num_tile_rows_done_.load(), total_tile_rows_);
}

Error WorkMeter::error() const {
  if (state_.load() == State::cancelled) return interrupted();
  return {
      ErrorCode::unsupported,
      fmt::format("any / all: a loop of {} turns, and what else the loops of this mask do, takes "
                  "more than {} evaluations (max_work; one operation of a loop's body for one "
                  "cell and one turn counts as one). Shorten the loop, or put a table in its "
                  "place; a larger max_work (--max-work; 0: no limit) lets it run, best with a "
                  "timeout",
                  turns_.load(), max_work_)};
}

}  // namespace fdma
