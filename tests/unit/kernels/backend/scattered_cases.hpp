// Masks with few live keys in a tile, for which kv index lists and kv permutations are made.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma::testing {

/// The cells of top-k selection, computed by sorting. Each query sees the `width` keys of highest
/// score among those before it and its own key; ties go to the lower key.
Cells topk_cells(std::int64_t q_len, std::int64_t kv_len, std::int64_t width,
                 const std::vector<float>& scores);

/// Masks of one head each:
///   - learned top-k with scores that are independent, that grow with the key, that come in
///     clusters and that are mostly equal
///   - random eviction
///   - keys that become invisible and visible again, one by one and a whole tile at once
///   - keys chosen for each row, and keys chosen for runs of rows
///   - a window of full tiles beside scattered keys
///   - whole columns
std::vector<MaskCase> scattered_cases(std::int64_t q_len, std::int64_t kv_len, std::uint32_t seed);

/// The ways to read columns that a plan can be asked for.
inline constexpr ColumnMode kColumnModes[] = {ColumnMode::automatic, ColumnMode::scan,
                                              ColumnMode::gather, ColumnMode::reorder};

}  // namespace fdma::testing
