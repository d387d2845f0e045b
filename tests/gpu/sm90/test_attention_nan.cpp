// One NaN among good inputs. It must reach the rows that see it and no others. A NaN in v may also
// reach rows that visit its tile, in its own column only.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/backend_cases.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::MaskCase;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kQLen = 200, kKvLen = 600, kEmptyRow = 77, kOneKeyRow = 78;
constexpr std::int64_t kKeys[] = {0, 5, 130, 270, 300, 511, 599};

// Full tiles, noise, short intervals and causal tiles. Row 77 sees nothing, and row 78 sees only
// key 5.
MaskCase mask_of_tiles() {
  std::mt19937 rng(1);
  return testing::case_of("tiles",
                          testing::make_cells(kQLen, kKvLen,
                                              [&](auto q, auto k) {
                                                if (q == kEmptyRow) return false;
                                                if (q == kOneKeyRow) return k == 5;
                                                if (k < 128) return true;
                                                if (k < 256) return testing::pick(rng, 0, 3) == 0;
                                                if (k < 512) return q + 250 <= k && k < q + 290;
                                                return k - 420 <= q;
                                              }),
                          {128, 128});
}

// A mask with one live range for each key.
MaskCase mask_of_columns() {
  return testing::case_of("columns",
                          testing::make_cells(kQLen, kKvLen,
                                              [](auto q, auto k) {
                                                if (q == kEmptyRow) return false;
                                                if (q == kOneKeyRow) return k == 5;
                                                return k % 3 != 1 && k * 7 % 60 <= q &&
                                                       q < 110 + k % 97;
                                              }),
                          {128, 128});
}

class AttentionNanOnGpu : public ::testing::TestWithParam<std::int32_t> {
 protected:
  void SetUp() override { FDMA_SKIP_WITHOUT_HOPPER(); }

  // Puts a NaN into the tensor `where` at `index` (a row or a key). Says what is wrong; empty if
  // nothing is.
  enum class Where { q, k, bias, v };
  std::string wrong_after(const MaskCase& mask, Where where, std::int64_t index) {
    constexpr std::int64_t kColumn = 41;
    CaseChoice choice;
    choice.head_dim = GetParam();
    choice.has_bias = true;
    BackendAttentionCase clean(fixture_, mask, {1, 2, 1}, choice),
        test_case(fixture_, mask, {1, 2, 1}, choice);
    if (where == Where::q) test_case.q().set(0, index, 1, kColumn, kNan);
    if (where == Where::k) test_case.k().set(0, index, 0, kColumn, kNan);
    if (where == Where::v) test_case.v().set(0, index, 0, kColumn, kNan);
    if (where == Where::bias) test_case.bias().set(0, index, 0, 0, kNan);
    for (testing::BackendTensor* tensor :
         {&test_case.q(), &test_case.k(), &test_case.v(), &test_case.bias()})
      tensor->upload();
    if (!clean.run() || !test_case.run(0x11)) return "it does not run";
    const testing::Cells& cells = mask.cells.front();
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t row = 0; row < kQLen; ++row) {
        const bool has_keys = row != kEmptyRow && clean.lse().get(0, row, h) > -INFINITY;
        const bool sees =
            where == Where::q ? h == 1 && row == index && has_keys : cells.get(row, index);
        const double lse = test_case.lse().get(0, row, h), clean_lse = clean.lse().get(0, row, h);
        const bool is_lse_right = sees && where != Where::v
                                      ? std::isnan(lse)
                                      : lse == clean_lse || std::fabs(lse - clean_lse) < 1e-3;
        if (!is_lse_right)
          return fmt::format("h {}, row {} (sees it: {}): lse {}, without NaN {}", h, row, sees,
                             lse, clean_lse);
        for (std::int64_t d = 0; d < GetParam(); ++d) {
          const double out = test_case.out().get(0, row, h, d),
                       good = clean.out().get(0, row, h, d);
          if (where == Where::v && d == kColumn && !sees && std::isnan(out) && has_keys) continue;
          const bool is_nan = sees && (where != Where::v || d == kColumn);
          if (is_nan ? std::isnan(out) : std::fabs(out - good) <= 0.02 * (1 + std::fabs(good)))
            continue;
          return fmt::format("h {}, row {}, d {} (sees it: {}): {}, without NaN {}", h, row, d,
                             sees, out, good);
        }
      }
    }
    return {};
  }

  gpu_test::GpuFixture fixture_;
};

TEST_P(AttentionNanOnGpu, InAQueryRowStaysInThatRow) {
  for (const MaskCase& mask : {mask_of_tiles(), mask_of_columns()}) {
    for (const std::int64_t row :
         {std::int64_t{0}, std::int64_t{40}, kOneKeyRow, kEmptyRow, std::int64_t{128}, kQLen - 1})
      EXPECT_EQ(wrong_after(mask, Where::q, row), "") << mask.name << " row " << row;
  }
}

TEST_P(AttentionNanOnGpu, InAKeyReachesTheRowsThatSeeItOnly) {
  for (const MaskCase& mask : {mask_of_tiles(), mask_of_columns()}) {
    for (const std::int64_t key : kKeys)
      EXPECT_EQ(wrong_after(mask, Where::k, key), "") << mask.name << " key " << key;
  }
}

TEST_P(AttentionNanOnGpu, InABiasReachesTheRowsThatSeeItOnly) {
  for (const MaskCase& mask : {mask_of_tiles(), mask_of_columns()}) {
    for (const std::int64_t key : kKeys)
      EXPECT_EQ(wrong_after(mask, Where::bias, key), "") << mask.name << " key " << key;
  }
}

TEST_P(AttentionNanOnGpu, InAValueReachesItsColumnOfRowsThatVisitItsTile) {
  for (const MaskCase& mask : {mask_of_tiles(), mask_of_columns()}) {
    for (const std::int64_t key : kKeys)
      EXPECT_EQ(wrong_after(mask, Where::v, key), "") << mask.name << " key " << key;
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDim, AttentionNanOnGpu, ::testing::Values(64, 128));

}  // namespace
}  // namespace fdma
