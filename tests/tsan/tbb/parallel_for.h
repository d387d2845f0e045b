// The part of oneTBB that kernels use, on std::thread: for ThreadSanitizer builds only.
//
// ThreadSanitizer has to see how threads wait for each other. The oneTBB of the system is not
// compiled with it, so it would report every hand-over of a task as a race, and suppressing those
// hides the races of the tasks themselves, which run below the same frames. Here threads are
// created and joined where it can see it, and what kernels share is checked without suppressions.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tbb/task_arena.h"

namespace tbb {

struct simple_partitioner {};
struct auto_partitioner {};

/// body(i) for each i in [first, last) on as many threads as the arena around the call has,
/// whatever the number of cores.
template <class Index, class Body, class Partitioner = auto_partitioner>
void parallel_for(Index first, Index last, const Body& body, const Partitioner& = {}) {
  std::atomic<Index> next{first};
  std::exception_ptr error;
  std::mutex error_lock;
  const auto work = [&] {
    try {
      // Relaxed: taking an index orders nothing else.
      const auto take = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
      for (Index i = take(); i < last; i = take()) body(i);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_lock);
      if (!error) error = std::current_exception();
    }
  };
  const std::size_t num_threads =
      std::min(static_cast<std::size_t>(this_task_arena::max_concurrency()),
               first < last ? static_cast<std::size_t>(last - first) : std::size_t{0});
  std::vector<std::thread> threads;
  for (std::size_t t = 1; t < num_threads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace tbb
