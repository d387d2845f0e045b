// Tests parallel loops of a process that forks.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "fdma/base/parallel.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kCount = 1000;

// Returns the sum over the indices of a loop, each counted once.
std::int64_t sum_of_loop() {
  std::atomic<std::int64_t> sum{0};
  in_arena(4, [&] {
    parallel_for(std::int64_t{0}, kCount, [&](std::int64_t i) { sum += i; });
    parallel_for(tbb::blocked_range<std::int64_t>(0, kCount), [&](const auto& range) {
      for (std::int64_t i = range.begin(); i < range.end(); ++i) sum += i;
    });
  });
  return sum;
}

constexpr std::int64_t kSum = kCount * (kCount - 1);

// Returns the answer of a forked child, which ends without destructors.
template <class Question>
bool in_child(const Question& question) {
  const pid_t child = fork();
  if (child == 0) _exit(question() ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ParallelFor, VisitsEveryIndexOnce) {
  EXPECT_EQ(sum_of_loop(), kSum);
  EXPECT_TRUE(has_worker_threads());
  EXPECT_GE(max_concurrency(), 1);
}

TEST(ParallelFor, EmptyRangesDoNothing) {
  parallel_for(5, 5, [](int) { FAIL(); });
  parallel_for(tbb::blocked_range<int>(5, 5), [](const auto&) { FAIL(); });
}

TEST(ParallelFor, ForkedChildrenComputeOnTheirOnlyThread) {
  ASSERT_EQ(sum_of_loop(), kSum);
  EXPECT_TRUE(in_child([] {
    std::vector<std::thread::id> threads;
    parallel_for(0, 100, [&](int) { threads.push_back(std::this_thread::get_id()); });
    const bool is_alone = std::set(threads.begin(), threads.end()).size() == 1;
    return !has_worker_threads() && max_concurrency() == 1 && is_alone && threads.size() == 100 &&
           sum_of_loop() == kSum;
  }));
  EXPECT_TRUE(has_worker_threads());
}

TEST(ParallelFor, ChildrenOfForkedChildrenStayOnOneThread) {
  ASSERT_EQ(sum_of_loop(), kSum);
  EXPECT_TRUE(in_child([] {
    return sum_of_loop() == kSum &&
           in_child([] { return !has_worker_threads() && sum_of_loop() == kSum; });
  }));
}

}  // namespace
}  // namespace fdma
