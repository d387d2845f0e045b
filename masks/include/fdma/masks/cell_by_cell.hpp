// The cells of a bound mask one by one, without the engines that lower it: what they are checked
// against.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_ir.hpp"

namespace fdma {

/// Evaluates cells of one program, operator by operator. It shares the definitions of the operators
/// on integers with the engines, and nothing else.
///
/// Example     CellEvaluator cells(ir.programs[0]);
///             if (cells.at(q, k) == CellEvaluator::Value::allowed) ..
/// Owner       borrows the program
/// Threads     one object a thread
/// Cost        some nanoseconds for each node that mentions k, and for each turn of a loop; nodes that
///             mention q alone are evaluated when q changes
class CellEvaluator {
 public:
  enum class Value : std::uint8_t { masked, allowed, undefined };

  explicit CellEvaluator(const IrProgram& program);
  ~CellEvaluator();
  CellEvaluator(CellEvaluator&&) noexcept;

  Value at(std::int64_t q, std::int64_t k);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The mask with every cell evaluated by a CellEvaluator. `on_progress(done, total)` counts query
/// rows and may be empty.
///
/// Errors      invalid_argument: an undefined cell, which the message names; a bad block
/// Cost        O(q_len * kv_len * nodes) for each program, on one thread
Result<BlockMask> lower_cell_by_cell(
    const MaskIr& ir, BlockShape block,
    const std::function<void(std::int64_t done, std::int64_t total)>& on_progress = {});

}  // namespace fdma
