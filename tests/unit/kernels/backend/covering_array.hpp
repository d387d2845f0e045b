// A small set of test cases that has every pair of choices.
#pragma once

#include <cstdint>
#include <vector>

namespace fdma::testing {

/// Rows of choices, one index in [0, sizes[i]) per factor, such that for any two factors every pair
/// of their choices is in some row. The search is greedy; equal seeds give equal rows.
///
/// Example     sizes {12, 5, 3}: about 60 rows instead of 180
std::vector<std::vector<int>> covering_array(const std::vector<int>& sizes, std::uint64_t seed);

}  // namespace fdma::testing
