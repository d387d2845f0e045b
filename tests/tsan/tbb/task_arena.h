// tbb::task_arena on std::thread: see parallel_for.h.
#pragma once

namespace tbb {
namespace tsan {

/// Threads of the arena that the calling thread is in. More than the cores of small machines, so
/// that there is something to race.
inline int& num_threads_here() {
  thread_local int num_threads = 4;
  return num_threads;
}

}  // namespace tsan

class task_arena {
 public:
  static constexpr int automatic = -1;
  explicit task_arena(int num_threads = automatic)
      : num_threads_(num_threads == automatic ? 4 : num_threads) {}

  template <class F>
  auto execute(const F& f) {
    struct Restore {
      int before;
      ~Restore() { tsan::num_threads_here() = before; }
    } restore{tsan::num_threads_here()};
    tsan::num_threads_here() = num_threads_;
    return f();
  }

 private:
  int num_threads_;
};

namespace this_task_arena {
inline int max_concurrency() { return tsan::num_threads_here(); }
}  // namespace this_task_arena

}  // namespace tbb
