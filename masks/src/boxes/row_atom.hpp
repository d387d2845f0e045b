// Atoms: the conditions that a program's logic combines. Each can give any row as bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "boxes/axis_vector.hpp"
#include "boxes/program.hpp"
#include "boxes/row_bits.hpp"
#include "fdma/base/interval.hpp"

namespace fdma::box {

/// A bit row that may be complemented: bits ^ flip. Without bits it is constant, with value flip.
struct Plane {
  const std::uint8_t* bits = nullptr;
  std::uint64_t flip = 0;

  bool is_constant() const { return bits == nullptr; }
  Plane complement() const { return {bits, ~flip}; }
  friend bool operator==(const Plane&, const Plane&) = default;
};
inline constexpr Plane kNone{nullptr, 0};
inline constexpr Plane kEvery{nullptr, ~std::uint64_t{0}};
inline Plane plane_of(const std::uint64_t* words) {
  return {reinterpret_cast<const std::uint8_t*>(words), 0};
}

/// The cells where a condition is certainly true and certainly false; it is undefined in neither.
struct Planes {
  Plane is_true;
  Plane is_false;
};
inline Planes defined(Plane is_true) { return {is_true, is_true.complement()}; }

/// Words [first, first + count) of row q. Caches of whole rows may be filled for it if most of the
/// row will be asked for.
struct RowBlock {
  std::int64_t q;
  std::int64_t first_word;
  std::int64_t num_words;
  bool fills_caches = true;
};

/// Tiles [index << level, (index + 1) << level) of a tile row.
struct TileBox {
  std::int64_t tile_row;
  int level;
  std::int64_t index;
};

/// The memory that one thread needs to evaluate an atom. Planes may point into it until the next
/// row.
class AtomScratch {
 public:
  virtual ~AtomScratch() = default;
};

class RowAtom {
 public:
  virtual ~RowAtom() = default;
  /// True if some cell may be undefined; is_false is then not the complement of is_true.
  virtual bool may_be_undefined() const = 0;
  /// `max_words` is the most words of the blocks that will be asked for.
  virtual std::unique_ptr<AtomScratch> make_scratch(std::int64_t max_words) const = 0;
  /// The cells of a block. Bits past kv_len are arbitrary. The planes are valid until the next call
  /// with the same scratch.
  virtual Planes row(const RowBlock& block, AtomScratch& scratch) const = 0;
  /// The outcomes that occur in a box, and perhaps others.
  virtual Outcomes outcomes(const TileBox& box, AtomScratch& scratch) const = 0;
  /// Sets changed[q] where row q may differ from row q - 1.
  virtual void mark_changes(std::vector<std::uint8_t>& changed) const = 0;
};

/// The atom of a closed condition node whose axis is not `cell`.
std::unique_ptr<RowAtom> make_axis_atom(const BoxProgram& program, IrId id, BlockShape block);
/// A comparison of a per-query with a per-key value; null if the node is no such comparison. May
/// add nodes to the program.
std::unique_ptr<RowAtom> make_compare_atom(BoxProgram& program, IrId id, BlockShape block);
/// A boolean table each of whose indices depends on the query or on the key only; null for other
/// nodes.
std::unique_ptr<RowAtom> make_table_atom(const BoxProgram& program, IrId id, BlockShape block);
/// Any closed condition node.
std::unique_ptr<RowAtom> make_cell_atom(const BoxProgram& program, IrId id, BlockShape block);

}  // namespace fdma::box
