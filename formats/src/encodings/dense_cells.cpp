// Bytes to bits and back, in parallel over query rows.
//
// Eight bytes of 0 and 1 become eight bits by one multiplication: the factor moves bit 0 of byte i
// to bit 56 + i, and no two of its partial products overlap. A value above 1 shows in the same
// eight bytes, in the bits that a cell must not have. Cells whose keys are not adjacent (a
// transposed array) are taken one by one.
#include "fdma/formats/dense_cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "fdma/base/parallel.hpp"

namespace fdma {
namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101, kGather = 0x0102040810204080;
constexpr std::int64_t kCellsPerTask = std::int64_t{1} << 18;

// The bits of `count` <= 64 cells. `excess` collects the bits that a cell must not have.
std::uint64_t pack_adjacent(const std::uint8_t* cells, std::int64_t count, std::uint64_t& excess) {
  std::uint64_t bits = 0;
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, cells + i, 8);
    excess |= eight & ~kOnes;
    bits |= (eight * kGather >> 56) << i;
  }
  for (; i < count; ++i) {
    excess |= cells[i] & ~std::uint64_t{1};
    bits |= std::uint64_t{cells[i]} << i;
  }
  return bits;
}

std::uint64_t pack_strided(const std::uint8_t* cells, std::int64_t stride, std::int64_t count,
                           std::uint64_t& excess) {
  std::uint64_t bits = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint8_t cell = cells[i * stride];
    excess |= cell & ~std::uint64_t{1};
    bits |= std::uint64_t{cell} << i;
  }
  return bits;
}

// Packs one row. False if it holds a value that is neither 0 nor 1.
bool pack_row(const std::uint8_t* cells, std::int64_t stride, std::int64_t kv_len,
              std::uint64_t* words) {
  std::uint64_t excess = 0;
  for (std::int64_t k = 0; k < kv_len; k += 64) {
    const std::int64_t count = std::min<std::int64_t>(kv_len - k, 64);
    words[k / 64] = stride == 1 ? pack_adjacent(cells + k, count, excess)
                                : pack_strided(cells + k * stride, stride, count, excess);
  }
  return excess == 0;
}

tbb::blocked_range<std::int64_t> row_range(std::int64_t q_len, std::int64_t kv_len) {
  const std::int64_t rows =
      std::max<std::int64_t>(kCellsPerTask / std::max<std::int64_t>(kv_len, 1), 1);
  return {0, q_len, static_cast<std::size_t>(rows)};
}

Error first_wrong_cell(const TensorView& cells, std::int64_t q) {
  const auto* row = static_cast<const std::uint8_t*>(cells.data) + q * cells.strides[0];
  std::int64_t k = 0;
  while (row[k * cells.strides[1]] <= 1) ++k;
  const std::uint8_t value = row[k * cells.strides[1]];
  const int shown = cells.dtype == DType::int8 ? static_cast<std::int8_t>(value) : value;
  return {ErrorCode::invalid_argument,
          fmt::format("cell ({}, {}): {}, expected 1 (attends) or 0", q, k, shown)};
}

}  // namespace

Result<DenseBits> dense_from_cells(const TensorView& cells) {
  if (cells.dtype != DType::boolean && cells.dtype != DType::uint8 && cells.dtype != DType::int8) {
    return Error{ErrorCode::unsupported,
                 fmt::format("cells: elements of type {}, expected boolean, uint8 or int8",
                             to_string(cells.dtype))};
  }
  if (cells.device != Device::cpu) {
    return Error{ErrorCode::unsupported, "cells: expected host memory"};
  }
  if (cells.rank != 2) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("cells: {} dimensions, expected [q_len, kv_len]", cells.rank)};
  }
  if (std::max(cells.extents[0], cells.extents[1]) > kMaxLength) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("cells: {} x {}, expected lengths up to {}", cells.extents[0],
                             cells.extents[1], kMaxLength)};
  }
  DenseBits dense;
  dense.q_len = cells.extents[0];
  dense.kv_len = cells.extents[1];
  const std::int64_t words_per_row = dense.words_per_row();
  dense.words.resize(static_cast<std::size_t>(dense.q_len * words_per_row));
  std::atomic<std::int64_t> first_wrong{dense.q_len};
  const auto* data = static_cast<const std::uint8_t*>(cells.data);
  fdma::parallel_for(row_range(dense.q_len, dense.kv_len), [&](const auto& rows) {
    for (std::int64_t q = rows.begin(); q < rows.end(); ++q) {
      if (pack_row(data + q * cells.strides[0], cells.strides[1], dense.kv_len,
                   dense.words.data() + q * words_per_row)) {
        continue;
      }
      std::int64_t known = first_wrong.load();
      while (q < known && !first_wrong.compare_exchange_weak(known, q)) {
      }
      return;
    }
  });
  if (first_wrong.load() < dense.q_len) return first_wrong_cell(cells, first_wrong.load());
  return dense;
}

void write_cells(const SegmentMask& mask, const MutableTensorView& cells) {
  auto* data = static_cast<std::uint8_t*>(cells.data);
  fdma::parallel_for(row_range(mask.q_len, mask.kv_len), [&](const auto& rows) {
    std::vector<Interval> keys;
    for (std::int64_t q = rows.begin(); q < rows.end(); ++q) {
      row_intervals_of(mask, q, keys);
      std::uint8_t* const row = data + q * cells.strides[0];
      std::int64_t done = 0;
      for (const Interval& interval : keys) {
        std::memset(row + done, 0, static_cast<std::size_t>(interval.begin - done));
        std::memset(row + interval.begin, 1,
                    static_cast<std::size_t>(interval.end - interval.begin));
        done = interval.end;
      }
      if (done < mask.kv_len)
        std::memset(row + done, 0, static_cast<std::size_t>(mask.kv_len - done));
    }
  });
}

}  // namespace fdma
