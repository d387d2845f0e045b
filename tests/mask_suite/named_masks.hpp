// Predicates that no closed form covers, and every name of the mask language with random tables.
#pragma once

#include <cstdint>
#include <vector>

#include "suite_mask.hpp"

namespace fdma::suite {

/// Six predicates over n tokens (n a multiple of 1024) that have no interval form, or no short one.
/// head_windows has 8 heads.
std::vector<SuiteMask> predicates(std::int64_t n);

/// Every name of the language except topk, over n tokens (n a multiple of 1024). Tables are random
/// as far as the name allows. If random entries would make every tile different, a second mask of
/// the same name (suffix _blocks) has structured entries.
std::vector<SuiteMask> every_name(std::int64_t n, std::uint64_t seed);

}  // namespace fdma::suite
