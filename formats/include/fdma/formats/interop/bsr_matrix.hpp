// BsrMatrix: a mask as a block sparse row matrix of cuSPARSE or SciPy, on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// The order of the cells of a block: cusparseOrder_t, with its numbers.
enum class BsrBlockOrder : std::uint8_t { column = 1, row = 2 };

/// scipy.sparse.bsr_matrix((data, indices, indptr)) of zeros and ones. cuSPARSE calls the arrays
/// values, colInd and rowOffsets.
///
/// Example     causal, 4 x 4, blocks 2 x 2: indptr {0, 1, 3}, indices {0, 0, 1},
///             data {1,0,1,1, 1,1,1,1, 1,0,1,1}
/// Shapes      indptr   [ceil(q_len / block_q) + 1]
///             indices  [num_blocks]
///             data     [num_blocks, block_q, block_kv], one byte a cell, 0 or 1; row-major in a
///                      block unless block_order says otherwise
///             the matrix is q_len x kv_len rounded up to blocks; cells past the lengths are 0
/// Invariants  none are assumed: block_mask_from_bsr checks everything
///             the indices of a row may have any order but do not repeat; blocks may be all zero;
///             indptr and indices count from index_base, 0 or 1
/// Owner       owns its arrays
struct BsrMatrix {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t block_q = 128;
  std::int64_t block_kv = 128;
  std::vector<std::int64_t> indptr;
  std::vector<std::int64_t> indices;
  std::vector<std::uint8_t> data;
  std::int64_t index_base = 0;
  BsrBlockOrder block_order = BsrBlockOrder::row;
  friend bool operator==(const BsrMatrix&, const BsrMatrix&) = default;
};

struct BsrExportOptions {
  BlockShape block;
  std::int64_t max_bytes = std::int64_t{1} << 34;  ///< limit of data
};

/// The matrix of this mask: blocks that hold a true cell, columns ascending, base 0, row-major.
///
/// Errors      unsupported (more than one batch element or head), invalid_argument (block),
///             out_of_memory
/// Cost        O(data)
Result<BsrMatrix> bsr_from_block_mask(const BlockMask& mask, const BsrExportOptions& options = {});

/// The mask of this matrix, in segments of `block`. The matrix's own blocks may have any sides.
///
/// Errors      shape_mismatch (extents); invalid_argument: offsets, a column outside the matrix or
///             twice in a row, a cell that is neither 0 nor 1 or lies past the lengths
/// Cost        O(data)
Result<BlockMask> block_mask_from_bsr(const BsrMatrix& matrix, BlockShape block = {});

}  // namespace fdma
