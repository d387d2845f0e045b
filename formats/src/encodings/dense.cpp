// Dense bits from and to the canonical form.
//
// To the canonical form, the rows of a tile row are folded word by word into "some row has it" and
// "every row has it". A tile is empty iff the first has no bit of it, full iff the second has all
// of them. That reads the mask once, at memory speed; only partial tiles are then gathered into
// bitmaps. Batches of tile rows are classified in parallel and appended in order, so the result
// does not depend on threads.
#include <fmt/format.h>

#include <algorithm>

#include "fdma/base/parallel.hpp"
#include "fdma/formats/convert.hpp"
#include "segment/bit_copy.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kWordsPerBatch = std::int64_t{1} << 20;  // classified at a time: 8 MiB

// The tiles of one tile row that are not empty.
std::vector<TileRange> classify(const DenseBits& mask, BlockShape block, std::int64_t row) {
  const auto words_per_row = static_cast<std::size_t>(mask.words_per_row());
  const std::int64_t q_begin = row * block.block_q;
  const std::int64_t q_end = std::min(q_begin + block.block_q, mask.q_len);
  std::vector<std::uint64_t> some(words_per_row, 0), every(words_per_row, ~std::uint64_t{0});
  for (std::int64_t q = q_begin; q < q_end; ++q) {
    const std::uint64_t* words = mask.words.data() + static_cast<std::size_t>(q) * words_per_row;
    for (std::size_t i = 0; i < words_per_row; ++i) {
      some[i] |= words[i];
      every[i] &= words[i];
    }
  }
  std::vector<TileRange> ranges;
  for (std::int64_t k = 0; k < mask.kv_len; k += block.block_kv) {
    const std::int64_t k_end = std::min(k + block.block_kv, mask.kv_len);
    if (all_bits_are(some.data(), k, k_end, false)) continue;
    const bool is_full = all_bits_are(every.data(), k, k_end, true);
    const auto tile = static_cast<std::int32_t>(k / block.block_kv);
    if (!ranges.empty() && ranges.back().end == tile && ranges.back().is_full == is_full) {
      ++ranges.back().end;
    } else {
      ranges.push_back({tile, tile + 1, is_full});
    }
  }
  return ranges;
}

// Writes query rows [q_begin, q_end) of a segment of tile row `row` into the rows of `result`.
void write_segment(const SegmentMask& mask, const TileSegment& segment, std::int32_t row,
                   std::vector<std::uint64_t>& scratch, DenseBits& result) {
  const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
  const std::int64_t num_rows = std::min(block_q, mask.q_len - row * block_q);
  const std::int64_t words_per_row = result.words_per_row();
  std::uint64_t* out = result.words.data() + row * block_q * words_per_row;
  const std::int64_t k_begin = segment.first_tile * block_kv;
  const std::int64_t k_end = std::min(segment.end_tile * block_kv, mask.kv_len);
  switch (segment.kind) {
    case SegmentKind::full:
      for (std::int64_t r = 0; r < num_rows; ++r) set_bits(out + r * words_per_row, k_begin, k_end);
      break;
    case SegmentKind::rows:
      for (std::int64_t r = 0; r < num_rows; ++r) {
        const auto panel_row = static_cast<std::size_t>(segment.data_index * block_q + r);
        for (std::int64_t i = mask.row_offsets[panel_row]; i < mask.row_offsets[panel_row + 1];
             ++i) {
          const Interval keys = mask.row_intervals[static_cast<std::size_t>(i)];
          set_bits(out + r * words_per_row, k_begin + keys.begin,
                   std::min(k_begin + keys.end, k_end));
        }
      }
      break;
    case SegmentKind::bitmap:
    case SegmentKind::columns:
    case SegmentKind::pattern:
      for (std::int32_t tile = segment.first_tile; tile < segment.end_tile; ++tile) {
        const std::uint64_t* cells = nullptr;
        if (segment.kind == SegmentKind::bitmap) {
          cells = mask.bitmap(segment.data_index).data();
        } else {
          tile_cells(mask, segment, row, tile, scratch.data());
          cells = scratch.data();
        }
        const std::int64_t k = tile * block_kv;
        const std::int64_t width = std::min(block_kv, mask.kv_len - k);
        for (std::int64_t r = 0; r < num_rows; ++r) {
          copy_bits(out + r * words_per_row, k, cells, r * block_kv, width);
        }
      }
      break;
  }
}

}  // namespace

SegmentMask segment_from_dense(const DenseBits& mask, BlockShape block) {
  SegmentBuilder builder(mask.q_len, mask.kv_len, block);
  const std::int64_t num_rows = ceil_div(mask.q_len, block.block_q);
  const std::int64_t words_per_row = mask.words_per_row();
  const std::int64_t batch = std::clamp<std::int64_t>(
      kWordsPerBatch / std::max<std::int64_t>(1, block.block_q * words_per_row), 1,
      std::max<std::int64_t>(1, num_rows));
  std::vector<std::vector<TileRange>> ranges(static_cast<std::size_t>(batch));
  for (std::int64_t first = 0; first < num_rows; first += batch) {
    const std::int64_t last = std::min(first + batch, num_rows);
    parallel_for(first, last, [&](std::int64_t row) {
      ranges[static_cast<std::size_t>(row - first)] = classify(mask, block, row);
    });
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t q_begin = row * block.block_q;
      const std::int64_t q_end = std::min(q_begin + block.block_q, mask.q_len);
      builder.add_tile_row(ranges[static_cast<std::size_t>(row - first)],
                           [&](std::int32_t tile, std::uint64_t* words) {
                             const std::int64_t k = std::int64_t{tile} * block.block_kv;
                             const std::int64_t width =
                                 std::min<std::int64_t>(block.block_kv, mask.kv_len - k);
                             for (std::int64_t q = q_begin; q < q_end; ++q) {
                               copy_bits(words, (q - q_begin) * block.block_kv,
                                         mask.words.data() + q * words_per_row, k, width);
                             }
                           });
    }
  }
  return builder.finish();
}

Result<DenseBits> dense_from_segment(const SegmentMask& mask, std::int64_t max_bytes) {
  DenseBits result;
  result.q_len = mask.q_len;
  result.kv_len = mask.kv_len;
  const std::int64_t bytes = mask.q_len * result.words_per_row() * 8;
  if (bytes > max_bytes) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("dense: {} x {} cells take {} bytes, but at most {} are allowed; keep "
                             "the mask as segment, columns or bcsr",
                             mask.q_len, mask.kv_len, bytes, max_bytes)};
  }
  result.words.resize(static_cast<std::size_t>(bytes / 8));
  // Different tile rows write different words of the result.
  fdma::parallel_for(
      tbb::blocked_range<std::int32_t>(0, mask.num_tile_rows()),
      [&](const tbb::blocked_range<std::int32_t>& rows) {
        std::vector<std::uint64_t> scratch(static_cast<std::size_t>(mask.words_per_bitmap()));
        for (std::int32_t row = rows.begin(); row < rows.end(); ++row) {
          for (const TileSegment& segment : segments_of_row(mask, row)) {
            write_segment(mask, segment, row, scratch, result);
          }
        }
      });
  return result;
}

}  // namespace fdma
