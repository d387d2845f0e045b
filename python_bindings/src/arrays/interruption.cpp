// When a signal comes, Python only notes it. The handler runs once the main thread calls
// PyErr_CheckSignals.
#include "arrays/interruption.hpp"

#include <fmt/format.h>
#include <nanobind/nanobind.h>

namespace fdma::python {

bool Interruption::is_requested() const {
  if (has_raised_.load(std::memory_order_relaxed) || is_over_.load(std::memory_order_relaxed)) {
    return true;
  }
  if (std::this_thread::get_id() != maker_) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now >= end_) {
    is_over_.store(true);
    return true;
  }
  if (now < next_look_) return false;
  next_look_ = now + kBetweenLooks;
  const nanobind::gil_scoped_acquire acquired;
  if (PyErr_CheckSignals() != 0) has_raised_.store(true);
  return has_raised_;
}

void Interruption::rethrow() const {
  if (has_raised_) throw nanobind::python_error();
  if (!is_over_) return;
  PyErr_SetString(PyExc_TimeoutError,
                  fmt::format("stopped after {:g} s (timeout)", seconds_).c_str());
  throw nanobind::python_error();
}

}  // namespace fdma::python
