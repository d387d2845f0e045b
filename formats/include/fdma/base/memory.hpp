// How much memory a process may still take. FDMA asks before a large allocation, because the system
// grants more memory than it has and ends the process later.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "fdma/base/result.hpp"

namespace fdma {

/// Bytes that the process may still take: the least of what the machine has (MemAvailable), what
/// its control group and the groups above it leave, and what is left of its address space
/// (RLIMIT_AS, ulimit -v). 0 if the system does not say.
std::int64_t available_memory_bytes();

/// Checks that `needed_bytes` are available; up to 64 MiB it always succeeds.
///
/// Example     what = "columns": "columns: not enough memory: needs 64.0 GiB, available 14.2 GiB"
/// Errors      out_of_memory
Result<void> check_memory(std::int64_t needed_bytes, std::string_view what);

/// The memory that several threads are about to allocate together.
///
/// Example     MemoryBudget budget("columns");
///             // in each thread:
///             FDMA_TRY_VOID(budget.take(result + scratch));
///             budget.give_back(scratch);
class MemoryBudget {
 public:
  explicit MemoryBudget(std::string_view what) : what_(what) {}
  /// Errors: as check_memory, for the sum of everything that is taken.
  Result<void> take(std::int64_t bytes);
  void give_back(std::int64_t bytes) { taken_ -= bytes; }

 private:
  std::string what_;
  std::atomic<std::int64_t> taken_{0};
  std::atomic<std::int64_t> available_{-1};  // as first asked; -1 before
};

}  // namespace fdma
