// oneTBB's parallel loops for a process that may fork, as Python's multiprocessing and PyTorch's
// data loaders do.
//
// A child of fork() has one thread, the one that called it. It keeps only the bookkeeping of
// oneTBB's worker threads, and a lock that a worker or another caller held at that moment stays
// locked for ever. A child that enters oneTBB therefore mostly works, on its own thread, and now
// and then hangs (measured: 1 of 1,500 children, forked right after a loop had ended). So a child
// of a process that had run such loops does not enter oneTBB any more: its loops run on the thread
// that calls them, with the same results. A child of a process that had run none is like any other.
//
// Private to FDMA's libraries: the headers of oneTBB stay out of public ones.
#pragma once

#include <pthread.h>
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <utility>

namespace fdma {

namespace threads {

inline std::atomic<bool> were_used{false};
inline std::atomic<bool> were_lost{false};

/// Called where oneTBB is about to be entered.
inline void note_use() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    if (were_used.load()) were_lost.store(true);
  });
  static_cast<void>(registered);
  were_used.store(true, std::memory_order_relaxed);
}

}  // namespace threads

/// Whether oneTBB may be entered: false in a child of a process that had entered it.
inline bool has_worker_threads() { return !threads::were_lost.load(std::memory_order_relaxed); }

/// body(i) for each i in [begin, end).
template <class Index, class Body, class... Partitioner>
void parallel_for(Index begin, Index end, const Body& body, const Partitioner&... partitioner) {
  if (!has_worker_threads()) {
    for (Index i = begin; i < end; ++i) body(i);
    return;
  }
  threads::note_use();
  tbb::parallel_for(begin, end, body, partitioner...);
}

/// body(part) for parts that together make up `range`.
template <class Value, class Body>
void parallel_for(const tbb::blocked_range<Value>& range, const Body& body) {
  if (!has_worker_threads()) {
    if (!range.empty()) body(range);
    return;
  }
  threads::note_use();
  tbb::parallel_for(range, body);
}

/// Runs `work`, whose loops use at most num_threads threads; 0: all available.
template <class Work>
void in_arena(int num_threads, const Work& work) {
  if (!has_worker_threads()) {
    work();
    return;
  }
  threads::note_use();
  tbb::task_arena arena(num_threads > 0 ? num_threads : tbb::task_arena::automatic);
  arena.execute(work);
}

/// The largest number of threads that a loop uses here.
inline int max_concurrency() {
  if (!has_worker_threads()) return 1;
  threads::note_use();
  return tbb::this_task_arena::max_concurrency();
}

}  // namespace fdma
