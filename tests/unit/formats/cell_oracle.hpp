// The oracle of the format tests. It is slow and simple: one char holds a cell, and each format is
// read by its definition.
#pragma once

#include <random>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma::testing {

struct Cells {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::vector<char> values;  // [q_len, kv_len]

  Cells(std::int64_t q, std::int64_t kv)
      : q_len(q), kv_len(kv), values(static_cast<std::size_t>(q * kv), 0) {}
  char& at(std::int64_t q, std::int64_t k) {
    return values[static_cast<std::size_t>(q * kv_len + k)];
  }
  bool get(std::int64_t q, std::int64_t k) const {
    return values[static_cast<std::size_t>(q * kv_len + k)] != 0;
  }
  friend bool operator==(const Cells&, const Cells&) = default;
};

template <class Condition>
Cells make_cells(std::int64_t q_len, std::int64_t kv_len, Condition&& condition) {
  Cells cells(q_len, kv_len);
  for (std::int64_t q = 0; q < q_len; ++q) {
    for (std::int64_t k = 0; k < kv_len; ++k) cells.at(q, k) = condition(q, k) ? 1 : 0;
  }
  return cells;
}

DenseBits dense_of(const Cells& cells);
Cells cells_of(const SegmentMask& mask);
Cells cells_of(const ParametricMask& mask);
Cells cells_of(const BlockBitset& mask);
Cells cells_of(const BcsrMask& mask);
Cells cells_of(const ColumnIntervals& mask);
Cells cells_of(const DenseBits& mask);
Cells cells_of(const BlockMask& mask, std::int64_t group);
/// Returns rows [q_begin, q_end), keys [kv_begin, kv_end).
Cells crop_cells(const Cells& cells, std::int64_t q_begin, std::int64_t q_end,
                 std::int64_t kv_begin, std::int64_t kv_end);

/// Returns a random mask: noise of some density, windows, documents, strides, live ranges of keys,
/// or mixtures of these.
Cells random_cells(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len);
BlockShape random_block(std::mt19937& rng);
std::int64_t pick(std::mt19937& rng, std::int64_t low, std::int64_t high);  // both included

/// Makes a mask of one group, one batch element and one head.
BlockMask block_mask_of(const Cells& cells, BlockShape block);
/// Makes a mask of several batch elements and heads. Each pair has one of `masks`, chosen at
/// random; all have equal lengths.
BlockMask random_block_mask(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len,
                            BlockShape block);

}  // namespace fdma::testing
