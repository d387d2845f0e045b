#include "run/parallel_rows.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace fdma::maskc {

int thread_count(int asked) {
  if (asked > 0) return asked;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    return std::max(1, CPU_COUNT(&allowed));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void parallel_for(std::int64_t count, int num_threads,
                  const std::function<void(std::int64_t i, int worker)>& work) {
  std::atomic<std::int64_t> next{0};
  const auto take = [&](int worker) {
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) work(i, worker);
  };
  std::vector<std::thread> threads;
  const auto wanted = static_cast<int>(std::min<std::int64_t>(num_threads, count));
  threads.reserve(static_cast<std::size_t>(std::max(wanted, 1)));
  for (int worker = 1; worker < wanted; ++worker) {
    try {
      threads.emplace_back(take, worker);
    } catch (const std::system_error&) {
      break;  // fewer threads do the same work
    }
  }
  take(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fdma::maskc
