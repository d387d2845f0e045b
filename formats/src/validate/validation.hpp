// Checks that the validators of all formats share. Messages read "col_indices[7]: 5, expected more
// than 5, the entry before it in row 3".
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {

inline Error corrupt(std::string message) { return {ErrorCode::corrupt_file, std::move(message)}; }

/// `error` as corrupt_file, with `where` in front of its message.
inline Error corrupt_in(std::string_view where, const Error& error) {
  return corrupt(fmt::format("{}{}", where, error.message));
}

/// Checks that q_len and kv_len are in [0, kMaxLength].
Result<void> check_lengths(std::int64_t q_len, std::int64_t kv_len);
/// Checks lengths, and the sides of a block.
Result<void> check_tiled(std::int64_t q_len, std::int64_t kv_len, BlockShape block);
/// Checks that there are `expected` entries; `why` is the reason given in the message.
Result<void> check_size(std::string_view array, std::size_t size, std::int64_t expected,
                        std::string_view why);
/// Checks that the words are a whole number of bitmaps, at most as many as an int32 can count.
Result<void> check_bitmap_words(std::size_t num_words, BlockShape block);
/// Checks that the first offset is 0 and the last is num_entries, the entries of `target`.
Result<void> check_offset_ends(std::string_view array, std::span<const std::int64_t> offsets,
                               std::size_t num_entries, std::string_view target);
/// Checks that offsets do not decrease.
Result<void> check_ascending(std::string_view array, std::span<const std::int64_t> offsets);
/// Checks that the intervals of each list lie in [0, limit), are not empty, and ascend with a gap
/// between. Offsets have passed check_offset_ends and check_ascending.
Result<void> check_interval_lists(std::string_view array, std::span<const std::int64_t> offsets,
                                  std::span<const Interval> intervals, std::int64_t limit);

/// The extent of the true cells of a bitmap: the last row and the last key that hold one, plus 1.
struct BitmapExtent {
  std::int32_t rows = 0;
  std::int32_t keys = 0;
};
std::vector<BitmapExtent> bitmap_extents(std::span<const std::uint64_t> bitmaps, BlockShape block);

/// The extent of the cells of a tile that exist.
BitmapExtent existing_cells(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                            std::int64_t row, std::int64_t col);
/// Checks that the bitmap of tile (row, col) has no true cell that does not exist. The entry
/// `index` of `array` has it.
Result<void> check_padding(std::string_view array, std::size_t index, BitmapExtent bitmap,
                           BitmapExtent existing, std::int64_t row, std::int64_t col);

/// The first difference between a stored array and the canonical one, which `form` is the form of.
template <class T, class Describe>
Result<void> check_canonical(std::string_view array, const std::vector<T>& stored,
                             const std::vector<T>& canonical, Describe&& describe,
                             std::string_view form = "the canonical form of these cells") {
  const std::size_t common = std::min(stored.size(), canonical.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (stored[i] == canonical[i]) continue;
    return corrupt(fmt::format("{}[{}]: {}, but {} has {}", array, i, describe(stored[i]), form,
                               describe(canonical[i])));
  }
  if (stored.size() == canonical.size()) return {};
  return corrupt(
      fmt::format("{}: {} entries, but {} has {}", array, stored.size(), form, canonical.size()));
}

template <class T>
Result<void> check_canonical(std::string_view array, const std::vector<T>& stored,
                             const std::vector<T>& canonical) {
  return check_canonical(array, stored, canonical, [](const T& value) {
    if constexpr (std::is_same_v<T, Interval>) {
      return fmt::format("[{}, {})", value.begin, value.end);
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      return fmt::format("{:#018x}", value);
    } else {
      return fmt::format("{}", value);
    }
  });
}

}  // namespace fdma
