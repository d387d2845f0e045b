// Makes masks of every format cell by cell, without the conversions that other tests test, and
// temporary folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fdma/formats/block_mask.hpp"

namespace fdma::testing {

/// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

/// The true cells of a mask, as a function and as a table.
using CellRule = std::function<bool(std::int64_t q, std::int64_t k)>;
struct Cells {
  std::int64_t q_len;
  std::int64_t kv_len;
  std::vector<bool> values;
  bool at(std::int64_t q, std::int64_t k) const {
    return values[static_cast<std::size_t>(q * kv_len + k)];
  }
  friend bool operator==(const Cells&, const Cells&) = default;
};
Cells make_cells(std::int64_t q_len, std::int64_t kv_len, const CellRule& rule);
Cells cells_of(const SegmentMask& mask);

SegmentMask segment_of(const Cells& cells, BlockShape block);
BcsrMask bcsr_of(const Cells& cells, BlockShape block);
BlockBitset bitset_of(const Cells& cells, BlockShape block);
ColumnIntervals columns_of(const Cells& cells);
DenseBits dense_of(const Cells& cells);
/// The cells of causal & window(left + 1).
ParametricMask parametric_of(std::int64_t q_len, std::int64_t kv_len, std::int64_t left);

/// Returns one mask of two batch elements and three heads with three groups in `format`. Its
/// lengths are 70 x 100, its blocks 32 x 16.
BlockMask make_mask(MaskFormat format);

/// Returns a segment mask of 70 x 100 with patterns of 2 x 3 and 1 x 2 tiles of 16 x 16 in its
/// first head, and nothing in its second.
BlockMask make_pattern_mask();

}  // namespace fdma::testing
