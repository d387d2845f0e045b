// A loop over independent calls on a few threads.
#pragma once

#include <cstdint>
#include <functional>

namespace fdma::maskc {

/// The number of threads asked for; 0 means as many as the process may use.
int thread_count(int asked);

/// Calls work(i, worker) for every i in [0, count), each once, from `num_threads` threads (worker
/// is in [0, num_threads)). A thread takes one i at a time. `work` must not throw.
void parallel_for(std::int64_t count, int num_threads,
                  const std::function<void(std::int64_t i, int worker)>& work);

}  // namespace fdma::maskc
