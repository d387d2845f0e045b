// Builds programs by hand for the tests of the box engine, and evaluates them in a slow and simple
// way.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/masks/mask_ir.hpp"

namespace fdma::box_test {

/// Builds a program node by node. Equal nodes are not merged.
class ProgramBuilder {
 public:
  ProgramBuilder(std::int64_t q_len, std::int64_t kv_len);
  IrId add(IrOp op, std::initializer_list<IrId> children, std::int64_t value = 0);
  IrId number(std::int64_t value) { return add(IrOp::constant, {}, value); }
  IrId q() { return add(IrOp::q, {}); }
  IrId k() { return add(IrOp::k, {}); }
  std::int64_t table(std::string name, std::vector<std::int64_t> extents,
                     std::vector<std::int64_t> values, DType dtype = DType::int64);
  std::int64_t runs(std::string name, std::vector<std::int64_t> ends,
                    std::vector<std::int64_t> values);
  const IrProgram& finish(IrId root);
  IrProgram program;
};

/// Returns the outcome of the root at one cell; nothing if it is undefined.
std::optional<bool> evaluate_cell(const IrProgram& program, std::int64_t q, std::int64_t k);

/// Returns the cells of a mask, one byte each, row-major.
std::vector<std::uint8_t> cells_of(const SegmentMask& mask);

}  // namespace fdma::box_test
