// The budget of steps of one run of the interval engine; beyond it box form is the better one.
#pragma once

#include <cstddef>

#include "lower/work_meter.hpp"

namespace fdma {

/// Counts steps: pieces visited, bounds merged, intervals stored.
///
/// Example     if (!effort.spend(left.size() + right.size())) return std::nullopt;
/// Cost        one addition; every kStepsBetweenQuestions steps (some milliseconds) the meter is
///             asked
class IntervalEffort {
 public:
  /// Some ten seconds. Masks that suit interval form take a thousandth of it.
  static constexpr std::size_t kMaxSteps = std::size_t{1} << 31;
  static constexpr std::size_t kStepsBetweenQuestions = std::size_t{1} << 20;

  /// `meter` may be null; then nothing is asked.
  explicit IntervalEffort(WorkMeter* meter = nullptr) : meter_(meter) {}

  /// False if the engine must give up: too many steps, or the work was stopped.
  bool spend(std::size_t steps) {
    steps_ += steps;
    return steps_ < next_question_ || ask();
  }

 private:
  bool ask() {
    if (steps_ > kMaxSteps || (meter_ != nullptr && meter_->must_stop())) return false;
    next_question_ = steps_ + kStepsBetweenQuestions;
    return true;
  }

  WorkMeter* meter_;
  std::size_t steps_ = 0;
  std::size_t next_question_ = kStepsBetweenQuestions;
};

}  // namespace fdma
