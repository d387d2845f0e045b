// Counts the heap memory that a piece of code has at its peak.
#pragma once

#include <cstdint>

namespace fdma {

/// Peak of the bytes allocated by operator new (all forms, all threads) since construction, as the
/// allocator rounds them, over what was allocated then. One at a time; while none exists, operator
/// new counts nothing and costs what it always does. Memory from before that is freed meanwhile
/// lowers the count.
///
/// Example     AllocationPeak peak; auto mask = compile(..); report(peak.bytes());
class AllocationPeak {
 public:
  AllocationPeak();
  ~AllocationPeak();
  AllocationPeak(const AllocationPeak&) = delete;
  AllocationPeak& operator=(const AllocationPeak&) = delete;

  std::int64_t bytes() const;
};

}  // namespace fdma
