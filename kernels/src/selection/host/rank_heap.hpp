// A heap of the w best ranks so far, the worst of them first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace fdma {

/// Adds a rank to a heap that has the worst (smallest) rank first.
inline void push_rank(std::vector<std::uint64_t>& heap, std::uint64_t rank) {
  heap.push_back(rank);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

/// Replaces the worst rank by `rank`: moves it down the heap past all that are worse, without
/// branches on the ranks (scores are unpredictable).
inline void replace_worst(std::vector<std::uint64_t>& heap, std::uint64_t rank) {
  std::uint64_t* const at = heap.data();
  const std::size_t size = heap.size();
  std::size_t hole = 0;
  for (std::size_t child = 1; child + 1 < size; child = 2 * hole + 1) {
    child += static_cast<std::size_t>(at[child + 1] < at[child]);
    if (rank <= at[child]) break;
    at[hole] = at[child];
    hole = child;
  }
  // An even number of ranks: the last one has no sibling.
  const std::size_t last = 2 * hole + 1;
  if (last + 1 == size && at[last] < rank) {
    at[hole] = at[last];
    hole = last;
  }
  at[hole] = rank;
}

}  // namespace fdma
