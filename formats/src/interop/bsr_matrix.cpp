// Block sparse rows of any block size from and to a mask.
//
// Import goes by tile rows of the result. The matrix blocks that reach into a tile row are searched
// once for each of its rows, and each true cell sets a bit of the tile that holds it. Only tiles
// with such a cell are made, so the cost is that of the data.
#include "fdma/formats/interop/bsr_matrix.hpp"

#include <algorithm>
#include <map>

#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "interop/checks.hpp"

namespace fdma {
namespace {

using interop::wrong;

Result<void> check(const BsrMatrix& matrix) {
  FDMA_TRY_VOID(interop::check_length("q_len", matrix.q_len));
  FDMA_TRY_VOID(interop::check_length("kv_len", matrix.kv_len));
  if (matrix.block_q < 1 || matrix.block_kv < 1 || matrix.block_q > kMaxLength ||
      matrix.block_kv > kMaxLength) {
    return wrong(fmt::format("data: blocks of {} x {}, expected 1 to {} each", matrix.block_q,
                             matrix.block_kv, kMaxLength));
  }
  const std::int64_t rows = ceil_div(matrix.q_len, matrix.block_q);
  const std::int64_t cols = ceil_div(matrix.kv_len, matrix.block_kv);
  const auto num_blocks = static_cast<std::int64_t>(matrix.indices.size());
  FDMA_TRY_VOID(interop::check_extent("indptr", matrix.indptr.size(), rows + 1, 1));
  FDMA_TRY_VOID(interop::check_extent("data", matrix.data.size(), num_blocks,
                                      matrix.block_q * matrix.block_kv));
  const std::int64_t base = matrix.index_base;
  if (base != 0 && base != 1) return wrong(fmt::format("index_base: {}, expected 0 or 1", base));
  if (matrix.block_order != BsrBlockOrder::row && matrix.block_order != BsrBlockOrder::column) {
    return wrong(fmt::format("block_order: {}, expected 1 (column) or 2 (row)",
                             static_cast<int>(matrix.block_order)));
  }
  if (matrix.indptr.front() != base || matrix.indptr.back() != num_blocks + base) {
    return wrong(fmt::format(
        "indptr: from {} to {}, expected {} to {}, the entries of indices{}", matrix.indptr.front(),
        matrix.indptr.back(), base, num_blocks + base,
        base == 0 && matrix.indptr.front() == 1 ? " (is it counted from index_base 1?)" : ""));
  }
  for (std::size_t i = 1; i < matrix.indptr.size(); ++i) {
    if (matrix.indptr[i] >= matrix.indptr[i - 1]) continue;
    return wrong(fmt::format("indptr[{}]: {} after {}, expected no decrease", i, matrix.indptr[i],
                             matrix.indptr[i - 1]));
  }
  std::vector<std::int64_t> sorted;
  for (std::size_t row = 0; row + 1 < matrix.indptr.size(); ++row) {
    sorted.assign(matrix.indices.begin() + (matrix.indptr[row] - base),
                  matrix.indices.begin() + (matrix.indptr[row + 1] - base));
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) continue;
    if (sorted.front() < base || sorted.back() >= cols + base) {
      return wrong(fmt::format("indices: {} in block row {}, expected {} to {}",
                               sorted.front() < base ? sorted.front() : sorted.back(), row, base,
                               cols - 1 + base));
    }
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
      return wrong(
          fmt::format("indices: {} twice in block row {} (sum_duplicates() first)", *twice, row));
    }
  }
  for (std::size_t i = 0; i < matrix.data.size(); ++i) {
    if (matrix.data[i] <= 1) continue;
    return wrong(fmt::format("data: element {} is {}, expected 0 or 1", i, matrix.data[i]));
  }
  return {};
}

using TileBits = std::map<std::int32_t, std::vector<std::uint64_t>>;

// Sets the bits of matrix row q in the tiles of its tile row.
Result<void> add_row(const BsrMatrix& matrix, std::int64_t q, BlockShape block, TileBits& tiles) {
  const auto row = static_cast<std::size_t>(q / matrix.block_q);
  const std::int64_t in_block = q % matrix.block_q;
  const auto words = static_cast<std::size_t>(std::int64_t{block.block_q} * block.block_kv / 64);
  // The cells of a row of a block are adjacent, or block_q apart.
  const bool is_row_major = matrix.block_order == BsrBlockOrder::row;
  const std::int64_t first = is_row_major ? in_block * matrix.block_kv : in_block;
  const std::int64_t stride = is_row_major ? 1 : matrix.block_q;
  const std::int64_t base = matrix.index_base;
  for (std::int64_t i = matrix.indptr[row] - base; i < matrix.indptr[row + 1] - base; ++i) {
    const std::uint8_t* cells = matrix.data.data() + i * matrix.block_q * matrix.block_kv + first;
    const std::int64_t first_key =
        (matrix.indices[static_cast<std::size_t>(i)] - base) * matrix.block_kv;
    for (std::int64_t c = 0; c < matrix.block_kv; ++c) {
      if (cells[c * stride] == 0) continue;
      const std::int64_t key = first_key + c;
      if (q >= matrix.q_len || key >= matrix.kv_len) {
        return wrong(fmt::format("data: cell ({}, {}) is 1, but the mask has {} x {} cells", q, key,
                                 matrix.q_len, matrix.kv_len));
      }
      std::vector<std::uint64_t>& bits = tiles[static_cast<std::int32_t>(key / block.block_kv)];
      bits.resize(words);
      const std::int64_t bit = q % block.block_q * block.block_kv + key % block.block_kv;
      bits[static_cast<std::size_t>(bit / 64)] |= std::uint64_t{1} << (bit % 64);
    }
  }
  return {};
}

}  // namespace

Result<BsrMatrix> bsr_from_block_mask(const BlockMask& mask, const BsrExportOptions& options) {
  FDMA_TRY_VOID(validate(options.block));
  if (mask.shape.num_batches * mask.shape.num_heads != 1) {
    return interop::unsupported(
        fmt::format("a BSR matrix holds one batch element and head, but this "
                    "mask has {} x {}; crop it to one",
                    mask.shape.num_batches, mask.shape.num_heads));
  }
  const SegmentMask segments = segment_of_group(mask, 0, options.block);
  FDMA_TRY_VOID(check_memory(conversion_bytes(segments, MaskFormat::bcsr).result, "bsr"));
  const BcsrMask bcsr = bcsr_from_segment(segments);
  const std::int64_t block_q = options.block.block_q, block_kv = options.block.block_kv;
  const auto num_blocks = static_cast<std::int64_t>(bcsr.col_indices.size());
  if (num_blocks > options.max_bytes / (block_q * block_kv)) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("data: {} blocks of {} x {} bytes, more than {} bytes in all",
                             num_blocks, block_q, block_kv, options.max_bytes)};
  }
  FDMA_TRY_VOID(check_memory(num_blocks * block_q * block_kv, "data"));
  BsrMatrix matrix;
  matrix.q_len = bcsr.q_len;
  matrix.kv_len = bcsr.kv_len;
  matrix.block_q = block_q;
  matrix.block_kv = block_kv;
  matrix.indptr = bcsr.row_offsets;
  matrix.indices.assign(bcsr.col_indices.begin(), bcsr.col_indices.end());
  matrix.data.resize(static_cast<std::size_t>(num_blocks * block_q * block_kv));
  std::uint8_t* out = matrix.data.data();
  for (std::int64_t row = 0; row < bcsr.num_tile_rows(); ++row) {
    const std::int64_t num_rows = std::min(block_q, bcsr.q_len - row * block_q);
    for (std::int64_t i = bcsr.row_offsets[static_cast<std::size_t>(row)];
         i < bcsr.row_offsets[static_cast<std::size_t>(row) + 1]; ++i, out += block_q * block_kv) {
      const std::int64_t bitmap = bcsr.bitmap_index[static_cast<std::size_t>(i)];
      const std::int64_t keys = std::min(
          block_kv, bcsr.kv_len - bcsr.col_indices[static_cast<std::size_t>(i)] * block_kv);
      if (bitmap == BcsrMask::kFullBlock) {
        for (std::int64_t r = 0; r < num_rows; ++r) std::fill_n(out + r * block_kv, keys, 1);
        continue;
      }
      const std::uint64_t* bits = bcsr.bitmaps.data() + bitmap * (block_q * block_kv / 64);
      for (std::int64_t bit = 0; bit < block_q * block_kv; ++bit) {
        out[bit] = static_cast<std::uint8_t>(bits[bit / 64] >> (bit % 64) & 1);
      }
    }
  }
  return matrix;
}

Result<BlockMask> block_mask_from_bsr(const BsrMatrix& matrix, BlockShape block) {
  FDMA_TRY_VOID(validate(block));
  FDMA_TRY_VOID(check(matrix));
  SegmentBuilder builder(matrix.q_len, matrix.kv_len, block);
  TileBits tiles;
  std::vector<TileRange> ranges;
  const std::int64_t stored_rows =
      static_cast<std::int64_t>(matrix.indptr.size() - 1) * matrix.block_q;
  for (std::int64_t first = 0; first < matrix.q_len; first += block.block_q) {
    tiles.clear();
    const std::int64_t last = std::min(first + block.block_q, matrix.q_len);
    for (std::int64_t q = first; q < last; ++q) {
      FDMA_TRY_VOID(add_row(matrix, q, block, tiles));
    }
    ranges.clear();
    for (const auto& [col, bits] : tiles) ranges.push_back({col, col + 1, false});
    builder.add_tile_row(
        ranges,
        [&](std::int32_t tile, std::uint64_t* words) {
          const std::vector<std::uint64_t>& bits = tiles.find(tile)->second;
          std::copy(bits.begin(), bits.end(), words);
        },
        true);
  }
  for (std::int64_t q = matrix.q_len; q < stored_rows; ++q) {
    FDMA_TRY_VOID(add_row(matrix, q, block, tiles));  // an error if a cell there is true
  }
  std::vector<SegmentMask> masks;
  masks.push_back(builder.finish());
  return make_block_mask({1, 1, {matrix.q_len}, {matrix.kv_len}}, block, std::move(masks));
}

}  // namespace fdma
