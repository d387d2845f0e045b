// Random rows of intervals like those that a selection gives.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

#include "fdma/base/interval.hpp"

namespace fdma::gpu_test {

/// Fills q_lens and kept of a case. Keys appear in order. On average one key in `one_in` is kept,
/// for a random number of at most `longest_life` queries. Later rows are shorter.
template <class Case>
Case random_rows(std::mt19937& random, std::int64_t kv_len, std::int32_t q_len, int num_rows,
                 int longest_life, int one_in) {
  Case c;
  c.kv_len = kv_len;
  for (int row = 0; row < num_rows; ++row) {
    const std::int32_t length = row == 0 ? q_len : q_len - q_len / (3 + row);
    c.q_lens.push_back(length);
    for (std::int64_t key = 0; key < kv_len; ++key) {
      const auto begin =
          static_cast<std::int32_t>(key * length / std::max<std::int64_t>(kv_len, 1));
      const int life = 1 + static_cast<int>(random() % static_cast<unsigned>(longest_life));
      const bool is_kept = random() % static_cast<unsigned>(one_in) == 0 && begin < length;
      c.kept.push_back(is_kept ? Interval{begin, std::min(begin + life, length)} : Interval{0, 0});
    }
  }
  return c;
}

}  // namespace fdma::gpu_test
