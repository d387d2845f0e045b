// Selection by its literal definition, and the masks and scores that it is tried on.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fdma/formats/column_intervals.hpp"

namespace fdma {

using SelectedCells = std::vector<std::vector<bool>>;  // [q][k]

SelectedCells cells_of(const ColumnIntervals& mask);
ColumnIntervals columns_of(const SelectedCells& cells, std::int64_t kv_len);

/// By definition: among the visible keys of each query, the w first by (score descending, index).
SelectedCells selected_by_sorting(const std::vector<float>& scores, std::int64_t w,
                                  const SelectedCells& among);

template <class Visible>
SelectedCells cells_where(std::int64_t q_len, std::int64_t kv_len, Visible visible) {
  SelectedCells cells(static_cast<std::size_t>(q_len));
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (std::int64_t k = 0; k < kv_len; ++k) {
      cells[static_cast<std::size_t>(q)].push_back(visible(q, k));
    }
  }
  return cells;
}

struct NamedCells {
  std::string name;
  SelectedCells cells;
  bool is_one_interval;  ///< of the one-interval class, whatever the lengths
};

/// Every kind of M: one interval a key in growing sets, and keys that come and go.
std::vector<NamedCells> all_among(std::int64_t q_len, std::int64_t kv_len, std::mt19937& random);

/// Groups of rows of these lengths in keys; every `hidden`-th key is seen by nobody (0: all are
/// seen). A key is seen from its own query on where `causal`, else by all of its group.
ColumnIntervals groups(const std::vector<std::int32_t>& lengths, bool causal, int hidden);

/// Every kind of scores: random, tied, constant, sorted, alternating, signed zeros, infinite, ..
std::vector<std::pair<std::string, std::vector<float>>> all_scores(std::int64_t kv_len,
                                                                   std::mt19937& random);

}  // namespace fdma
