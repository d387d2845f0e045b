// Compares the accumulation order of deterministic calls of closed-form plans with a count of the
// key tiles that come before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/kernels/closed_form_columns.hpp"
#include "plan/closed_form_dq_order.hpp"
#include "plan/closed_form_walks.hpp"

namespace fdma {
namespace {

using testing::ClosedFormCase;
using testing::RandomClosedForm;

// Says what is wrong with the positions of key tiles of block_kv keys at query tiles of block_q,
// and counts the positions that have to wait.
std::string dq_order_error(const ClosedFormCase& each, std::int32_t block_kv, std::int32_t block_q,
                           int& num_waiting) {
  const ClosedFormColumns columns(each.closed_form, each.borders.data(), each.q_len, each.kv_len);
  const auto num_q_tiles = static_cast<std::int32_t>(ceil_div(each.q_len, block_q));
  const auto num_kv_tiles = static_cast<std::int32_t>(ceil_div(each.kv_len, block_kv));
  std::vector<DqOrderRun> tile_runs;
  std::vector<bool> is_near;
  std::int32_t num_far = 0;
  for (std::int32_t tile = num_kv_tiles - 1; tile >= 0; --tile) {
    const std::int32_t begin = tile * block_kv, end = std::min(begin + block_kv, each.kv_len);
    const ClosedFormWalk walk = columns.walk(begin, end, block_q);
    if (walk.num_tiles() == 0) continue;
    tile_runs.push_back({walk.tile_run(1).first, walk.tile_run(1).end});
    is_near.push_back(columns.is_near(begin));
    if (!is_near.back()) ++num_far;
  }
  const auto num_tiles = static_cast<std::int32_t>(tile_runs.size());
  for (std::int32_t tile = 0; tile < num_q_tiles; ++tile) {
    const DqSemaphoreOffsets offsets =
        dq_semaphore_offsets([&](std::int32_t n) { return tile_runs[static_cast<std::size_t>(n)]; },
                             num_far, num_tiles, tile);
    std::int32_t num_before = 0;
    for (std::int32_t n = 0; n < num_tiles; ++n) {
      const DqOrderRun& tile_run = tile_runs[static_cast<std::size_t>(n)];
      if (tile < tile_run.first || tile >= tile_run.end) continue;
      const std::int32_t turn =
          n + (is_near[static_cast<std::size_t>(n)] ? offsets.near : offsets.far);
      if (turn != num_before) {
        return fmt::format("query tile {}, number {}: turn {}, but {} come before; {}", tile, n,
                           turn, num_before, each.text());
      }
      if (num_before++ > 0) ++num_waiting;
    }
  }
  return {};
}

// This is the example of closed_form_dq_order.hpp.
TEST(ClosedFormDqOrders, CountWhoComesBefore) {
  const std::vector<DqOrderRun> tile_runs{{3, 4}, {2, 4}, {1, 4}, {0, 4}};
  const DqSemaphoreOffsets offsets = dq_semaphore_offsets(
      [&](std::int32_t n) { return tile_runs[static_cast<std::size_t>(n)]; }, 3, 4, 2);
  EXPECT_EQ(1 + offsets.far, 0);
  EXPECT_EQ(2 + offsets.far, 1);
  EXPECT_EQ(3 + offsets.near, 2);
}

TEST(ClosedFormDqOrders, AreThoseOfRandomClosedForms) {
  int num_waiting = 0;
  for (std::uint32_t seed = 0; seed < 12000; ++seed) {
    RandomClosedForm random(seed);
    const ClosedFormCase each = random.make(60);
    const std::int32_t block_kv = std::int32_t{1} << random.pick(0, 4);
    const std::int32_t block_q = std::int32_t{1} << random.pick(0, 4);
    ASSERT_EQ(dq_order_error(each, block_kv, block_q, num_waiting), "") << "seed " << seed;
  }
  EXPECT_GT(num_waiting, 12000);
}

// The test takes all closed forms of small integers over all small lengths, without documents and
// with two.
TEST(ClosedFormDqOrders, AreThoseOfEverySmallClosedForm) {
  constexpr std::int32_t kFar = kClosedFormUnbounded;
  ClosedFormCase each;
  int num_waiting = 0;
  for (each.q_len = 1; each.q_len <= 5; ++each.q_len) {
    for (each.kv_len = 1; each.kv_len <= 6; ++each.kv_len) {
      for (const std::int32_t left : {kFar, -1, 0, 1, 3}) {
        for (const std::int32_t right : {kFar, -2, 0, 1}) {
          for (const std::int32_t prefix : {0, 2, 5}) {
            for (const std::int32_t sink : {0, 1, 3}) {
              for (const std::int32_t kv_begin : {0, 2}) {
                for (const std::int32_t border : {-1, 1, 3}) {
                  each.closed_form = {};
                  each.closed_form.left = left;
                  each.closed_form.right = right;
                  each.closed_form.prefix = prefix;
                  each.closed_form.sink = sink;
                  each.closed_form.kv_begin = kv_begin;
                  each.closed_form.kv_end = kFar;
                  each.borders.clear();
                  if (border >= 0) each.borders = {0, border, border + 2};
                  each.closed_form.num_borders = static_cast<std::int32_t>(each.borders.size());
                  for (const std::int32_t block : {1, 2}) {
                    ASSERT_EQ(dq_order_error(each, block, 1, num_waiting), "") << each.text();
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(num_waiting, 10000);
}

}  // namespace
}  // namespace fdma
