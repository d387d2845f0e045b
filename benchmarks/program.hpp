// What programs that measure share: ending at an error, the processor's clock, quantiles, and the
// mask of a case of the mask suite.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "suite_mask.hpp"

namespace fdma {

[[noreturn]] inline void exit_with(std::string_view what, const Error& error) {
  std::cerr << what << ": " << error.message << "\n";
  std::exit(1);
}

template <class T>
T value_or_exit(Result<T> result, std::string_view what) {
  if (!result) exit_with(what, result.error());
  return *std::move(result);
}

inline void require(const Result<void>& result, std::string_view what) {
  if (!result) exit_with(what, result.error());
}

inline BlockMask compiled(const suite::SuiteMask& mask) {
  const MaskExpr expr = value_or_exit(parse_mask(mask.spec), mask.name);
  return value_or_exit(compile(expr, mask.bound_tables(), mask.shape), mask.name);
}

/// CPU time of all threads of the process.
inline double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Between two values linearly; 0 without values.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

/// Writes a file by `write(stream)`.
template <class Write>
void write_or_exit(const std::string& path, Write write) {
  std::ofstream file(path);
  write(file);
  file.flush();
  if (file) return;
  std::cerr << path << ": cannot write\n";
  std::exit(1);
}

}  // namespace fdma
