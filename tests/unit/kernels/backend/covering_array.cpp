#include "backend/covering_array.hpp"

#include <cstddef>
#include <set>
#include <tuple>

#include "suite_mask.hpp"

namespace fdma::testing {
namespace {

using Pair = std::tuple<std::size_t, int, std::size_t, int>;  ///< factor, choice, factor, choice

std::set<Pair> all_pairs(const std::vector<int>& sizes) {
  std::set<Pair> pairs;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    for (std::size_t j = i + 1; j < sizes.size(); ++j)
      for (int a = 0; a < sizes[i]; ++a)
        for (int b = 0; b < sizes[j]; ++b) pairs.insert({i, a, j, b});
  return pairs;
}

std::set<Pair> new_pairs(const std::vector<int>& row, const std::set<Pair>& open) {
  std::set<Pair> met;
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t j = i + 1; j < row.size(); ++j) {
      const Pair pair{i, row[i], j, row[j]};
      if (open.count(pair) != 0) met.insert(pair);
    }
  }
  return met;
}

}  // namespace

std::vector<std::vector<int>> covering_array(const std::vector<int>& sizes, std::uint64_t seed) {
  constexpr int kCandidates = 30;
  suite::Random random(seed);
  std::set<Pair> open = all_pairs(sizes);
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    // Takes the row that meets most open pairs, among random rows that each have the first one.
    const auto [i, a, j, b] = *open.begin();
    std::vector<int> best;
    std::set<Pair> best_met;
    for (int candidate = 0; candidate < kCandidates; ++candidate) {
      std::vector<int> row;
      for (const int size : sizes) row.push_back(static_cast<int>(random.below(size)));
      row[i] = a;
      row[j] = b;
      std::set<Pair> met = new_pairs(row, open);
      if (met.size() > best_met.size()) {
        best = row;
        best_met = std::move(met);
      }
    }
    for (const Pair& pair : best_met) open.erase(pair);
    rows.push_back(best);
  }
  return rows;
}

}  // namespace fdma::testing
