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
///
/// The cells of a group give a fingerprint of 122 bits: the sum of x^q y^k over its true cells (q,
/// k), modulo 2^61 - 1, at two points (x, y) that docs/file-format.md names. XXH3 is over counts,
/// lengths and fingerprints. The sum is taken of whatever is stored (runs of tile rows, intervals,
/// distinct bitmaps), and no canonical form is made.
///
/// Masks with different cells have different hashes unless chance or intent has it otherwise. The
/// points are public, so whoever wants two masks of one hash can make them. Nothing may take equal
/// hashes for equal cells of masks that somebody else chose: equal_cells compares cells, and plans
/// are kept by content_hash.
///
/// Cost: O(stored bytes), and O(log tile rows) for each segment whose rows move in step; segments
/// of a pattern take up to O(tile rows) each. Causal over a million tokens takes microseconds.
Hash128 mask_hash(const BlockMask& mask);

}  // namespace fdma
