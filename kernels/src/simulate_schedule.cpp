// List scheduling: a heap of the times at which workers become free; the next item goes to the
// earliest (R. L. Graham, Bounds on multiprocessing timing anomalies, 1969).
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

Schedule simulate_schedule(std::span<const double> item_us, std::int32_t num_workers) {
  Schedule schedule;
  schedule.num_workers = std::max(num_workers, 1);
  schedule.num_items = static_cast<std::int64_t>(item_us.size());
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at(
      std::greater<>(), std::vector<double>(static_cast<std::size_t>(schedule.num_workers), 0.0));
  for (const double us : item_us) {
    const double end = free_at.top() + us;
    free_at.pop();
    free_at.push(end);
    schedule.busy_us += us;
    schedule.longest_item_us = std::max(schedule.longest_item_us, us);
    schedule.makespan_us = std::max(schedule.makespan_us, end);
  }
  return schedule;
}

}  // namespace fdma
