// Cell sums: a fingerprint of the true cells of a mask that costs what its stored form costs.
//
// A mask is a polynomial, the sum of x^q y^k over its true cells (q, k). Its value at a point is a
// function of the cells alone, and the value for disjoint sets of cells is the sum of their values.
// Whatever is stored therefore adds its own part, however the cells are divided: an interval of keys is
// a geometric series in y, rows that move linearly are one in x y^step, tiles that repeat are one in
// the power of y for a block, times the sum of one tile.
//
// Two masks with different cells have equal values at both points only where the difference of their
// polynomials, which is not 0, has both points among its zeros. A polynomial of degree d has at most
// d / 2^61 of all points among them, for a coordinate that is chosen at random.
#pragma once

#include "fdma/formats/bcsr_mask.hpp"
#include "fdma/formats/block_bitset.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "fdma/formats/dense_bits.hpp"
#include "fdma/formats/parametric_mask.hpp"
#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/segment_mask.hpp"
#include "stored/cell_field.hpp"

namespace fdma {

/// The sum of x^q y^k over the true cells (q, k), at both points. The mask must be valid at level
/// structure.
///
/// Cost        segment: O(segments * log tile rows + words of bitmaps + intervals); a pattern
///             segment: O(log tiles of a pattern row) for each tile row until the pattern lies as
///             before, and O(tiles of the pattern) once
///             parametric: O(documents * log rows); bitset, bcsr: O(tiles stored + words of bitmaps);
///             columns: O(keys + intervals); dense: O(words), in parallel
Residues cell_sum(const SegmentMask& mask);
Residues cell_sum(const ParametricMask& mask);
Residues cell_sum(const BlockBitset& mask);
Residues cell_sum(const BcsrMask& mask);
Residues cell_sum(const ColumnIntervals& mask);
Residues cell_sum(const DenseBits& mask);
Residues cell_sum(const RowBands& bands);

}  // namespace fdma
