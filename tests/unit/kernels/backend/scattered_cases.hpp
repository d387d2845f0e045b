// Masks of few live keys a tile: what kv index lists and kv permutations are for.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma::testing {

/// The `width` keys of highest score among those before each query and its own; ties go to the
/// lower key. Cells alone, by sorting.
Cells topk_cells(std::int64_t q_len, std::int64_t kv_len, std::int64_t width,
                 const std::vector<float>& scores);

/// Masks of one head each: learned top-k with scores that are independent, that grow with the key,
/// that come in clusters and that are mostly equal; random eviction; keys that die and return, one
/// by one and a tile together; tokens of each row's own, and of runs of rows; a window of full
/// tiles beside scattered keys; whole columns.
std::vector<MaskCase> scattered_cases(std::int64_t q_len, std::int64_t kv_len, std::uint32_t seed);

/// The ways to read columns that a plan can be asked for.
inline constexpr ColumnMode kColumnModes[] = {ColumnMode::automatic, ColumnMode::scan,
                                              ColumnMode::gather, ColumnMode::reorder};

}  // namespace fdma::testing
