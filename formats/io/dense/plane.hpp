// One (batch element, head) of a dense mask, from packed rows to a SegmentMask.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_builder.hpp"

namespace fdma::io {

/// A window of packed query rows that become tile rows as soon as they are complete.
///
/// Example     DensePlane plane(q_len, kv_len, block, 64);
///             for (q = 0; q < q_len; q += 64) {
///               pack rows q .. q + 63 into row(q) ..;
///               plane.complete(q + 64, true);
///             }
///             SegmentMask mask = plane.finish();
/// Shapes      row(q): words of 64 keys, zero where nothing was packed yet (see complete); rows
///             [done, done + max_rows) may be written, where done was last given to complete() and
///             is a multiple of max_rows
/// Cost        memory (max_rows + block_q) * kv_len / 8 B beside the result
class DensePlane {
 public:
  DensePlane(std::int64_t q_len, std::int64_t kv_len, BlockShape block, std::int64_t max_rows);

  /// Bytes of the packed rows of one plane.
  static std::int64_t window_bytes(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                                   std::int64_t max_rows);

  std::uint64_t* row(std::int64_t q) { return window_.data() + (q % num_rows_) * stride_; }
  /// The number of rows from q on that lie row_stride() words apart.
  std::int64_t rows_after(std::int64_t q) const { return num_rows_ - q % num_rows_; }
  std::int64_t row_stride() const { return stride_; }
  /// Declares that every row below q_end is packed. Rows that are no longer needed become 0 if
  /// `clears`; otherwise the caller must overwrite every word of them.
  void complete(std::int64_t q_end, bool clears);
  /// Bytes stored so far.
  std::int64_t data_bytes() const { return builder_.data_bytes(); }
  SegmentMask finish();

 private:
  /// The tiles of one tile row that are not empty.
  std::vector<TileRange> classify(std::int64_t q_begin, std::int64_t q_end) const;

  std::int64_t q_len_;
  std::int64_t kv_len_;
  BlockShape block_;
  std::int64_t stride_;    // words of a row, plus one that read_bits may read
  std::int64_t num_rows_;  // rows of the window, which is a ring
  std::int64_t next_row_ = 0;
  std::vector<std::uint64_t> window_;
  SegmentBuilder builder_;
};

/// The mask whose query rows all see the keys set in `row`.
SegmentMask mask_of_equal_rows(const std::uint64_t* row, std::int64_t q_len, std::int64_t kv_len,
                               BlockShape block);

}  // namespace fdma::io
