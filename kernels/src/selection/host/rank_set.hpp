// A set of ranks with the next and the previous member of any rank.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace fdma {

/// A set of integers in [0, size) as a tree of 64-bit words: a bit of one level says whether a word
/// of the level below has any bit. All operations take one word per level: 4 levels reach 16
/// million.
class RankSet {
 public:
  static constexpr std::int64_t kNone = -1;

  explicit RankSet(std::int64_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(static_cast<std::size_t>(size), 0);
    } while (size > 1);
  }

  void insert(std::int64_t rank) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[static_cast<std::size_t>(rank / 64)];
      const bool was_empty = word == 0;
      word |= bit(rank);
      if (!was_empty) return;
      rank /= 64;
    }
  }

  void erase(std::int64_t rank) {
    for (std::vector<std::uint64_t>& level : levels_) {
      std::uint64_t& word = level[static_cast<std::size_t>(rank / 64)];
      word &= ~bit(rank);
      if (word != 0) return;
      rank /= 64;
    }
  }

  /// The smallest member above `rank`, or kNone.
  std::int64_t next(std::int64_t rank) const {
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      const std::uint64_t word = levels_[level][static_cast<std::size_t>(rank / 64)];
      const std::uint64_t above = rank % 64 == 63 ? 0 : word >> (rank % 64 + 1);
      if (above != 0) {
        rank += 1 + std::countr_zero(above);
        for (; level > 0; --level) {
          rank = rank * 64 + std::countr_zero(levels_[level - 1][static_cast<std::size_t>(rank)]);
        }
        return rank;
      }
      rank /= 64;
    }
    return kNone;
  }

  /// The largest member below `rank`, or kNone.
  std::int64_t previous(std::int64_t rank) const {
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      const std::uint64_t word = levels_[level][static_cast<std::size_t>(rank / 64)];
      const std::uint64_t below = word & (bit(rank) - 1);
      if (below != 0) {
        rank = rank / 64 * 64 + 63 - std::countl_zero(below);
        for (; level > 0; --level) {
          rank =
              rank * 64 + 63 - std::countl_zero(levels_[level - 1][static_cast<std::size_t>(rank)]);
        }
        return rank;
      }
      rank /= 64;
    }
    return kNone;
  }

 private:
  static std::uint64_t bit(std::int64_t rank) { return std::uint64_t{1} << (rank % 64); }

  std::vector<std::vector<std::uint64_t>> levels_;
};

}  // namespace fdma
