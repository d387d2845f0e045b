#include "validate/validation.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "segment/bit_copy.hpp"

namespace fdma {

Result<void> check_lengths(std::int64_t q_len, std::int64_t kv_len) {
  for (const auto& [name, length] : {std::pair{"q_len", q_len}, std::pair{"kv_len", kv_len}}) {
    if (length < 0 || length > kMaxLength) {
      return corrupt(fmt::format("{}: {}, expected 0 to {}", name, length, kMaxLength));
    }
  }
  return {};
}

Result<void> check_tiled(std::int64_t q_len, std::int64_t kv_len, BlockShape block) {
  FDMA_TRY_VOID(check_lengths(q_len, kv_len));
  const Result<void> valid = validate(block);
  return valid ? Result<void>{} : corrupt_in("", valid.error());
}

Result<void> check_size(std::string_view array, std::size_t size, std::int64_t expected,
                        std::string_view why) {
  if (static_cast<std::int64_t>(size) == expected) return {};
  return corrupt(fmt::format("{}: {} entries, expected {} ({})", array, size, expected, why));
}

Result<void> check_bitmap_words(std::size_t num_words, BlockShape block) {
  const auto words_per_bitmap =
      static_cast<std::size_t>(std::int64_t{block.block_q} * block.block_kv / 64);
  if (num_words % words_per_bitmap != 0) {
    return corrupt(fmt::format("bitmaps: {} words, expected a multiple of {} (block {} x {})",
                               num_words, words_per_bitmap, block.block_q, block.block_kv));
  }
  if (num_words / words_per_bitmap > std::numeric_limits<std::int32_t>::max()) {
    return corrupt(fmt::format("bitmaps: {} of them, expected at most {}",
                               num_words / words_per_bitmap,
                               std::numeric_limits<std::int32_t>::max()));
  }
  return {};
}

Result<void> check_offset_ends(std::string_view array, std::span<const std::int64_t> offsets,
                               std::size_t num_entries, std::string_view target) {
  if (offsets.front() != 0) {
    return corrupt(fmt::format("{}[0]: {}, expected 0", array, offsets.front()));
  }
  if (offsets.back() != static_cast<std::int64_t>(num_entries)) {
    return corrupt(fmt::format("{}: {} entries, but {} ends at {}", target, num_entries, array,
                               offsets.back()));
  }
  return {};
}

Result<void> check_ascending(std::string_view array, std::span<const std::int64_t> offsets) {
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      return corrupt(fmt::format("{}[{}]: {}, expected at least {}, the entry before it", array, i,
                                 offsets[i], offsets[i - 1]));
    }
  }
  return {};
}

Result<void> check_interval_lists(std::string_view array, std::span<const std::int64_t> offsets,
                                  std::span<const Interval> intervals, std::int64_t limit) {
  for (std::size_t list = 0; list + 1 < offsets.size(); ++list) {
    std::int64_t before = -1;
    for (std::int64_t i = offsets[list]; i < offsets[list + 1]; ++i) {
      const Interval interval = intervals[static_cast<std::size_t>(i)];
      if (interval.begin < 0 || interval.begin >= interval.end || interval.end > limit) {
        return corrupt(
            fmt::format("{}[{}]: [{}, {}), expected a range inside [0, {}) that is not "
                        "empty",
                        array, i, interval.begin, interval.end, limit));
      }
      if (interval.begin <= before) {
        return corrupt(
            fmt::format("{}[{}]: [{}, {}), expected to begin after {}, the end of the one "
                        "before it in list {}",
                        array, i, interval.begin, interval.end, before, list));
      }
      before = interval.end;
    }
  }
  return {};
}

std::vector<BitmapExtent> bitmap_extents(std::span<const std::uint64_t> bitmaps, BlockShape block) {
  const std::int64_t words_per_bitmap = std::int64_t{block.block_q} * block.block_kv / 64;
  std::vector<BitmapExtent> extents(bitmaps.size() / static_cast<std::size_t>(words_per_bitmap));
  const std::uint64_t* words = bitmaps.data();
  for (BitmapExtent& extent : extents) {
    for (std::int32_t r = 0; r < block.block_q; ++r) {
      const std::int64_t row = std::int64_t{r} * block.block_kv;
      for (std::int32_t c = 0; c < block.block_kv; c += 64) {
        const int width = std::min(64, block.block_kv - c);
        const std::uint64_t bits = read_bits(words, row + c, width);
        if (bits == 0) continue;
        extent.rows = r + 1;
        extent.keys = std::max(extent.keys, c + static_cast<std::int32_t>(std::bit_width(bits)));
      }
    }
    words += words_per_bitmap;
  }
  return extents;
}

BitmapExtent existing_cells(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                            std::int64_t row, std::int64_t col) {
  return {
      static_cast<std::int32_t>(std::min<std::int64_t>(block.block_q, q_len - row * block.block_q)),
      static_cast<std::int32_t>(
          std::min<std::int64_t>(block.block_kv, kv_len - col * block.block_kv))};
}

Result<void> check_padding(std::string_view array, std::size_t index, BitmapExtent bitmap,
                           BitmapExtent existing, std::int64_t row, std::int64_t col) {
  if (bitmap.rows <= existing.rows && bitmap.keys <= existing.keys) return {};
  return corrupt(
      fmt::format("{}[{}]: the bitmap of tile ({}, {}) reaches {} rows x {} keys, but only {} "
                  "x {} of its cells exist",
                  array, index, row, col, bitmap.rows, bitmap.keys, existing.rows, existing.keys));
}

}  // namespace fdma
