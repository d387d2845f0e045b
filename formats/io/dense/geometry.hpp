// The order and size of the slabs in which a dense dataset is read.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

/// A box of cells: begin and count along batch, head, q, k.
struct Slab {
  std::array<std::int64_t, 4> begin;
  std::array<std::int64_t, 4> count;
  bool ends_band = false;   ///< every row below begin[2] + count[2] of its planes is read after it
  bool ends_group = false;  ///< its planes are complete after it
};

/// The order in which the cells of a dataset are read: groups of planes that share chunks; in each
/// group bands of query rows; in each band slabs of at most kSlabBytes.
///
/// A chunk is used by one slab, or by consecutive slabs while it is cached, so it is read and
/// inflated once whatever its shape is. Only chunks so tall that their packed rows exceed
/// kWindowBytes are read again for each band. Memory: two slabs, the packed rows of one band, and
/// one chunk.
struct DenseGeometry {
  static constexpr std::int64_t kSlabBytes = std::int64_t{16} << 20;
  static constexpr std::int64_t kWindowBytes = std::int64_t{96} << 20;
  static constexpr std::int64_t kMaxWindowBytes = std::int64_t{512} << 20;
  static constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 30;
  static constexpr std::int64_t kDirectBytesPerThread = std::int64_t{2} << 20;
  static constexpr std::int64_t kMaxDirectChunkBytes = std::int64_t{32} << 20;
  static constexpr std::int64_t kMaxDirectChunks = std::int64_t{1} << 19;  ///< limit for one slab

  DenseDims dims = DenseDims::qk;
  std::array<std::int64_t, 4> extents{1, 1, 1, 1};  ///< of batch, head, q, k in the dataset
  std::vector<int> axes;                            ///< axis (0 to 3) of each dataset dimension
  std::array<std::int64_t, 4> chunk{1, 1, 1, 1};    ///< sides of a chunk, as stored
  std::array<std::int64_t, 2> group{1, 1};          ///< planes of a group: batch elements, heads
  std::int64_t band_rows = 1;
  std::int64_t group_cols = 1;  ///< columns of a band that are read before the next columns
  std::int64_t slab_rows = 1;
  std::int64_t slab_cols = 1;
  std::int64_t cache_bytes =
      0;  ///< bytes that HDF5 must cache: a chunk that is read in parts, or 0

  /// Errors: shape_mismatch (rank and dims disagree, no planes), invalid_argument (a length out of
  /// range), unsupported (chunks above kMaxChunkBytes), out_of_memory (rows too long for a window).
  static Result<DenseGeometry> of(const DatasetInfo& info, const DenseReadOptions& options,
                                  std::int64_t element_bytes, const std::string& where);

  /// Changes the order to that for reading the file without HDF5's data path. Slabs then need no
  /// memory for values, so they are whole bands, and several planes at once if these are small.
  /// Returns false, and changes nothing, if a chunk is too large for that or there are too many.
  bool make_direct(const DatasetInfo& info, BlockShape tile_block, std::int64_t element_bytes,
                   int num_threads);

  std::int64_t num_values() const { return extents[0] * extents[1] * extents[2] * extents[3]; }
  /// The number of values of the largest slab.
  std::int64_t slab_values() const { return group[0] * group[1] * slab_rows * slab_cols; }

  /// Calls visit(slab) in order until it returns false. There are no slabs if there are no cells.
  template <class Visit>
  void for_each_slab(Visit&& visit) const;
};

template <class Visit>
void DenseGeometry::for_each_slab(Visit&& visit) const {
  const auto [num_b, num_h, num_q, num_k] = extents;
  if (num_q == 0 || num_k == 0) return;
  for (std::int64_t b = 0; b < num_b; b += group[0]) {
    for (std::int64_t h = 0; h < num_h; h += group[1]) {
      for (std::int64_t band = 0; band < num_q; band += band_rows) {
        const std::int64_t band_end = std::min(band + band_rows, num_q);
        for (std::int64_t col = 0; col < num_k; col += group_cols) {
          const std::int64_t col_end = std::min(col + group_cols, num_k);
          for (std::int64_t q = band; q < band_end; q += slab_rows) {
            for (std::int64_t k = col; k < col_end; k += slab_cols) {
              Slab slab;
              slab.begin = {b, h, q, k};
              slab.count = {std::min(group[0], num_b - b), std::min(group[1], num_h - h),
                            std::min(slab_rows, band_end - q), std::min(slab_cols, col_end - k)};
              slab.ends_band = q + slab.count[2] == band_end && k + slab.count[3] == num_k;
              slab.ends_group = slab.ends_band && band_end == num_q;
              if (!visit(slab)) return;
            }
          }
        }
      }
    }
  }
}

}  // namespace fdma::io
