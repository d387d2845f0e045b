// Counts and lists runs of live rows. A run begins where a bit is set that is not set in the row
// above, and ends where it is the other way round. Both follow from the exclusive or of adjacent
// rows, 64 keys at a time.
#include "plan/cell_runs.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "fdma/formats/segment_builder.hpp"

namespace fdma {
namespace {

// Calls visit(row, first column, bits of the row, bits of the row above).
template <class Visit>
void for_each_row_word(const std::uint64_t* words, BlockShape block, Visit&& visit) {
  const std::int64_t block_kv = block.block_kv;
  for (std::int64_t r = 0; r < block.block_q; ++r) {
    for (std::int64_t c = 0; c < block_kv; c += 64) {
      const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
      const std::uint64_t above = r == 0 ? 0 : read_bits(words, (r - 1) * block_kv + c, width);
      visit(r, c, read_bits(words, r * block_kv + c, width), above);
    }
  }
}

}  // namespace

std::int64_t count_runs(const std::uint64_t* words, BlockShape block) {
  std::int64_t runs = 0;
  for_each_row_word(words, block,
                    [&runs](std::int64_t, std::int64_t, std::uint64_t row, std::uint64_t above) {
                      runs += std::popcount(row & ~above);
                    });
  return runs;
}

std::int64_t count_keys(const std::uint64_t* words, BlockShape block) {
  std::vector<std::uint64_t> live(static_cast<std::size_t>(ceil_div(block.block_kv, 64)));
  for_each_row_word(words, block,
                    [&live](std::int64_t, std::int64_t c, std::uint64_t row, std::uint64_t) {
                      live[static_cast<std::size_t>(c / 64)] |= row;
                    });
  std::int64_t keys = 0;
  for (const std::uint64_t word : live) keys += std::popcount(word);
  return keys;
}

void append_runs(const std::uint64_t* words, BlockShape block, std::vector<CellRun>& runs) {
  std::vector<std::uint16_t> begin(static_cast<std::size_t>(block.block_kv));
  const auto end_run = [&](std::int64_t c, std::int64_t r) {
    runs.push_back({static_cast<std::int32_t>(c), begin[static_cast<std::size_t>(c)],
                    static_cast<std::uint16_t>(r)});
  };
  for_each_row_word(words, block,
                    [&](std::int64_t r, std::int64_t c, std::uint64_t row, std::uint64_t above) {
                      for (std::uint64_t ended = above & ~row; ended != 0; ended &= ended - 1) {
                        end_run(c + std::countr_zero(ended), r);
                      }
                      for (std::uint64_t begun = row & ~above; begun != 0; begun &= begun - 1) {
                        begin[static_cast<std::size_t>(c + std::countr_zero(begun))] =
                            static_cast<std::uint16_t>(r);
                      }
                      if (r + 1 < block.block_q) return;
                      for (std::uint64_t open = row; open != 0; open &= open - 1) {
                        end_run(c + std::countr_zero(open), block.block_q);
                      }
                    });
}

std::int64_t panel_tiles(const SegmentMask& mask, std::int64_t panel) {
  const auto first = static_cast<std::size_t>(panel * mask.block.block_q);
  std::int64_t width = 0;
  for (std::int64_t i = mask.row_offsets[first];
       i < mask.row_offsets[first + static_cast<std::size_t>(mask.block.block_q)]; ++i) {
    width = std::max<std::int64_t>(width, mask.row_intervals[static_cast<std::size_t>(i)].end);
  }
  return ceil_div(width, mask.block.block_kv);
}

void panel_cells(const SegmentMask& mask, std::int64_t panel, std::int64_t tile,
                 std::vector<std::uint64_t>& words) {
  const std::int64_t block_kv = mask.block.block_kv, first_key = tile * block_kv;
  std::fill(words.begin(), words.end(), 0);
  for (std::int64_t r = 0; r < mask.block.block_q; ++r) {
    const auto row = static_cast<std::size_t>(panel * mask.block.block_q + r);
    for (std::int64_t i = mask.row_offsets[row]; i < mask.row_offsets[row + 1]; ++i) {
      const Interval keys = mask.row_intervals[static_cast<std::size_t>(i)];
      const std::int64_t begin = std::max<std::int64_t>(keys.begin - first_key, 0);
      const std::int64_t end = std::min<std::int64_t>(keys.end - first_key, block_kv);
      if (begin < end) set_bits(words.data(), r * block_kv + begin, r * block_kv + end);
    }
  }
}

}  // namespace fdma
