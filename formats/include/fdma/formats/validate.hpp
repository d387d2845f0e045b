// Validation of stored masks: nothing that was read from disk is used before it passed.
#pragma once

#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// How much validate looks at. Each level includes the ones before it.
enum class ValidationLevel {
  sizes,      ///< array extents agree with lengths, blocks and counts: O(arrays)
  structure,  ///< offsets, indices, intervals and padding bits are in range and ordered: every
              ///< access is then safe
  canonical,  ///< arrays are exactly those that FDMA would have built from these cells; of a mask
              ///< with patterns, from these tiles, patterns and rows
};

/// The first inconsistency, named with its array and index, as corrupt_file.
Result<void> validate(const BlockMask& mask, ValidationLevel level);
Result<void> validate(const SegmentMask& mask, ValidationLevel level);
Result<void> validate(const ParametricMask& mask, ValidationLevel level);
Result<void> validate(const BlockBitset& mask, ValidationLevel level);
Result<void> validate(const BcsrMask& mask, ValidationLevel level);
Result<void> validate(const ColumnIntervals& mask, ValidationLevel level);
Result<void> validate(const DenseBits& mask, ValidationLevel level);

}  // namespace fdma
