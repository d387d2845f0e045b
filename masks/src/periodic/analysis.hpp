// What moves leave a program unchanged on a band of query rows: a lattice of translations, and the
// lines of cells across which they may not be applied.
//
// Idea. Nearly every integer of a program is linear in q and k, plus a remainder that is bounded
// and repeats: q // 7 is q / 7 minus one of 0, 1/7, .., 6/7. A node has one or a few such forms (a
// minimum has those of both operands), and at each cell its value is that of one of them. Let V be
// a translation that
//   - moves the operand of every x % m and x // m by a multiple of m, in all of its forms (of
//     x % m == y % m: the difference x - y), and
//   - for every comparison, minimum and absolute value, keeps the side of the cell: the difference
//     of the operands, in all pairs of their forms, stays below, or stays above, the values at
//     which the outcome changes; or V does not change the linear part of the difference at all.
// By induction over the nodes, the value of each node at p + V is that at p plus its form at V, and
// conditions are equal. The first demand gives the lattice, and the second one a Cut for each pair.
//
// Example     `(q // 5) % 7 == (k // 5) % 7 & k <= q`: tiles move by multiples of (5, 5) and of 35
//             columns, and k - q has one cut between 0 and 1
// Does not    `t[q] == t[k]` (a look-up by an index that does not repeat), `bitand(q, k) == 0`,
//             `q * k < 1000`
// Cost        O(nodes * forms^2)
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fdma/formats/tile_lattice.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "ir/range.hpp"

namespace fdma::periodic {

/// A line of cells: row_factor * q + col_factor * k <= below is one side, >= above the other one;
/// cells between lie on it.
///
/// Invariants  below <= above; the factors have no common divisor; col_factor > 0, or it is 0 and
///             row_factor > 0
struct Cut {
  std::int64_t row_factor = 0;
  std::int64_t col_factor = 0;
  std::int64_t below = 0;
  std::int64_t above = 0;
  bool is_parallel_to(const Cut& other) const {
    return row_factor == other.row_factor && col_factor == other.col_factor;
  }
  friend bool operator==(const Cut&, const Cut&) = default;
};

/// Cells q in [q_begin, q_end), k in [k_begin, k_end).
struct CellBox {
  std::int64_t q_begin;
  std::int64_t q_end;
  std::int64_t k_begin;
  std::int64_t k_end;
};

/// The translations of tiles and the cuts of a program on a box of cells.
struct Structure {
  TileLattice lattice;
  std::vector<Cut> cuts;  ///< none that the box lies on one side of; ascending, those of one
                          ///< direction without overlap
};

/// The ranges of all nodes over a box of cells. The program has no loops.
std::vector<NodeRange> node_ranges(const IrProgram& program, const TableRanges& tables,
                                   const CellBox& box);

/// Nothing if the program has a node that this analysis cannot follow, or a cell of the box may be
/// undefined, or if there are too many forms or cuts. The program has no loops.
std::optional<Structure> analyze(const IrProgram& program, const TableRanges& tables,
                                 BlockShape block, const CellBox& box);

}  // namespace fdma::periodic
