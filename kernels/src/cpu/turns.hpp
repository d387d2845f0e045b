// Turns: the order in which threads add to sums that several work tiles share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fdma::cpu {

/// For each of some places, a sequence of tickets. Whoever drew a ticket waits for the earlier ones
/// of that place, adds, and finishes it. Draws of one place must not run concurrently. If threads
/// finish what they took and wait only for what was taken earlier, they never wait in a cycle.
///
/// Cost    8 B a place
class Turns {
 public:
  explicit Turns(std::size_t num_places = 0) : drawn_(num_places), done_(num_places) {}

  std::int32_t draw(std::size_t place) { return drawn_[place]++; }

  void wait(std::size_t place, std::int32_t ticket) const {
    const std::atomic<std::int32_t>& done = done_[place];
    for (std::int32_t now = done.load(std::memory_order_acquire); now != ticket;
         now = done.load(std::memory_order_acquire)) {
      done.wait(now, std::memory_order_acquire);
    }
  }

  void finish(std::size_t place, std::int32_t ticket) {
    done_[place].store(ticket + 1, std::memory_order_release);
    done_[place].notify_all();
  }

 private:
  std::vector<std::int32_t> drawn_;
  std::vector<std::atomic<std::int32_t>> done_;
};

}  // namespace fdma::cpu
