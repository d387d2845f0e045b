// Value numbering of tiles: two tiles with the same number certainly hold the same cells, so one of
// them is evaluated and the others are copies. The source file has the method.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "boxes/program.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma::box {

class TileNumbers {
 public:
  /// Finds the classes of all parts that vary along one axis. `program` must outlive this object.
  /// Cost: O(q_len + kv_len) for each part, for diagonal ones times (block_q + block_kv) / the
  /// greatest common divisor of both.
  TileNumbers(const BoxProgram& program, BlockShape block);
  ~TileNumbers();

  /// False if some operator of the program has no rule (loops) or the classes would take too long
  /// to find; the object must not be used then.
  bool is_usable() const { return is_usable_; }
  /// True if a part varies along the diagonal.
  bool has_diagonals() const;

  /// The numbers that one thread gave so far. Numbers of two workers do not compare.
  class Worker;

 private:
  friend class Worker;

  /// What is known about the local values of a class.
  struct Local {
    std::int64_t lo = 0;  ///< lo and hi: -kLimit and kLimit where there are no bounds
    std::int64_t hi = 0;
    bool is_defined = true;
    std::int32_t first_value = 0;  ///< into values_, ascending
    std::int32_t num_values = 0;   ///< 0: too many to list
  };
  /// A node over a tile: base + the local values of a class. Conditions have base 0.
  struct Number {
    std::int64_t base = 0;
    std::int32_t id = 0;
  };
  /// A part that varies along one axis, by tile row, tile column or diagonal window.
  struct Leaf {
    Axis axis;
    std::vector<Number> numbers;
  };
  struct Step {
    IrOp op;
    std::int64_t value;
    int num_children;
    std::int32_t children[4];
    bool may_be_undefined;
    NodeRange range;
  };
  class Interner;

  void add_leaf(const BoxProgram& program, IrId id, Axis axis, Interner& interner);
  std::vector<Number> numbers_of(const BoxProgram& program, IrId id, Axis axis, Interner& interner);

  std::int64_t q_len_;
  std::int64_t kv_len_;
  BlockShape block_;
  std::int64_t num_tile_rows_;
  std::int64_t window_step_;  ///< diagonals between the windows of a leaf
  bool is_usable_ = true;
  const BoxProgram& program_;
  std::vector<Leaf> leaves_;
  std::vector<Step> steps_;
  std::vector<Local> locals_;  ///< of the classes of leaves
  std::vector<std::int64_t> values_;
};

class TileNumbers::Worker {
 public:
  explicit Worker(const TileNumbers& numbers);

  /// Numbers of tiles that are empty or full; other numbers are greater. A tile without a number
  /// has kNone.
  static constexpr std::int32_t kNone = -1;
  static constexpr std::int32_t kEmpty = 0;
  static constexpr std::int32_t kFull = 1;

  void begin_row(std::int32_t tile_row);
  /// The numbers of tiles [first_col, end_col) of the row. They say nothing about the cells beyond
  /// the end of the mask, so whole tiles, those cut off at the right, below and at both sides are
  /// four kinds that do not compare.
  void number(std::int32_t first_col, std::int32_t end_col, std::int32_t* out);
  /// One more than the greatest number so far.
  std::int32_t num_numbers() const { return static_cast<std::int32_t>(locals_.size()); }

 private:
  struct Key {
    std::int64_t a = 0;
    std::int64_t b = 0;
    std::int32_t ids[3] = {0, 0, 0};
    std::int32_t op = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Slot {
    Key key;
    std::int32_t id = kNone;
  };
  /// The numbers of a table's tiles for one pair of index classes, by their entries as bits.
  struct TableMemo {
    std::int32_t ids[2] = {kNone, kNone};
    std::int64_t first[2] = {0, 0};  ///< the bases with which all entries lie in the table
    std::int64_t last[2] = {-1, -1};
    std::int64_t offsets[8] = {};  ///< of the entries, from that of both bases
    std::vector<std::int32_t> number_of;
  };
  /// The numbers of a leaf or step for consecutive tiles; step 0: one for all of them.
  struct Operand {
    const Number* numbers = nullptr;
    std::size_t step = 0;
    const Number& at(std::size_t tile) const { return numbers[tile * step]; }
  };

  static std::uint64_t hash_of(const Key& key);
  Slot& slot_of(const Key& key);
  std::int32_t intern(const Key& key, const Local& local);
  Operand operand(std::int32_t place, std::int32_t first_col) const;
  void derive(const Step& step, const Operand* operands, std::size_t count, Number* out);
  Number derive(const Step& step, const Number& a, const Number& b, const Number& c);
  Number compare(const Step& step, const Number& a, const Number& b);
  Number extremum(const Step& step, const Number& a, const Number& b);
  Number bitwise(const Step& step, const Number& a, const Number& b);
  Number opaque(const Step& step, const Number& a, const Number& b);
  Number choice(const Step& step, const Number& c, const Number& a, const Number& b);
  Number table_number(const Step& step, const Number& a, const Number& b, TableMemo& memo);
  void tables(const Step& step, const Operand* operands, std::size_t count, TableMemo& memo,
              Number* out);
  static std::size_t known_tables(const TableMemo& memo, const std::uint8_t* bytes,
                                  std::int64_t stride, const Operand& a, const Operand& b,
                                  std::size_t i, std::size_t count, Number* out);
  Number logic(const Step& step, std::int32_t a, std::int32_t b, std::int32_t c);

  static bool is_bounded(const Local& local);
  const Local& local(std::int32_t id) const { return locals_[static_cast<std::size_t>(id)]; }

  const TileNumbers& numbers_;
  std::int64_t tile_row_ = 0;
  std::vector<Number> known_;  ///< by step, kTilesAtOnce tiles each
  std::vector<Local> locals_;
  std::vector<Slot> slots_;
  std::size_t num_slots_used_ = 0;
  std::vector<TableMemo> memos_;  ///< by step
};

}  // namespace fdma::box
