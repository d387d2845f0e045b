// List scheduling with a heap of the times at which workers take a work tile; the next work tile
// goes to the earliest (R. L. Graham, Bounds on multiprocessing timing anomalies, 1969).
//
// A worker that takes work tiles ahead does so before it is free. A work tile may therefore go to a
// worker that is free later than another.
//
// Example     work tiles 3, 2, 2 on 2 workers: the third goes to the second worker, which is free
// at 2,
//             and all are done at 4. Taken 3 ahead, it may go to the first, which ends at 5
#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "fdma/kernels/estimate.hpp"

namespace fdma {

double Schedule::balance() const {
  const double offered = makespan_us * num_workers;
  return offered > 0 ? busy_us / offered : 1;
}

Schedule simulate_schedule(std::span<const double> item_us, std::int32_t num_workers,
                           double ahead_us) {
  Schedule schedule;
  schedule.num_workers = std::max(num_workers, 1);
  schedule.num_work_tiles = static_cast<std::int64_t>(item_us.size());
  struct Worker {
    double takes_at;  // time at which it takes the next work tile
    double free_at;
    bool operator>(const Worker& other) const { return takes_at > other.takes_at; }
  };
  std::priority_queue<Worker, std::vector<Worker>, std::greater<>> workers(
      std::greater<>(),
      std::vector<Worker>(static_cast<std::size_t>(schedule.num_workers), Worker{0, 0}));
  for (const double us : item_us) {
    const Worker before = workers.top();
    workers.pop();
    const double end = before.free_at + us;
    workers.push({std::max(before.takes_at, end - ahead_us), end});
    schedule.busy_us += us;
    schedule.longest_item_us = std::max(schedule.longest_item_us, us);
    schedule.makespan_us = std::max(schedule.makespan_us, end);
  }
  return schedule;
}

}  // namespace fdma
