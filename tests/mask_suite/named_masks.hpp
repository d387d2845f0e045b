// Predicates that no closed form covers, and every name of the mask language with random tables.
#pragma once

#include <cstdint>
#include <vector>

#include "suite_mask.hpp"

namespace fdma::suite {

/// Six predicates over n tokens (n a multiple of 1024) that no interval form covers, or none that
/// is short; head_windows has 8 heads.
std::vector<SuiteMask> predicates(std::int64_t n);

/// Every name of the language but topk over n tokens (n a multiple of 1024), tables random but for
/// what a name demands of them. Where random entries would make every tile different, a second mask
/// of the same name has structured ones (suffix _blocks).
std::vector<SuiteMask> every_name(std::int64_t n, std::uint64_t seed);

}  // namespace fdma::suite
