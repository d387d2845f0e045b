// MaskFormula against the definition of ParametricMask, cell by cell: what a walk visits, what it
// calls full, and the keys of each row, also for lengths lower than those of the mask.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fdma/kernels/mask_formula.hpp"

namespace fdma {
namespace {

// A formula, its borders and the lengths of a call.
struct FormulaCase {
  MaskFormula formula;
  std::vector<std::int32_t> borders;
  std::int32_t q_len = 0;
  std::int32_t kv_len = 0;

  FormulaRows rows() const { return {formula, borders.data(), q_len, kv_len}; }

  // ParametricMask's words, in 64 bits.
  bool sees(std::int64_t q, std::int64_t k) const {
    const std::int64_t pos = q + kv_len - q_len + formula.pos_shift;
    bool is_in_document = borders.empty();
    for (std::size_t d = 0; d + 1 < borders.size(); ++d) {
      is_in_document = is_in_document || (borders[d] <= pos && pos < borders[d + 1] &&
                                          borders[d] <= k && k < borders[d + 1]);
    }
    return k >= formula.kv_begin && k < std::min(formula.kv_end, kv_len) && is_in_document &&
           (k < formula.prefix ||
            (k <= pos + formula.right && (k >= pos - formula.left || k < formula.sink)));
  }

  std::string text() const {
    return fmt::format(
        "q_len {} kv_len {} pos_shift {} left {} right {} prefix {} sink {} kv [{}, {}) borders {}",
        q_len, kv_len, formula.pos_shift, formula.left, formula.right, formula.prefix, formula.sink,
        formula.kv_begin, formula.kv_end, fmt::join(borders, ","));
  }
};

struct VisitedTile {
  std::int32_t tile;
  bool is_full;
  friend bool operator==(const VisitedTile&, const VisitedTile&) = default;
};

std::vector<VisitedTile> tiles_of(FormulaWalk walk) {
  std::vector<VisitedTile> tiles;
  std::int32_t tile = -1;
  bool is_full = false;
  while (walk.next(tile, is_full)) tiles.push_back({tile, is_full});
  return tiles;
}

FormulaWalk walk_of(const FormulaCase& each, std::int32_t q_begin, std::int32_t q_end,
                    std::int32_t block_kv) {
  const FormulaRows rows = each.rows();
  return {rows, q_begin, q_end, rows.document(q_begin), rows.document(q_end - 1), block_kv};
}

// Cells of one tile row, counted tile by tile.
struct TileCells {
  std::int64_t num_true = 0;
  std::int64_t num_cells = 0;  ///< that exist
};

std::vector<TileCells> count_cells(const FormulaCase& each, std::int32_t q_begin,
                                   std::int32_t q_end, std::int32_t block_kv) {
  std::vector<TileCells> tiles(static_cast<std::size_t>((each.kv_len + block_kv - 1) / block_kv));
  for (std::int32_t q = q_begin; q < q_end; ++q) {
    for (std::int32_t k = 0; k < each.kv_len; ++k) {
      TileCells& tile = tiles[static_cast<std::size_t>(k / block_kv)];
      tile.num_true += each.sees(q, k) ? 1 : 0;
      ++tile.num_cells;
    }
  }
  return tiles;
}

// What is wrong with the keys of row q; empty if nothing is.
std::string row_error(const FormulaCase& each, std::int32_t q, std::int32_t first_document,
                      std::int32_t last_document) {
  const FormulaRows rows = each.rows();
  const std::int32_t document = rows.document(q);
  if (rows.document(q, first_document, last_document) != document) {
    return fmt::format("row {}: document {} between {} and {}", q, document, first_document,
                       last_document);
  }
  const FormulaRange bounds = rows.bounds(document);
  const FormulaRange near = rows.near_keys(q, bounds), band = rows.band_keys(q, bounds);
  for (std::int32_t k = -3; k < each.kv_len + 3; ++k) {
    const bool is_seen = (near.begin <= k && k < near.end) || (band.begin <= k && k < band.end);
    const bool exists = k >= 0 && k < each.kv_len;
    if (is_seen != (exists && each.sees(q, k))) return fmt::format("row {}, key {}", q, k);
  }
  return {};
}

// What is wrong with the band of rows [q_begin, q_end); empty if nothing is.
std::string band_error(const FormulaCase& each, std::int32_t q_begin, std::int32_t q_end) {
  const FormulaRows rows = each.rows();
  const std::int32_t first = rows.document(q_begin), last = rows.document(q_end - 1);
  const FormulaBand band = rows.band(q_begin, first, last);
  if (band.is_valid == 0) {
    return rows.has_near_keys() || last - first > 1 ? std::string() : "no band";
  }
  for (std::int32_t q = q_begin; q < q_end; ++q) {
    const FormulaRange keys = band[q - q_begin];
    for (std::int32_t k = 0; k < each.kv_len; ++k) {
      if ((keys.begin <= k && k < keys.end) != each.sees(q, k)) {
        return fmt::format("band: row {}, key {}", q, k);
      }
    }
  }
  return {};
}

// What is wrong with the tile rows of a case; empty if nothing is. `is_tight`: exactly the tiles
// that are not empty, called full exactly where they are.
std::string walk_error(const FormulaCase& each, std::int32_t block_q, std::int32_t block_kv,
                       bool is_tight) {
  for (std::int32_t q_begin = 0; q_begin < each.q_len; q_begin += block_q) {
    const std::int32_t q_end = std::min(q_begin + block_q, each.q_len);
    const auto fail = [&](const std::string& what) {
      return fmt::format("{}; rows [{}, {}), block_kv {}: {}", each.text(), q_begin, q_end,
                         block_kv, what);
    };
    const FormulaRows rows = each.rows();
    for (std::int32_t q = q_begin; q < q_end; ++q) {
      const std::string wrong =
          row_error(each, q, rows.document(q_begin), rows.document(q_end - 1));
      if (!wrong.empty()) return fail(wrong);
    }
    const std::string wrong_band = band_error(each, q_begin, q_end);
    if (!wrong_band.empty()) return fail(wrong_band);
    const FormulaWalk walk = walk_of(each, q_begin, q_end, block_kv);
    const std::vector<VisitedTile> visited = tiles_of(walk);
    if (static_cast<std::size_t>(walk.num_tiles()) != visited.size()) {
      return fail(
          fmt::format("num_tiles {}, but {} are visited", walk.num_tiles(), visited.size()));
    }
    const std::vector<TileCells> cells = count_cells(each, q_begin, q_end, block_kv);
    std::size_t next = 0;
    std::int32_t previous = -1;
    for (const VisitedTile& at : visited) {
      if (at.tile <= previous || at.tile >= static_cast<std::int32_t>(cells.size())) {
        return fail(fmt::format("tile {} after {} of {}", at.tile, previous, cells.size()));
      }
      previous = at.tile;
      for (; next < static_cast<std::size_t>(at.tile); ++next) {
        if (cells[next].num_true > 0) return fail(fmt::format("tile {} is left out", next));
      }
      const TileCells& tile = cells[next++];
      const bool is_full = tile.num_true == tile.num_cells;
      if (at.is_full && !is_full) return fail(fmt::format("tile {} is not full", at.tile));
      if (is_tight && tile.num_true == 0) return fail(fmt::format("tile {} is empty", at.tile));
      if (is_tight && is_full && !at.is_full) return fail(fmt::format("tile {} is full", at.tile));
    }
    for (; next < cells.size(); ++next) {
      if (cells[next].num_true > 0) return fail(fmt::format("tile {} is left out", next));
    }
    for (std::int32_t count = 0; count <= walk.num_tiles(); ++count) {
      for (std::int32_t taken = 0; taken <= std::min(count, 1); ++taken) {
        FormulaWalk skipped = walk;
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

class RandomFormula {
 public:
  explicit RandomFormula(std::uint32_t seed) : random_(seed) {}

  std::int32_t pick(std::int32_t low, std::int32_t high) {  // both included
    return std::uniform_int_distribution<std::int32_t>(low, high)(random_);
  }
  bool one_in(std::int32_t n) { return pick(1, n) == 1; }

  // Planned for up to `most` rows and keys; the call's lengths are lower as often as not.
  FormulaCase make(std::int32_t most) {
    FormulaCase each;
    const std::int32_t q_len = pick(1, most), kv_len = pick(1, most);
    each.q_len = one_in(2) ? q_len : pick(1, q_len);
    each.kv_len = one_in(2) ? kv_len : pick(0, kv_len);
    MaskFormula& formula = each.formula;
    if (one_in(3)) formula.pos_shift = pick(-most, most);
    if (one_in(2)) formula.left = pick(-most / 4, most);
    if (one_in(2)) formula.right = one_in(2) ? 0 : pick(-most / 4, most);
    if (one_in(3)) formula.prefix = pick(0, kv_len);
    if (one_in(3)) formula.sink = one_in(2) ? std::min(4, kv_len) : pick(0, kv_len);
    if (one_in(4)) formula.kv_begin = pick(0, kv_len);
    if (one_in(4)) formula.kv_end = pick(formula.kv_begin, kv_len);
    if (one_in(2)) {
      const std::int32_t num_borders = pick(2, 9);
      const std::int32_t low = one_in(3) ? -most / 2 : 0;
      for (std::int32_t i = 0; i < num_borders; ++i) {
        each.borders.push_back(i > 0 && one_in(3) ? each.borders.back()  // an empty document
                                                  : pick(low, kv_len + (one_in(4) ? most : 0)));
      }
      std::sort(each.borders.begin(), each.borders.end());
      formula.num_borders = num_borders;
    }
    return each;
  }

 private:
  std::mt19937 random_;
};

TEST(FormulaWalk, VisitsEveryTrueCellAndCallsFullWhatIsFull) {
  for (std::uint32_t seed = 0; seed < 6000; ++seed) {
    RandomFormula random(seed);
    const FormulaCase each = random.make(60);
    const std::int32_t block_q = std::int32_t{1} << random.pick(0, 5);
    const std::int32_t block_kv = std::int32_t{1} << random.pick(1, 5);
    ASSERT_EQ(walk_error(each, block_q, block_kv, false), "") << "seed " << seed;
  }
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    ASSERT_EQ(walk_error(RandomFormula(seed).make(500), 128, 128, false), "") << "seed " << seed;
  }
}

// Causal masks, windows, prefixes, sinks and documents alone: every length, nothing visited in
// vain.
TEST(FormulaWalk, IsTightForPlainMasks) {
  std::vector<FormulaCase> plain;
  const auto add = [&](auto&& set) { set(plain.emplace_back()); };
  add([](FormulaCase&) {});
  add([](FormulaCase& c) { c.formula.right = 0; });
  add([](FormulaCase& c) { c.formula.right = 5; });
  add([](FormulaCase& c) { c.formula.left = 11, c.formula.right = 0; });
  add([](FormulaCase& c) { c.formula.left = 40, c.formula.right = 0; });
  add([](FormulaCase& c) { c.formula.left = c.formula.right = 9; });
  add([](FormulaCase& c) { c.formula.right = 0, c.formula.prefix = 21; });
  add([](FormulaCase& c) { c.formula.right = 0, c.formula.kv_begin = 13; });
  add([](FormulaCase& c) { c.formula.right = 0, c.formula.kv_end = 37; });
  add([](FormulaCase& c) { c.formula.left = -3, c.formula.right = 1; });  // nothing at all
  for (FormulaCase each : plain) {
    for (each.q_len = 1; each.q_len <= 40; each.q_len += 3) {
      for (each.kv_len = 0; each.kv_len <= 72; ++each.kv_len) {
        for (const std::int32_t block_kv : {8, 16}) {
          ASSERT_EQ(walk_error(each, 16, block_kv, true), "");
        }
      }
    }
  }
}

// A sink and a window apart: two stretches, full between their edges.
TEST(FormulaWalk, HasTwoStretchesForASinkAndAWindow) {
  FormulaCase each;
  each.q_len = each.kv_len = 4096;
  each.formula.left = 1023;
  each.formula.right = 0;
  each.formula.sink = 256;
  std::vector<VisitedTile> expected{{0, true}, {1, true}, {22, false}, {23, true}, {24, true}};
  for (std::int32_t tile = 25; tile < 30; ++tile) expected.push_back({tile, true});
  expected.push_back({30, false});
  EXPECT_EQ(tiles_of(walk_of(each, 30 * 128, 31 * 128, 128)), expected);
}

TEST(FormulaWalk, IsTightForDocuments) {
  for (std::uint32_t seed = 0; seed < 1500; ++seed) {
    RandomFormula random(seed);
    FormulaCase each;
    each.q_len = each.kv_len = random.pick(1, 90);
    each.borders = {0};
    while (each.borders.back() < each.kv_len) {
      each.borders.push_back(std::min(each.kv_len, each.borders.back() + random.pick(0, 30)));
    }
    each.formula.num_borders = static_cast<std::int32_t>(each.borders.size());
    ASSERT_EQ(walk_error(each, 16, 16, true), "") << "seed " << seed;
  }
}

// At the ends of what formulas may hold nothing overflows: the definition is asked in 64 bits.
TEST(MaskFormula, HoldsExtremeValues) {
  constexpr std::int32_t kMost = kFormulaMaxLength, kFar = kFormulaUnbounded;
  for (const std::int32_t q_len : {1, 200, kMost}) {
    for (const std::int32_t kv_len : {0, 1, 300, kMost}) {
      for (const std::int32_t pos_shift : {-kMost, 0, kMost}) {
        for (const std::int32_t left : {-kFar, -kMost, 0, kMost, kFar}) {
          for (const std::int32_t right : {-kFar, -kMost, 0, kMost, kFar}) {
            for (const std::int32_t first_border : {-kFar, 0}) {
              FormulaCase each;
              each.q_len = q_len;
              each.kv_len = kv_len;
              each.formula.pos_shift = pos_shift;
              each.formula.left = left;
              each.formula.right = right;
              each.formula.sink = left == 0 ? kMost : 0;
              each.formula.prefix = right == 0 ? 100 : 0;
              if (pos_shift == 0) {
                each.borders = {first_border, 150, kMost, kFar};
                each.formula.num_borders = 4;
              }
              const FormulaRows rows = each.rows();
              for (const std::int32_t q : {0, q_len / 2, q_len - 1}) {
                const FormulaRange bounds = rows.bounds(rows.document(q));
                const FormulaRange near = rows.near_keys(q, bounds);
                const FormulaRange band = rows.band_keys(q, bounds);
                for (const std::int32_t k : {0, 99, 100, 150, 299, kMost / 2, kMost - 1}) {
                  if (k >= kv_len) continue;
                  const bool is_seen =
                      (near.begin <= k && k < near.end) || (band.begin <= k && k < band.end);
                  ASSERT_EQ(is_seen, each.sees(q, k)) << each.text() << " q " << q << " k " << k;
                }
              }
              // A walk over the last rows stays inside the keys.
              const std::int32_t q_begin = std::max(0, q_len - 128);
              const FormulaWalk walk = walk_of(each, q_begin, q_len, 128);
              const std::int32_t num_tiles = (kv_len + 127) / 128;
              for (const int index : {0, 1}) {
                const FormulaWalk::Stretch& stretch = walk.stretch(index);
                ASSERT_LE(0, stretch.first) << each.text();
                ASSERT_LE(stretch.first, stretch.end) << each.text();
                ASSERT_LE(stretch.end, std::max(num_tiles, stretch.first)) << each.text();
              }
              ASSERT_LE(walk.num_tiles(), num_tiles) << each.text();
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fdma
