#include "io/dense/plane.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <bit>

#include "fdma/formats/row_bands.hpp"
#include "io/hdf5/dense_kernels.hpp"
#include "segment/bit_copy.hpp"

namespace fdma::io {
namespace {

std::int64_t stride_of(std::int64_t kv_len, BlockShape block) {
  return ceil_div(ceil_div(kv_len, block.block_kv) * block.block_kv, 64) + 1;
}

// Whether no bit and whether every bit of [begin, end) is set.
struct BitSummary {
  bool none = true;
  bool every = true;
};
BitSummary summarise(const std::uint64_t* any, const std::uint64_t* all, std::int64_t begin,
                     std::int64_t end) {
  BitSummary summary;
  for (std::int64_t k = begin; k < end; k += 64) {
    const int width = static_cast<int>(std::min<std::int64_t>(64, end - k));
    const std::uint64_t ones = ~std::uint64_t{0} >> (64 - width);
    summary.none = summary.none && read_bits(any, k, width) == 0;
    summary.every = summary.every && read_bits(all, k, width) == ones;
  }
  return summary;
}

// Rows that are written before their tile row is complete; none if bands are whole tile rows.
std::int64_t window_rows(std::int64_t q_len, BlockShape block, std::int64_t max_rows) {
  const std::int64_t left_over = max_rows % block.block_q == 0 ? 0 : block.block_q;
  return std::max<std::int64_t>(1, std::min(q_len, max_rows + left_over));
}

}  // namespace

DensePlane::DensePlane(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                       std::int64_t max_rows)
    : q_len_(q_len),
      kv_len_(kv_len),
      block_(block),
      stride_(stride_of(kv_len, block)),
      num_rows_(window_rows(q_len, block, max_rows)),
      window_(static_cast<std::size_t>(num_rows_ * stride_)),
      builder_(q_len, kv_len, block) {}

std::int64_t DensePlane::window_bytes(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                                      std::int64_t max_rows) {
  return window_rows(q_len, block, max_rows) * stride_of(kv_len, block) * 8;
}

void DensePlane::complete(std::int64_t q_end, bool clears) {
  constexpr std::int64_t kTileRowsAtOnce = 256;
  const std::int64_t block_q = block_.block_q, block_kv = block_.block_kv;
  const std::int64_t end = q_end >= q_len_ ? q_len_ : q_end - q_end % block_q;
  while (next_row_ < end) {
    const std::int64_t first = next_row_;
    const std::int64_t num_tile_rows = std::min(ceil_div(end - first, block_q), kTileRowsAtOnce);
    const auto begin_of = [&](std::int64_t i) { return std::min(first + i * block_q, end); };
    std::vector<std::vector<TileRange>> ranges(static_cast<std::size_t>(num_tile_rows));
    tbb::parallel_for(std::int64_t{0}, num_tile_rows, [&](std::int64_t i) {
      ranges[static_cast<std::size_t>(i)] = classify(begin_of(i), begin_of(i + 1));
    });
    // How a tile row is stored depends on those stored before, so they are appended in order.
    for (std::int64_t i = 0; i < num_tile_rows; ++i) {
      const std::int64_t begin = begin_of(i);
      builder_.add_tile_row(
          ranges[static_cast<std::size_t>(i)], [&](std::int32_t tile, std::uint64_t* cells) {
            for (std::int64_t q = begin; q < begin_of(i + 1); ++q) {
              copy_bits(cells, (q - begin) * block_kv, row(q), tile * block_kv, block_kv);
            }
          });
    }
    next_row_ = begin_of(num_tile_rows);
    if (!clears) continue;
    for (std::int64_t q = first; q < next_row_; ++q) std::fill_n(row(q), stride_, 0);
  }
}

std::vector<TileRange> DensePlane::classify(std::int64_t q_begin, std::int64_t q_end) const {
  std::vector<std::uint64_t> any(static_cast<std::size_t>(stride_));  // keys that some query sees
  std::vector<std::uint64_t> all(any.size(), ~std::uint64_t{0});      // keys that every query sees
  for (std::int64_t q = q_begin; q < q_end;) {
    const std::int64_t rows = std::min(q_end - q, rows_after(q));
    merge_rows(window_.data() + (q % num_rows_) * stride_, stride_, rows, stride_, any.data(),
               all.data());
    q += rows;
  }
  std::vector<TileRange> ranges;
  const std::int64_t block_kv = block_.block_kv;
  const auto num_tiles = static_cast<std::int32_t>(ceil_div(kv_len_, block_kv));
  for (std::int32_t tile = 0; tile < num_tiles; ++tile) {
    const std::int64_t begin = tile * block_kv;
    const BitSummary summary =
        summarise(any.data(), all.data(), begin, std::min(begin + block_kv, kv_len_));
    if (summary.none) continue;
    if (!ranges.empty() && ranges.back().end == tile && ranges.back().is_full == summary.every) {
      ++ranges.back().end;
    } else {
      ranges.push_back({tile, tile + 1, summary.every});
    }
  }
  return ranges;
}

SegmentMask DensePlane::finish() {
  complete(q_len_, false);
  return builder_.finish();
}

SegmentMask mask_of_equal_rows(const std::uint64_t* row, std::int64_t q_len, std::int64_t kv_len,
                               BlockShape block) {
  RowBands bands;
  bands.q_len = q_len;
  bands.kv_len = kv_len;
  for (std::int64_t k = 0; k < kv_len;) {
    const int width = static_cast<int>(std::min<std::int64_t>(64, kv_len - k));
    const std::uint64_t bits = read_bits(row, k, width);
    if (bits == 0) {
      k += width;
      continue;
    }
    const std::int64_t begin = k + std::countr_zero(bits);
    const std::int64_t end =
        std::min<std::int64_t>(begin + std::countr_one(bits >> (begin - k)), kv_len);
    if (!bands.intervals.empty() && bands.intervals.back().hi_base == begin) {
      bands.intervals.back().hi_base = end;
    } else {
      bands.intervals.push_back({begin, end, 0, 0});
    }
    k = end;
  }
  if (q_len > 0 && !bands.intervals.empty()) {
    bands.bands.push_back({0, static_cast<std::int32_t>(q_len), 0,
                           static_cast<std::int32_t>(bands.intervals.size())});
  }
  return segment_from_bands(bands, block);
}

}  // namespace fdma::io
