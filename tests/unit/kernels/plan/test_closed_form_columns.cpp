// Compares ClosedFormColumns with the definition of ParametricMask, cell by cell: the queries of
// each key, and the query tiles of runs of keys, also for lengths lower than those of the mask.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fdma/kernels/closed_form_columns.hpp"
#include "plan/closed_form_walks.hpp"

namespace fdma {
namespace {

using testing::ClosedFormCase;
using testing::RandomClosedForm;
using testing::tiles_of;
using testing::VisitedTile;
using testing::walk_error;

// A case read by keys (closed_form_walks.hpp: Side).
class KeySide {
 public:
  explicit KeySide(const ClosedFormCase& each)
      : case_(each), columns_(each.closed_form, each.borders.data(), each.q_len, each.kv_len) {}

  std::int32_t num_rows() const { return case_.kv_len; }
  std::int32_t num_columns() const { return case_.q_len; }
  bool sees(std::int32_t k, std::int32_t q) const { return case_.sees(q, k); }
  std::string text() const { return case_.text(); }

  ClosedFormWalk walk(std::int32_t begin, std::int32_t end, std::int32_t block_q) const {
    return columns_.walk(begin, end, block_q);
  }

  std::string row_error(std::int32_t k, std::int32_t begin, std::int32_t end) const {
    const std::int32_t document = columns_.document(k);
    if (columns_.document(k, columns_.document(begin), columns_.document(end - 1)) != document) {
      return fmt::format("key {}: not of document {}", k, document);
    }
    const ClosedFormRange queries = columns_.queries(k, columns_.bounds(document));
    for (std::int32_t q = -3; q < case_.q_len + 3; ++q) {
      const bool exists = q >= 0 && q < case_.q_len;
      if ((queries.begin <= q && q < queries.end) != (exists && sees(k, q))) {
        return fmt::format("key {}, query {}", k, q);
      }
    }
    return {};
  }

  std::string band_error(std::int32_t begin, std::int32_t end) const {
    const std::int32_t first = columns_.document(begin), last = columns_.document(end - 1);
    const ClosedFormBand band = columns_.band(begin, end, first, last);
    if (band.is_valid == 0) {
      const ClosedFormMask& closed_form = case_.closed_form;
      const ClosedFormRange keys = columns_.keys(begin, end);
      const auto divides = [&](std::int32_t at) { return begin < at && at < end; };
      const bool may_be_none = divides(closed_form.prefix) || divides(closed_form.sink) ||
                               keys.begin > begin || keys.end < end || last - first > 1;
      return may_be_none ? std::string() : "no band";
    }
    for (std::int32_t k = begin; k < end; ++k) {
      const ClosedFormRange queries = band[k - begin];
      for (std::int32_t q = 0; q < case_.q_len; ++q) {
        if ((queries.begin <= q && q < queries.end) != sees(k, q)) {
          return fmt::format("band: key {}, query {}", k, q);
        }
      }
    }
    return {};
  }

 private:
  const ClosedFormCase& case_;
  ClosedFormColumns columns_;
};

std::vector<std::vector<std::int32_t>> queries_of_keys(const ClosedFormCase& each) {
  const ClosedFormColumns columns(each.closed_form, each.borders.data(), each.q_len, each.kv_len);
  std::vector<std::vector<std::int32_t>> all;
  for (std::int32_t k = 0; k < each.kv_len; ++k) {
    const ClosedFormRange queries = columns.queries(k);
    all.push_back({queries.begin, queries.end});
  }
  return all;
}

// This is the example of closed_form_columns.hpp.
TEST(ClosedFormColumns, GivesEachKeyOneIntervalOfQueries) {
  ClosedFormCase each;
  each.q_len = each.kv_len = 4;
  each.closed_form.left = 1;
  each.closed_form.right = 0;
  each.closed_form.sink = 1;
  const std::vector<std::vector<std::int32_t>> expected{{0, 4}, {1, 3}, {2, 4}, {3, 4}};
  EXPECT_EQ(queries_of_keys(each), expected);
}

TEST(ClosedFormColumns, VisitsEveryTrueCellAndCallsFullWhatIsFull) {
  for (std::uint32_t seed = 0; seed < 12000; ++seed) {
    RandomClosedForm random(seed);
    const ClosedFormCase each = random.make(60);
    const std::int32_t block_kv = std::int32_t{1} << random.pick(0, 5);
    const std::int32_t block_q = std::int32_t{1} << random.pick(1, 5);
    ASSERT_EQ(walk_error(KeySide(each), block_kv, block_q, false), "") << "seed " << seed;
  }
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const ClosedFormCase each = RandomClosedForm(seed).make(500);
    ASSERT_EQ(walk_error(KeySide(each), 128, 128, false), "") << "seed " << seed;
  }
}

// The test takes all closed forms of small integers over all small lengths, so that none is left
// out.
TEST(ClosedFormColumns, IsExactForEverySmallClosedForm) {
  constexpr std::int32_t kFar = kClosedFormUnbounded;
  ClosedFormCase each;
  for (each.q_len = 0; each.q_len <= 4; ++each.q_len) {
    for (each.kv_len = 0; each.kv_len <= 5; ++each.kv_len) {
      for (const std::int32_t left : {kFar, -1, 0, 1, 3}) {
        for (const std::int32_t right : {kFar, -2, 0, 1}) {
          for (const std::int32_t prefix : {0, 2, 5}) {
            for (const std::int32_t sink : {0, 1, 3}) {
              for (const std::int32_t pos_shift : {-2, 0, 1}) {
                for (const std::int32_t kv_begin : {0, 1}) {
                  for (const auto& borders :
                       std::vector<std::vector<std::int32_t>>{{}, {0, 2, 5}, {1, 1, 3, 4}}) {
                    each.closed_form = {
                        pos_shift, left, right, prefix, sink, kv_begin, kv_begin == 0 ? kFar : 4};
                    each.borders = borders;
                    each.closed_form.num_borders = static_cast<std::int32_t>(borders.size());
                    ASSERT_EQ(walk_error(KeySide(each), 2, 2, false), "");
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(ClosedFormColumns, IsTightForPlainMasksAndDocuments) {
  for (ClosedFormCase each : testing::plain_closed_forms()) {
    for (each.kv_len = 1; each.kv_len <= 40; each.kv_len += 3) {
      for (each.q_len = 0; each.q_len <= 72; ++each.q_len) {
        const ClosedFormMask& closed_form = each.closed_form;
        const bool is_cut = closed_form.kv_begin > 0 || closed_form.kv_end < each.kv_len;
        const bool is_mixed = closed_form.prefix % 16 != 0;
        ASSERT_EQ(walk_error(KeySide(each), 16, 8, !is_cut && !is_mixed), "");
      }
    }
  }
  for (std::uint32_t seed = 0; seed < 1500; ++seed) {
    const ClosedFormCase each = RandomClosedForm(seed).make_documents();
    ASSERT_EQ(walk_error(KeySide(each), 16, 16, true), "") << "seed " << seed;
  }
}

// Every later query sees the keys of a sink; the keys after it are seen by a window of queries.
TEST(ClosedFormColumns, WalksAllLaterQueriesForASink) {
  ClosedFormCase each;
  each.q_len = each.kv_len = 4096;
  each.closed_form.left = 511;
  each.closed_form.right = 0;
  each.closed_form.sink = 128;
  std::vector<VisitedTile> expected{{0, false}};
  for (std::int32_t tile = 1; tile < 32; ++tile) expected.push_back({tile, true});
  EXPECT_EQ(tiles_of(KeySide(each).walk(0, 128, 128)), expected);
  expected = {{1, false}, {2, true}, {3, true}, {4, true}, {5, false}};
  EXPECT_EQ(tiles_of(KeySide(each).walk(128, 256, 128)), expected);
}

// Nothing overflows at the limits of closed forms. The definition is evaluated in 64 bits.
TEST(ClosedFormColumns, HoldsExtremeValues) {
  constexpr std::int32_t kMost = kClosedFormMaxLength, kFar = kClosedFormUnbounded;
  for (const std::int32_t q_len : {1, 200, kMost}) {
    for (const std::int32_t kv_len : {1, 300, kMost}) {
      for (const std::int32_t pos_shift : {-kMost, 0, kMost}) {
        for (const std::int32_t left : {-kFar, -kMost, 0, kMost, kFar}) {
          for (const std::int32_t right : {-kFar, -kMost, 0, kMost, kFar}) {
            ClosedFormCase each;
            each.q_len = q_len;
            each.kv_len = kv_len;
            each.closed_form = {pos_shift, left, right, right == 0 ? 100 : 0,
                                left == 0 ? kMost : 0};
            if (pos_shift == 0) each.borders = {-kFar, 150, kMost, kFar};
            each.closed_form.num_borders = static_cast<std::int32_t>(each.borders.size());
            const ClosedFormColumns columns(each.closed_form, each.borders.data(), q_len, kv_len);
            for (const std::int32_t k : {0, 99, 100, 150, 299, kMost / 2, kMost - 1}) {
              if (k >= kv_len) continue;
              const ClosedFormRange queries = columns.queries(k);
              for (const std::int32_t q : {0, 1, 99, 199, kMost / 2, kMost - 1}) {
                if (q >= q_len) continue;
                ASSERT_EQ(queries.begin <= q && q < queries.end, each.sees(q, k))
                    << each.text() << " q " << q << " k " << k;
              }
            }
            const ClosedFormWalk walk = KeySide(each).walk(std::max(0, kv_len - 128), kv_len, 128);
            const ClosedFormWalk::TileRun& tile_run = walk.tile_run(1);
            ASSERT_LE(0, tile_run.first) << each.text();
            ASSERT_LE(tile_run.first, tile_run.end) << each.text();
            ASSERT_LE(tile_run.end, (q_len + 127) / 128) << each.text();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fdma
