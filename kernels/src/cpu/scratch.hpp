// Scratch memory in which one thread of the CPU backend computes.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"

namespace fdma::cpu {

/// Number of columns of the plan's mask that are computed together. They are keys, which one step
/// of online softmax takes, or in a backward work tile queries.
inline constexpr std::int64_t kChunkColumns = 128;
/// Maximum rows of a panel: the largest number of vectors per row group (4) times the largest
/// number of lanes (16).
inline constexpr std::int64_t kMaxPanelRows = 64;

/// `rows` rounded up to whole panels.
inline std::int64_t panel_rows(std::int64_t rows) {
  return ceil_div(rows, kMaxPanelRows) * kMaxPanelRows;
}

/// The columns of a chunk, and the rows that see each.
struct Chunk {
  /// `has_dropout`: for calls with dropout.
  explicit Chunk(BlockShape mask_tile, bool has_dropout = false);
  static std::int64_t bytes(BlockShape mask_tile);

  std::vector<std::int32_t> columns;
  std::vector<std::uint64_t> row_bits;    ///< [kChunkColumns, tile rows / 64 rounded up]
  std::vector<std::uint64_t> kept_bits;   ///< as row_bits: rows whose pairs dropout keeps
  std::vector<std::uint64_t> tile_words;  ///< two tiles of bits, to transpose row panels
};

/// Float32 arrays in one block of memory, each starting at a cache line.
///
/// Example     FloatBlock block; float** a = ..; block.add(a, 100); block.allocate();
class FloatBlock {
 public:
  /// `array` will have `count` elements.
  void add(float*& array, std::int64_t count);
  /// Allocates the block, and sets every array that was added.
  void allocate();
  /// Bytes of all arrays that were added.
  std::int64_t bytes() const { return 4 * (num_floats_ + kCacheLine); }

 private:
  static constexpr std::int64_t kCacheLine = 16;
  struct Request {
    float** array;
    std::int64_t offset;
  };
  std::vector<Request> helper_tasks_;
  std::int64_t num_floats_ = 0;
  std::vector<float> memory_;
};

}  // namespace fdma::cpu
