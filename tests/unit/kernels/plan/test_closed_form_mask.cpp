// Compares ClosedFormMask with the definition of ParametricMask, cell by cell: the tiles that a
// walk visits and calls full, and the keys of each row, also for lengths lower than those of the
// mask.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fdma/kernels/closed_form_mask.hpp"
#include "plan/closed_form_walks.hpp"

namespace fdma {
namespace {

using testing::ClosedFormCase;
using testing::RandomClosedForm;
using testing::tiles_of;
using testing::VisitedTile;
using testing::walk_error;

// A case read by queries (closed_form_walks.hpp: Side).
class QuerySide {
 public:
  explicit QuerySide(const ClosedFormCase& each)
      : case_(each), rows_(each.closed_form, each.borders.data(), each.q_len, each.kv_len) {}

  std::int32_t num_rows() const { return case_.q_len; }
  std::int32_t num_columns() const { return case_.kv_len; }
  bool sees(std::int32_t q, std::int32_t k) const { return case_.sees(q, k); }
  std::string text() const { return case_.text(); }

  ClosedFormWalk walk(std::int32_t begin, std::int32_t end, std::int32_t block_kv) const {
    return {rows_, begin, end, rows_.document(begin), rows_.document(end - 1), block_kv};
  }

  std::string row_error(std::int32_t q, std::int32_t begin, std::int32_t end) const {
    const std::int32_t document = rows_.document(q);
    if (rows_.document(q, rows_.document(begin), rows_.document(end - 1)) != document) {
      return fmt::format("row {}: not of document {}", q, document);
    }
    const ClosedFormRange bounds = rows_.bounds(document);
    const ClosedFormRange near = rows_.near_keys(q, bounds), band = rows_.band_keys(q, bounds);
    for (std::int32_t k = -3; k < case_.kv_len + 3; ++k) {
      const bool is_seen = (near.begin <= k && k < near.end) || (band.begin <= k && k < band.end);
      const bool exists = k >= 0 && k < case_.kv_len;
      if (is_seen != (exists && sees(q, k))) return fmt::format("row {}, key {}", q, k);
    }
    return {};
  }

  std::string band_error(std::int32_t begin, std::int32_t end) const {
    const std::int32_t first = rows_.document(begin), last = rows_.document(end - 1);
    const ClosedFormBand band = rows_.band(begin, first, last);
    if (band.is_valid == 0) {
      return rows_.has_near_keys() || last - first > 1 ? std::string() : "no band";
    }
    for (std::int32_t q = begin; q < end; ++q) {
      const ClosedFormRange keys = band[q - begin];
      for (std::int32_t k = 0; k < case_.kv_len; ++k) {
        if ((keys.begin <= k && k < keys.end) != sees(q, k)) {
          return fmt::format("band: row {}, key {}", q, k);
        }
      }
    }
    return {};
  }

 private:
  const ClosedFormCase& case_;
  ClosedFormRows rows_;
};

TEST(ClosedFormWalk, VisitsEveryTrueCellAndCallsFullWhatIsFull) {
  for (std::uint32_t seed = 0; seed < 6000; ++seed) {
    RandomClosedForm random(seed);
    const ClosedFormCase each = random.make(60);
    const std::int32_t block_q = std::int32_t{1} << random.pick(0, 5);
    const std::int32_t block_kv = std::int32_t{1} << random.pick(1, 5);
    ASSERT_EQ(walk_error(QuerySide(each), block_q, block_kv, false), "") << "seed " << seed;
  }
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const ClosedFormCase each = RandomClosedForm(seed).make(500);
    ASSERT_EQ(walk_error(QuerySide(each), 128, 128, false), "") << "seed " << seed;
  }
}

// Causal masks, windows, prefixes, sinks and documents alone are walked at every length, and no
// empty tile is visited.
TEST(ClosedFormWalk, IsTightForPlainMasks) {
  for (ClosedFormCase each : testing::plain_closed_forms()) {
    for (each.q_len = 1; each.q_len <= 40; each.q_len += 3) {
      for (each.kv_len = 0; each.kv_len <= 72; ++each.kv_len) {
        for (const std::int32_t block_kv : {8, 16}) {
          ASSERT_EQ(walk_error(QuerySide(each), 16, block_kv, true), "");
        }
      }
    }
  }
}

// A sink and a window that do not meet give two runs, which are full between their edges.
TEST(ClosedFormWalk, HasTwoRunsForASinkAndAWindow) {
  ClosedFormCase each;
  each.q_len = each.kv_len = 4096;
  each.closed_form.left = 1023;
  each.closed_form.right = 0;
  each.closed_form.sink = 256;
  std::vector<VisitedTile> expected{{0, true}, {1, true}, {22, false}, {23, true}, {24, true}};
  for (std::int32_t tile = 25; tile < 30; ++tile) expected.push_back({tile, true});
  expected.push_back({30, false});
  EXPECT_EQ(tiles_of(QuerySide(each).walk(30 * 128, 31 * 128, 128)), expected);
}

TEST(ClosedFormWalk, IsTightForDocuments) {
  for (std::uint32_t seed = 0; seed < 1500; ++seed) {
    const ClosedFormCase each = RandomClosedForm(seed).make_documents();
    ASSERT_EQ(walk_error(QuerySide(each), 16, 16, true), "") << "seed " << seed;
  }
}

// Nothing overflows at the limits of closed forms. The definition is evaluated in 64 bits.
TEST(ClosedFormMask, HoldsExtremeValues) {
  constexpr std::int32_t kMost = kClosedFormMaxLength, kFar = kClosedFormUnbounded;
  for (const std::int32_t q_len : {1, 200, kMost}) {
    for (const std::int32_t kv_len : {0, 1, 300, kMost}) {
      for (const std::int32_t pos_shift : {-kMost, 0, kMost}) {
        for (const std::int32_t left : {-kFar, -kMost, 0, kMost, kFar}) {
          for (const std::int32_t right : {-kFar, -kMost, 0, kMost, kFar}) {
            for (const std::int32_t first_border : {-kFar, 0}) {
              ClosedFormCase each;
              each.q_len = q_len;
              each.kv_len = kv_len;
              each.closed_form.pos_shift = pos_shift;
              each.closed_form.left = left;
              each.closed_form.right = right;
              each.closed_form.sink = left == 0 ? kMost : 0;
              each.closed_form.prefix = right == 0 ? 100 : 0;
              if (pos_shift == 0) {
                each.borders = {first_border, 150, kMost, kFar};
                each.closed_form.num_borders = 4;
              }
              const ClosedFormRows rows = each.rows();
              for (const std::int32_t q : {0, q_len / 2, q_len - 1}) {
                const ClosedFormRange bounds = rows.bounds(rows.document(q));
                const ClosedFormRange near = rows.near_keys(q, bounds);
                const ClosedFormRange band = rows.band_keys(q, bounds);
                for (const std::int32_t k : {0, 99, 100, 150, 299, kMost / 2, kMost - 1}) {
                  if (k >= kv_len) continue;
                  const bool is_seen =
                      (near.begin <= k && k < near.end) || (band.begin <= k && k < band.end);
                  ASSERT_EQ(is_seen, each.sees(q, k)) << each.text() << " q " << q << " k " << k;
                }
              }
              // A walk over the last rows stays inside the keys.
              const std::int32_t q_begin = std::max(0, q_len - 128);
              const ClosedFormWalk walk = QuerySide(each).walk(q_begin, q_len, 128);
              const std::int32_t num_tiles = (kv_len + 127) / 128;
              for (const int index : {0, 1}) {
                const ClosedFormWalk::TileRun& tile_run = walk.tile_run(index);
                ASSERT_LE(0, tile_run.first) << each.text();
                ASSERT_LE(tile_run.first, tile_run.end) << each.text();
                ASSERT_LE(tile_run.end, std::max(num_tiles, tile_run.first)) << each.text();
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
