// Defines selection literally, and the masks and scores with which it is tested.
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

/// Returns the w first visible keys of each query by (score descending, index), by definition.
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

/// Returns every kind of M: one interval per key in growing sets, and keys that come and go.
std::vector<NamedCells> all_among(std::int64_t q_len, std::int64_t kv_len, std::mt19937& random);

/// Returns groups of rows with these numbers of keys. No row sees every `hidden`-th key (0: all are
/// seen). With `causal` a key is seen from its own query on, otherwise by all of its group.
ColumnIntervals groups(const std::vector<std::int32_t>& lengths, bool causal, int hidden);

/// Returns every kind of scores: random, tied, constant, sorted, alternating, signed zeros,
/// infinite, ..
std::vector<std::pair<std::string, std::vector<float>>> all_scores(std::int64_t kv_len,
                                                                   std::mt19937& random);

}  // namespace fdma
