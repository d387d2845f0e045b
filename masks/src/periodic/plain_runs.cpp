#include "periodic/plain_runs.hpp"

#include <algorithm>
#include <bit>

namespace fdma::periodic {
namespace {

bool bit_at(const std::uint64_t* words, std::int64_t at) {
  return ((words[at / 64] >> (at % 64)) & 1) != 0;
}

// Bits of row r of a bitmap in pieces of at most 64, ascending: visit(first key, count, bits).
template <class Visit>
void for_each_piece(const std::uint64_t* words, BlockShape block, std::int64_t r, Visit&& visit) {
  for (std::int64_t c = 0; c < block.block_kv; c += 64) {
    const int count = static_cast<int>(std::min<std::int64_t>(64, block.block_kv - c));
    visit(c, count, read_bits(words, r * block.block_kv + c, count));
  }
}

}  // namespace

const PlainRun& StoredRuns::run_at(std::int64_t tile) const {
  const auto after =
      std::upper_bound(runs_.begin(), runs_.end(), tile + runs_[0].first,
                       [](std::int64_t value, const PlainRun& run) { return value < run.first; });
  return *(after - 1);
}

std::int64_t StoredRuns::num_intervals(std::int64_t limit) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < runs_.size() && count <= limit; ++i) {
    const std::uint64_t* words = store_.words(runs_[i].contents);
    const std::uint64_t* before = i > 0 ? store_.words(runs_[i - 1].contents) : nullptr;
    const std::int64_t num_tiles = runs_[i].end - runs_[i].first;
    std::int64_t starts = 0, inner_joins = 0, outer_joins = 0;
    for (std::int64_t r = 0; r < block_.block_q; ++r) {
      bool is_open = false;
      for_each_piece(words, block_, r, [&](std::int64_t, int size, std::uint64_t bits) {
        starts += std::popcount(bits & ~(bits << 1 | std::uint64_t{is_open}));
        is_open = ((bits >> (size - 1)) & 1) != 0;
      });
      if (!bit_at(words, r * block_.block_kv)) continue;
      const std::int64_t last = (r + 1) * block_.block_kv - 1;
      inner_joins += bit_at(words, last) ? 1 : 0;
      outer_joins += before != nullptr && bit_at(before, last) ? 1 : 0;
    }
    count += starts * num_tiles - inner_joins * (num_tiles - 1) - outer_joins;
  }
  return count;
}

void StoredRuns::write_panel(std::vector<std::int64_t>& offsets, std::vector<Interval>& intervals) {
  const std::int32_t origin = runs_[0].first;
  for (std::int64_t r = 0; r < block_.block_q; ++r) {
    for (const PlainRun& run : runs_) {
      const std::uint64_t* words = store_.words(run.contents);
      for (std::int32_t tile = run.first; tile < run.end; ++tile) {
        const std::int64_t key = std::int64_t{tile - origin} * block_.block_kv;
        for_each_piece(words, block_, r, [&](std::int64_t c, int, std::uint64_t bits) {
          while (bits != 0) {
            const int begin = std::countr_zero(bits);
            const int length = std::countr_one(bits >> begin);
            const auto first = static_cast<std::int32_t>(key + c + begin);
            const bool joins = std::ssize(intervals) > offsets[static_cast<std::size_t>(r)] &&
                               intervals.back().end == first;
            if (joins) {
              intervals.back().end += length;
            } else {
              intervals.push_back({first, first + length});
            }
            bits = begin + length == 64 ? 0 : bits >> (begin + length) << (begin + length);
          }
        });
      }
    }
    offsets[static_cast<std::size_t>(r) + 1] = std::ssize(intervals);
  }
}

}  // namespace fdma::periodic
