// Closed forms with the lengths of a call, and checks of a walk over tiles. The checks are the same
// whether the mask is read by queries (ClosedFormRows) or by keys (ClosedFormColumns).
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fdma/kernels/closed_form_mask.hpp"

namespace fdma::testing {

/// A closed form, its borders and the lengths of a call.
struct ClosedFormCase {
  ClosedFormMask closed_form;
  std::vector<std::int32_t> borders;
  std::int32_t q_len = 0;
  std::int32_t kv_len = 0;

  ClosedFormRows rows() const { return {closed_form, borders.data(), q_len, kv_len}; }

  /// Evaluates the definition of ParametricMask in 64 bits.
  bool sees(std::int64_t q, std::int64_t k) const {
    const std::int64_t pos = q + kv_len - q_len + closed_form.pos_shift;
    bool is_in_document = borders.empty();
    for (std::size_t d = 0; d + 1 < borders.size(); ++d) {
      is_in_document = is_in_document || (borders[d] <= pos && pos < borders[d + 1] &&
                                          borders[d] <= k && k < borders[d + 1]);
    }
    return k >= closed_form.kv_begin && k < std::min(closed_form.kv_end, kv_len) &&
           is_in_document &&
           (k < closed_form.prefix || (k <= pos + closed_form.right &&
                                       (k >= pos - closed_form.left || k < closed_form.sink)));
  }

  std::string text() const {
    return fmt::format(
        "q_len {} kv_len {} pos_shift {} left {} right {} prefix {} sink {} kv [{}, {}) borders {}",
        q_len, kv_len, closed_form.pos_shift, closed_form.left, closed_form.right,
        closed_form.prefix, closed_form.sink, closed_form.kv_begin, closed_form.kv_end,
        fmt::join(borders, ","));
  }
};

/// Returns causal masks, windows, prefixes, padding and an empty mask, one after another and
/// without lengths.
std::vector<ClosedFormCase> plain_closed_forms();

class RandomClosedForm {
 public:
  explicit RandomClosedForm(std::uint32_t seed) : random_(seed) {}

  std::int32_t pick(std::int32_t low, std::int32_t high) {  // both included
    return std::uniform_int_distribution<std::int32_t>(low, high)(random_);
  }
  bool one_in(std::int32_t n) { return pick(1, n) == 1; }

  /// Returns a case planned for up to `most` rows and keys. In half of the cases the lengths of the
  /// call are lower.
  ClosedFormCase make(std::int32_t most);
  /// Returns packed documents over the same queries and keys, up to 90 of them.
  ClosedFormCase make_documents();

 private:
  std::mt19937 random_;
};

struct VisitedTile {
  std::int32_t tile;
  bool is_full;
  friend bool operator==(const VisitedTile&, const VisitedTile&) = default;
};

inline std::vector<VisitedTile> tiles_of(ClosedFormWalk walk) {
  std::vector<VisitedTile> tiles;
  std::int32_t tile = -1;
  bool is_full = false;
  while (walk.next(tile, is_full)) tiles.push_back({tile, is_full});
  return tiles;
}

/// Says what is wrong with the tile rows of a case read in one way; empty if nothing is. `Side` has
/// num_rows(), num_columns() and sees(row, column); walk(begin, end, block) of rows [begin, end);
/// row_error(row, begin, end) of the interval of a row among them, and band_error(begin, end) of
/// their band. `is_tight` demands that exactly the tiles that are not empty are visited, and
/// exactly the full ones are called full.
template <class Side>
std::string walk_error(const Side& side, std::int32_t block_rows, std::int32_t block_columns,
                       bool is_tight) {
  for (std::int32_t begin = 0; begin < side.num_rows(); begin += block_rows) {
    const std::int32_t end = std::min(begin + block_rows, side.num_rows());
    const auto fail = [&](const std::string& what) {
      return fmt::format("{}; rows [{}, {}), blocks of {} columns: {}", side.text(), begin, end,
                         block_columns, what);
    };
    for (std::int32_t row = begin; row < end; ++row) {
      const std::string wrong = side.row_error(row, begin, end);
      if (!wrong.empty()) return fail(wrong);
    }
    const std::string wrong_band = side.band_error(begin, end);
    if (!wrong_band.empty()) return fail(wrong_band);
    const ClosedFormWalk walk = side.walk(begin, end, block_columns);
    const std::vector<VisitedTile> visited = tiles_of(walk);
    if (static_cast<std::size_t>(walk.num_tiles()) != visited.size()) {
      return fail(
          fmt::format("num_tiles {}, but {} are visited", walk.num_tiles(), visited.size()));
    }
    // Counts the true cells of the existing cells, tile by tile.
    const auto num_tiles =
        static_cast<std::size_t>((side.num_columns() + block_columns - 1) / block_columns);
    std::vector<std::int64_t> num_true(num_tiles), num_cells(num_tiles);
    for (std::int32_t row = begin; row < end; ++row) {
      for (std::int32_t column = 0; column < side.num_columns(); ++column) {
        const auto tile = static_cast<std::size_t>(column / block_columns);
        num_true[tile] += side.sees(row, column) ? 1 : 0;
        ++num_cells[tile];
      }
    }
    std::size_t next = 0;
    std::int32_t previous = -1;
    for (const VisitedTile& at : visited) {
      if (at.tile <= previous || at.tile >= static_cast<std::int32_t>(num_tiles)) {
        return fail(fmt::format("tile {} after {} of {}", at.tile, previous, num_tiles));
      }
      previous = at.tile;
      for (; next < static_cast<std::size_t>(at.tile); ++next) {
        if (num_true[next] > 0) return fail(fmt::format("tile {} is left out", next));
      }
      const bool is_full = num_true[next] == num_cells[next], is_empty = num_true[next] == 0;
      ++next;
      if (at.is_full && !is_full) return fail(fmt::format("tile {} is not full", at.tile));
      if (is_tight && is_empty) return fail(fmt::format("tile {} is empty", at.tile));
      if (is_tight && is_full && !at.is_full) return fail(fmt::format("tile {} is full", at.tile));
    }
    for (; next < num_tiles; ++next) {
      if (num_true[next] > 0) return fail(fmt::format("tile {} is left out", next));
    }
    for (std::int32_t count = 0; count <= walk.num_tiles(); ++count) {
      for (std::int32_t taken = 0; taken <= std::min(count, 1); ++taken) {
        ClosedFormWalk skipped = walk;
        std::int32_t tile = 0;
        bool is_full = false;
        if (taken == 1) skipped.next(tile, is_full);
        skipped.skip(count - taken);
        const std::vector<VisitedTile> rest(visited.begin() + count, visited.end());
        if (tiles_of(skipped) != rest) return fail(fmt::format("skip({}) goes astray", count));
      }
    }
  }
  return {};
}

}  // namespace fdma::testing
