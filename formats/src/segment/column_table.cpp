// The column table of a mask, and when it is worth storing.
//
// Going down the rows, a key's query interval begins where its bit changes from 0 to 1. Inside full
// and empty tiles nothing changes, and inside equal bitmaps the same number of bits changes.
// Counting therefore needs the first and last row of each tile row and one visit of every distinct
// bitmap and panel. Listing the intervals needs all rows, but only of partial tiles. In equal tile
// rows after the first, the same keys change in each row, so they are visited once: a mask of 2^31
// query rows of which nearly all are empty costs no more than a short one.
#include "segment/column_table.hpp"

#include <algorithm>
#include <bit>

#include "fdma/formats/segment_builder.hpp"
#include "segment/bit_copy.hpp"
#include "segment/bit_scan.hpp"
#include "segment/bit_transpose.hpp"
#include "segment/still_rows.hpp"

namespace fdma {
namespace {

void clear_bits(std::uint64_t* words, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  const std::int64_t first = begin / 64, last = (end - 1) / 64;
  const std::uint64_t head = ~std::uint64_t{0} << (begin % 64);
  const std::uint64_t tail = ~std::uint64_t{0} >> (63 - (end - 1) % 64);
  if (first == last) {
    words[first] &= ~(head & tail);
    return;
  }
  words[first] &= ~head;
  for (std::int64_t i = first + 1; i < last; ++i) words[i] = 0;
  words[last] &= ~tail;
}

// Writes row r of a segment of the current tile row into the row of bits `words`.
void write_segment_row(const SegmentMask& mask, const TileSegment& segment, std::int64_t r,
                       std::uint64_t* words) {
  const std::int64_t block_kv = mask.block.block_kv;
  const std::int64_t k_begin = segment.first_tile * block_kv;
  const std::int64_t k_end = std::min(segment.end_tile * block_kv, mask.kv_len);
  clear_bits(words, k_begin, k_end);
  switch (segment.kind) {
    case SegmentKind::full:
      set_bits(words, k_begin, k_end);
      break;
    case SegmentKind::bitmap: {
      const std::uint64_t* bitmap = mask.bitmap(segment.data_index).data();
      if (block_kv % 64 == 0) {  // whole words; those past kv_len are left out
        const std::int64_t words_per_row = block_kv / 64;
        const std::int64_t end = ceil_div(k_end, 64);
        const std::uint64_t* row = bitmap + r * words_per_row;
        for (std::int64_t w = k_begin / 64; w < end; w += words_per_row) {
          if (words_per_row == 2 && w + 2 <= end) {  // the usual block of 128 keys
            words[w] = row[0];
            words[w + 1] = row[1];
          } else {
            std::copy_n(row, std::min(words_per_row, end - w), words + w);
          }
        }
        break;
      }
      for (std::int64_t k = k_begin; k < k_end; k += block_kv) {
        for (std::int64_t c = 0; c < std::min(block_kv, k_end - k); c += 64) {
          const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
          const int existing = static_cast<int>(std::min<std::int64_t>(width, k_end - k - c));
          write_bits(words, k + c, read_bits(bitmap, r * block_kv + c, width), existing);
        }
      }
      break;
    }
    case SegmentKind::rows: {
      const auto row =
          static_cast<std::size_t>(segment.data_index * std::int64_t{mask.block.block_q} + r);
      for (std::int64_t i = mask.row_offsets[row]; i < mask.row_offsets[row + 1]; ++i) {
        const Interval keys = mask.row_intervals[static_cast<std::size_t>(i)];
        set_bits(words, k_begin + keys.begin, k_begin + keys.end);
      }
      break;
    }
    case SegmentKind::columns:
    case SegmentKind::pattern:
      break;  // masks that come here have none; patterns are written out
  }
}

std::int64_t panel_turns(const SegmentMask& mask, std::int32_t panel) {
  const std::int64_t block_q = mask.block.block_q;
  const std::int64_t* offsets = mask.row_offsets.data() + panel * block_q;
  const Interval* intervals = mask.row_intervals.data();
  std::int64_t width = 0;  // number of keys that the panel reaches
  for (std::int64_t r = 0; r < block_q; ++r) {
    if (offsets[r] < offsets[r + 1]) {
      width = std::max<std::int64_t>(width, intervals[offsets[r + 1] - 1].end);
    }
  }
  const std::int64_t num_words = ceil_div(width, 64);
  std::vector<std::uint64_t> above(static_cast<std::size_t>(num_words)), row(above.size());
  std::int64_t turns = 0;
  for (std::int64_t r = 0; r < block_q; ++r) {
    std::fill(row.begin(), row.end(), 0);
    for (std::int64_t i = offsets[r]; i < offsets[r + 1]; ++i) {
      set_bits(row.data(), intervals[i].begin, intervals[i].end);
    }
    if (r > 0) turns += count_and_not(row.data(), above.data(), num_words);
    above.swap(row);
  }
  return turns;
}

// Number of query intervals of all keys, or any value above `limit`.
std::int64_t count_column_intervals(const SegmentMask& mask, std::int64_t limit) {
  const auto num_words = static_cast<std::size_t>(ceil_div(mask.kv_len, 64));
  std::vector<std::uint64_t> above(num_words), top(num_words);
  std::vector<std::int64_t> turns_of_bitmap(static_cast<std::size_t>(mask.num_bitmaps()), -1);
  std::vector<std::int64_t> turns_of_panel(static_cast<std::size_t>(mask.num_row_panels()), -1);
  std::int64_t count = 0;
  const auto add_row = [&](std::int64_t row, std::span<const TileSegment> segments) {
    std::fill(top.begin(), top.end(), 0);
    for (const TileSegment& segment : segments) write_segment_row(mask, segment, 0, top.data());
    count += count_and_not(top.data(), above.data(), static_cast<std::int64_t>(num_words));
    const std::int64_t last_row =
        std::min<std::int64_t>(mask.block.block_q, mask.q_len - row * mask.block.block_q) - 1;
    above.swap(top);
    for (const TileSegment& segment : segments) {
      if (segment.kind == SegmentKind::full) continue;
      const bool is_bitmap = segment.kind == SegmentKind::bitmap;
      std::int64_t& turns =
          (is_bitmap ? turns_of_bitmap
                     : turns_of_panel)[static_cast<std::size_t>(segment.data_index)];
      if (turns < 0) {
        turns = is_bitmap ? count_column_starts(mask.bitmap(segment.data_index).data(), mask.block)
                          : panel_turns(mask, segment.data_index);
      }
      count += turns * (is_bitmap ? segment.end_tile - segment.first_tile : 1);
      write_segment_row(mask, segment, last_row, above.data());
    }
  };
  for_each_still_rows(
      mask, [&](std::int32_t row, std::int32_t num_rows, std::span<const TileSegment> segments) {
        add_row(row, segments);
        if (num_rows > 1) {
          const std::int64_t before = count;
          add_row(row + 1, segments);
          count += (count - before) * (num_rows - 2);
        }
        return count <= limit;
      });
  return count;
}

}  // namespace

ColumnTable column_table_of(const SegmentMask& mask, std::int64_t num_intervals) {
  if (!mask.column_offsets.empty()) return {mask.column_offsets, mask.column_intervals};
  const auto num_words = static_cast<std::size_t>(ceil_div(mask.kv_len, 64));
  struct Entry {
    std::int32_t key;
    Interval queries;
  };
  std::vector<Entry> entries;
  entries.reserve(static_cast<std::size_t>(num_intervals));
  std::vector<std::uint64_t> above(num_words), current(num_words);
  std::vector<std::int32_t> begin(static_cast<std::size_t>(mask.kv_len));
  ColumnTable table;
  table.offsets.assign(static_cast<std::size_t>(mask.kv_len) + 1, 0);
  std::int64_t num_turns = 0;
  // Opens and closes the intervals of words [first, end) where row q differs from the row above it.
  const auto turn = [&](std::int64_t q, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      std::uint64_t changed = above[i] ^ current[i];
      while (changed != 0) {
        const int bit = std::countr_zero(changed);
        changed &= changed - 1;
        ++num_turns;
        const std::size_t key = i * 64 + static_cast<std::size_t>(bit);
        if (current[i] >> bit & 1) {
          begin[key] = static_cast<std::int32_t>(q);
        } else {
          entries.push_back(
              {static_cast<std::int32_t>(key), {begin[key], static_cast<std::int32_t>(q)}});
          ++table.offsets[key + 1];
        }
      }
      above[i] = current[i];
    }
  };
  const auto add_row = [&](std::int64_t row, std::span<const TileSegment> segments) {
    const std::int64_t q_begin = row * mask.block.block_q;
    const std::int64_t num_rows = std::min<std::int64_t>(mask.block.block_q, mask.q_len - q_begin);
    std::fill(current.begin(), current.end(), 0);
    for (const TileSegment& segment : segments) write_segment_row(mask, segment, 0, current.data());
    turn(q_begin, 0, num_words);
    for (std::int64_t r = 1; r < num_rows; ++r) {
      for (const TileSegment& segment : segments) {
        if (segment.kind == SegmentKind::full) continue;
        write_segment_row(mask, segment, r, current.data());
        turn(q_begin + r,
             static_cast<std::size_t>(segment.first_tile * std::int64_t{mask.block.block_kv} / 64),
             std::min(num_words, static_cast<std::size_t>(ceil_div(
                                     segment.end_tile * std::int64_t{mask.block.block_kv}, 64))));
      }
    }
  };
  for_each_still_rows(
      mask, [&](std::int32_t row, std::int32_t num_rows, std::span<const TileSegment> segments) {
        add_row(row, segments);
        for (std::int32_t i = 1; i < num_rows; ++i) {
          const std::int64_t before = num_turns;
          add_row(row + i, segments);
          if (num_turns == before) break;  // nor does any bit change in the rows below
        }
        return true;
      });
  std::fill(current.begin(), current.end(), 0);
  turn(mask.q_len, 0, num_words);
  for (std::size_t k = 0; k < static_cast<std::size_t>(mask.kv_len); ++k) {
    table.offsets[k + 1] += table.offsets[k];
  }
  table.intervals.resize(entries.size());
  std::vector<std::int64_t> next(table.offsets.begin(), table.offsets.end() - 1);
  for (const Entry& entry : entries) {
    table.intervals[static_cast<std::size_t>(next[static_cast<std::size_t>(entry.key)]++)] =
        entry.queries;
  }
  return table;
}

SegmentMask choose_column_table(SegmentMask mask) {
  if (mask.has_patterns()) return mask;
  const auto data_bytes =
      static_cast<std::int64_t>(mask.bitmaps.size() * 8 + (mask.row_offsets.size() - 1) * 8 +
                                mask.row_intervals.size() * sizeof(Interval));
  const std::int64_t limit =
      (data_bytes - 8 * (mask.kv_len + 1) - 1) / 8;  // with more intervals the table is larger
  if (data_bytes <= 8 * (mask.kv_len + 1)) return mask;
  const std::int64_t num_intervals = count_column_intervals(mask, limit);
  if (num_intervals > limit) return mask;
  ColumnTable table = column_table_of(mask, num_intervals);
  SegmentBuilder builder(mask.q_len, mask.kv_len, mask.block);
  std::vector<TileSegment> merged;
  const std::int32_t period = row_period(mask.block);
  for_each_still_rows(mask, [&](std::int32_t row, std::int32_t num_rows,
                                std::span<const TileSegment> segments) {
    merged.clear();
    for (const TileSegment& segment : segments) {
      if (segment.kind == SegmentKind::full) {
        merged.push_back(segment);
      } else if (!merged.empty() && merged.back().kind == SegmentKind::columns &&
                 merged.back().end_tile == segment.first_tile) {
        merged.back().end_tile = segment.end_tile;
      } else {
        merged.push_back({segment.first_tile, segment.end_tile, 0, 0, SegmentKind::columns, 0});
      }
    }
    for (std::int32_t i = 0; i < std::min(period, num_rows); ++i) {
      builder.add_rows(row + i, static_cast<std::int32_t>(ceil_div(num_rows - i, period)), merged);
    }
    builder.skip_to(row + num_rows);
    return true;
  });
  SegmentMask result = builder.finish();
  result.column_offsets = std::move(table.offsets);
  result.column_intervals = std::move(table.intervals);
  return result;
}

}  // namespace fdma
