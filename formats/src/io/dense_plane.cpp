#include "dense_plane.hpp"

#include <algorithm>
#include <bit>

#include "fdma/formats/row_bands.hpp"

namespace fdma::io {
namespace {

std::int64_t stride_of(std::int64_t kv_len, BlockShape block) {
  return ceil_div(ceil_div(kv_len, block.block_kv) * block.block_kv, 64) + 1;
}

void copy_bits(const std::uint64_t* from, std::int64_t from_begin, std::uint64_t* to,
               std::int64_t to_begin, std::int64_t count) {
  for (std::int64_t c = 0; c < count; c += 64) {
    const int width = static_cast<int>(std::min<std::int64_t>(64, count - c));
    const std::uint64_t bits = read_bits(from, from_begin + c, width);
    const int shift = static_cast<int>((to_begin + c) % 64);
    to[(to_begin + c) / 64] |= bits << shift;
    if (shift + width > 64) to[(to_begin + c) / 64 + 1] |= bits >> (64 - shift);
  }
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

}  // namespace

DensePlane::DensePlane(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                       std::int64_t max_rows)
    : q_len_(q_len),
      kv_len_(kv_len),
      block_(block),
      stride_(stride_of(kv_len, block)),
      num_rows_(std::max<std::int64_t>(1, std::min(q_len, max_rows + block.block_q))),
      window_(static_cast<std::size_t>(num_rows_ * stride_)),
      any_(static_cast<std::size_t>(stride_)),
      all_(static_cast<std::size_t>(stride_)),
      builder_(q_len, kv_len, block) {}

std::int64_t DensePlane::window_bytes(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                                      std::int64_t max_rows) {
  // Two more rows for the summaries.
  return (std::min(q_len, max_rows + block.block_q) + 2) * stride_of(kv_len, block) * 8;
}

void DensePlane::complete(std::int64_t q_end) {
  while (next_row_ < q_len_) {
    const std::int64_t end = std::min(next_row_ + block_.block_q, q_len_);
    if (end > q_end) return;
    add_tile_row(next_row_, end);
    for (std::int64_t q = next_row_; q < end; ++q) std::fill_n(row(q), stride_, 0);
    next_row_ = end;
  }
}

void DensePlane::add_tile_row(std::int64_t q_begin, std::int64_t q_end) {
  std::copy_n(row(q_begin), stride_, any_.data());
  std::copy_n(row(q_begin), stride_, all_.data());
  for (std::int64_t q = q_begin + 1; q < q_end; ++q) {
    const std::uint64_t* words = row(q);
    for (std::int64_t i = 0; i < stride_; ++i) {
      any_[static_cast<std::size_t>(i)] |= words[i];
      all_[static_cast<std::size_t>(i)] &= words[i];
    }
  }
  ranges_.clear();
  const std::int64_t block_kv = block_.block_kv;
  const auto num_tiles = static_cast<std::int32_t>(ceil_div(kv_len_, block_kv));
  for (std::int32_t tile = 0; tile < num_tiles; ++tile) {
    const std::int64_t begin = tile * block_kv;
    const BitSummary summary =
        summarise(any_.data(), all_.data(), begin, std::min(begin + block_kv, kv_len_));
    if (summary.none) continue;
    if (!ranges_.empty() && ranges_.back().end == tile && ranges_.back().is_full == summary.every) {
      ++ranges_.back().end;
    } else {
      ranges_.push_back({tile, tile + 1, summary.every});
    }
  }
  builder_.add_tile_row(ranges_, [&](std::int32_t tile, std::uint64_t* cells) {
    for (std::int64_t q = q_begin; q < q_end; ++q) {
      copy_bits(row(q), tile * block_kv, cells, (q - q_begin) * block_kv, block_kv);
    }
  });
}

SegmentMask DensePlane::finish() {
  complete(q_len_);
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
