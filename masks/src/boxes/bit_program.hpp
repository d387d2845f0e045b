// A mask as a straight-line program over bit rows: atoms, combined by logic.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "boxes/program.hpp"
#include "boxes/row_atom.hpp"

namespace fdma::box {

/// The logic of a program over its atoms.
///
/// Example     `causal & t[q] == t[k]`: two atoms (a diagonal and a comparison) and one `and`
/// Planes      where nothing can be undefined, one plane is computed and the other one is its
///             complement
/// Cost        a row costs its comparisons (about 100 ns per 8192 keys) plus 20 ns per operator;
///             constant rows and operands are folded
class BitProgram {
 public:
  /// Prepares all atoms. `program` must outlive this object and gains nodes. If the meter of the
  /// program has stopped the work meanwhile, this object must not be used.
  BitProgram(BoxProgram& program, BlockShape block);

  /// The memory that one thread needs to run the program.
  class Worker {
   public:
    explicit Worker(const BitProgram& program);

   private:
    friend class BitProgram;
    std::vector<std::unique_ptr<AtomScratch>> atoms_;
    std::vector<std::uint64_t> buffers_;
    std::vector<Planes> planes_;
    std::vector<Outcomes> outcomes_;
  };

  /// The most words that a block of a row may have.
  std::int64_t max_words() const { return max_words_; }
  bool may_be_undefined() const { return ops_.back().is_partial; }
  /// The cells of a block of a row. Bits past kv_len are arbitrary. Planes are valid until the next
  /// call.
  Planes row(const RowBlock& block, Worker& worker) const;
  /// The outcomes that occur in a box of tiles, and perhaps others.
  Outcomes outcomes(const TileBox& box, Worker& worker) const;
  /// The condition whose rows usually take longest, and how these are made:
  /// "((q * k) % 7) == 3 is evaluated cell by cell". For reports.
  std::string slowest_condition(const BoxProgram& program) const;
  /// repeats[q] is 1 only where row q certainly equals row q - 1.
  std::vector<std::uint8_t> repeated_rows() const;

 private:
  struct Op {
    IrOp op;          ///< `boolean` stands for an atom
    bool is_partial;  ///< the result may be undefined
    std::int32_t atom;
    std::int32_t operands[3];
    std::int32_t buffer;  ///< first of its own buffers
  };
  static int num_buffers(const Op& op);
  /// Kinds of atoms, the slowest last.
  enum class AtomKind : std::uint8_t { axis, table, compare, cell };

  std::int64_t q_len_;
  std::vector<Op> ops_;
  std::vector<std::unique_ptr<RowAtom>> atoms_;
  AtomKind slowest_kind_ = AtomKind::axis;
  IrId slowest_ = -1;  ///< the first condition of that kind
  std::int64_t max_words_ = 0;
  std::int32_t num_buffers_ = 0;
};

}  // namespace fdma::box
