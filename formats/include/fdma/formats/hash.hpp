// The two hashes of a mask.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// A 128-bit hash (XXH3).
struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};
/// 32 lower-case hexadecimal digits.
std::string to_string(const Hash128& hash);

/// Hash of everything that is stored except `spec`: format, blocks, lengths, counts, group map,
/// origin, arrays. Cost: O(bytes).
Hash128 content_hash(const BlockMask& mask);

/// Hash of counts, lengths and cells: equal for every format, block shape, grouping and origin.
/// Cost: that of converting every group to a segment mask in 128 x 128 blocks.
Hash128 mask_hash(const BlockMask& mask);

}  // namespace fdma
