#include "boxes/row_cache.hpp"

#include <algorithm>
#include <bit>

namespace fdma::box {

std::vector<std::uint32_t> number_distinct(std::span<const std::int64_t> matrix, std::int64_t width,
                                           std::int64_t limit, std::int64_t& num_distinct) {
  const auto step = static_cast<std::size_t>(width);
  const std::size_t num_rows = step == 0 ? 0 : matrix.size() / step;
  std::vector<std::uint32_t> ids(num_rows);
  std::vector<std::size_t> first_row_of;  // by id
  const std::size_t num_slots =
      std::bit_ceil(2 * std::min(num_rows, static_cast<std::size_t>(limit)) + 16);
  std::vector<std::uint32_t> slots(num_slots, 0);  // id + 1
  for (std::size_t row = 0; row < num_rows; ++row) {
    const std::int64_t* tuple = matrix.data() + row * step;
    if (row > 0 && std::equal(tuple, tuple + step, tuple - step)) {
      ids[row] = ids[row - 1];
      continue;
    }
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < step; ++i) {
      hash = (hash ^ static_cast<std::uint64_t>(tuple[i])) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    std::size_t slot = hash & (num_slots - 1);
    for (;; slot = (slot + 1) & (num_slots - 1)) {
      if (slots[slot] == 0) {
        if (static_cast<std::int64_t>(first_row_of.size()) == limit) return {};
        first_row_of.push_back(row);
        slots[slot] = static_cast<std::uint32_t>(first_row_of.size());
        break;
      }
      const std::int64_t* known = matrix.data() + first_row_of[slots[slot] - 1] * step;
      if (std::equal(tuple, tuple + step, known)) break;
    }
    ids[row] = slots[slot] - 1;
  }
  num_distinct = static_cast<std::int64_t>(first_row_of.size());
  return ids;
}

RowCache::RowCache(std::vector<std::uint32_t> id_of_row, std::int64_t num_ids,
                   std::int64_t words_per_row)
    : ids_(std::move(id_of_row)),
      words_per_row_(words_per_row),
      storage_(new std::uint64_t[static_cast<std::size_t>(num_ids * words_per_row)]),
      states_(new std::atomic<std::uint8_t>[static_cast<std::size_t>(num_ids)]) {
  for (std::int64_t i = 0; i < num_ids; ++i) states_[static_cast<std::size_t>(i)].store(0);
}

std::int64_t cache_limit(std::int64_t num_rows, std::int64_t bytes_per_row, std::int64_t share,
                         std::int64_t max_bytes) {
  return std::max<std::int64_t>(
      1, std::min(num_rows / share, max_bytes / std::max<std::int64_t>(bytes_per_row, 1)));
}

RowCache make_row_cache(const BoxProgram& program, std::span<const std::int64_t> row_numbers,
                        std::int64_t share, std::int64_t max_bytes) {
  const std::int64_t words_per_row = (program.kv_len() + 63) / 64;
  const std::int64_t most = std::min(max_bytes, program.cache_bytes_left());
  const std::int64_t limit = cache_limit(std::ssize(row_numbers), 8 * words_per_row, share, most);
  std::int64_t num_ids = 0;
  std::vector<std::uint32_t> ids = number_distinct(row_numbers, 1, limit, num_ids);
  const std::int64_t bytes = 8 * words_per_row * num_ids;
  if (ids.empty() || !program.take_cache_bytes(bytes)) return {};
  return RowCache(std::move(ids), num_ids, words_per_row);
}

}  // namespace fdma::box
