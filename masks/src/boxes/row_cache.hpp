// Rows that occur for several queries, computed once and shared by all threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "boxes/program.hpp"

namespace fdma::box {

/// Numbers the distinct tuples of a matrix [num_rows, width] by first occurrence. Stops and returns
/// an empty vector when there are more than `limit`.
std::vector<std::uint32_t> number_distinct(std::span<const std::int64_t> matrix, std::int64_t width,
                                           std::int64_t limit, std::int64_t& num_distinct);

/// Whole rows by id, filled when first asked for. A thread that asks for a row while another one
/// fills it gets nothing and computes the row itself, so nobody waits.
class RowCache {
 public:
  RowCache() = default;
  RowCache(std::vector<std::uint32_t> id_of_row, std::int64_t num_ids, std::int64_t words_per_row);

  bool empty() const { return ids_.empty(); }
  std::uint32_t id(std::int64_t q) const { return ids_[static_cast<std::size_t>(q)]; }
  /// The row of query q. `fill(words)` writes all its words if it is new. Null while another thread
  /// fills it.
  template <class Fill>
  const std::uint64_t* get(std::int64_t q, Fill fill) const {
    const std::uint32_t at = id(q);
    std::uint64_t* words = storage_.get() + at * words_per_row_;
    std::uint8_t state = states_[at].load(std::memory_order_acquire);
    if (state == kReady) return words;
    if (state == kBusy || !states_[at].compare_exchange_strong(state, kBusy)) return nullptr;
    fill(words);
    states_[at].store(kReady, std::memory_order_release);
    return words;
  }

 private:
  static constexpr std::uint8_t kBusy = 1;
  static constexpr std::uint8_t kReady = 2;
  std::vector<std::uint32_t> ids_;
  std::int64_t words_per_row_ = 0;
  std::unique_ptr<std::uint64_t[]> storage_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> states_;
};

/// The most ids that a cache may have, so that it saves most rows and stays within `max_bytes`.
std::int64_t cache_limit(std::int64_t num_rows, std::int64_t bytes_per_row, std::int64_t share,
                         std::int64_t max_bytes);

/// A cache of whole rows by one number per query, where rows repeat often enough (`share`, as
/// above) and the program has enough bytes left for its caches; otherwise an empty one.
RowCache make_row_cache(const BoxProgram& program, std::span<const std::int64_t> row_numbers,
                        std::int64_t share, std::int64_t max_bytes);

}  // namespace fdma::box
