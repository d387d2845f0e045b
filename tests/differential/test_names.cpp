// Every name of the language at every kind of length and block, in every format.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_check.hpp"
#include "named_cases.hpp"

namespace fdma::differential {
namespace {

constexpr BlockShape kBlocks[] = {{16, 16},  {16, 256},  {48, 80},  {64, 128},
                                  {128, 64}, {128, 128}, {256, 256}};

MaskShape make_shape(std::int64_t batches, std::int64_t heads, std::vector<std::int64_t> q_lens,
                     std::vector<std::int64_t> kv_lens) {
  MaskShape shape;
  shape.num_batches = batches;
  shape.num_heads = heads;
  shape.q_lens = std::move(q_lens);
  shape.kv_lens = std::move(kv_lens);
  return shape;
}

// Every length of interest on each side; q_len below, at and above kv_len; per element.
std::vector<MaskShape> shapes() {
  return {make_shape(1, 1, {1}, {1}),         make_shape(1, 2, {1}, {300}),
          make_shape(1, 1, {15}, {16}),       make_shape(2, 1, {17}, {15}),
          make_shape(1, 1, {16}, {129}),      make_shape(1, 1, {127}, {127}),
          make_shape(1, 3, {128}, {128}),     make_shape(1, 1, {129}, {300}),
          make_shape(1, 1, {300}, {129}),     make_shape(1, 1, {300}, {300}),
          make_shape(1, 1, {300}, {16}),      make_shape(3, 2, {17, 128, 1}, {128, 127, 15}),
          make_shape(2, 1, {129}, {300, 64}), make_shape(2, 2, {0, 40}, {33, 0})};
}

constexpr std::int64_t kLengths[] = {1, 15, 16, 17, 127, 128, 129, 300};

class Names : public ::testing::TestWithParam<std::size_t> {
 protected:
  // False after a difference.
  bool check(const MaskShape& shape, std::span<const BlockShape> blocks) {
    const NamedCase& named = named_cases()[GetParam()];
    Random random(++seed_ + GetParam() * 1000);
    reference::TableSet tables;
    const std::string text = named.make(random, shape, tables);
    if (text.empty()) return true;
    const Result<MaskExpr> expr = parse_mask(text);
    EXPECT_TRUE(expr) << expr.error().message;
    if (!expr) return false;
    const Tables views = tables.views();
    const Expectation expected = expect_mask(*expr, views, shape);
    EXPECT_FALSE(expected.is_error) << text;
    for (const BlockShape& block : blocks) {
      CheckOptions options;
      options.formats = ++turn_ % 2 == 0;
      options.threads = turn_ % 3 == 0;
      const std::string report = check_mask(*expr, views, expected, block, options, counts_);
      EXPECT_EQ(report, "") << named.label << ": " << text << "\nblock " << block.block_q << "x"
                            << block.block_kv << ", q_len " << shape.q_lens[0] << ", kv_len "
                            << shape.kv_lens[0] << ", batches " << shape.num_batches << ", heads "
                            << shape.num_heads;
      if (!report.empty()) return false;
    }
    return true;
  }

  CheckCounts counts_;

 private:
  std::uint64_t seed_ = 0;
  std::size_t turn_ = 0;
};

TEST_P(Names, AgreeWithTheOracle) {
  for (const MaskShape& shape : shapes())
    if (!check(shape, kBlocks)) return;
  std::size_t turn = GetParam();
  for (const std::int64_t q_len : kLengths)
    for (const std::int64_t kv_len : kLengths)
      if (!check(make_shape(1, 1, {q_len}, {kv_len}), {&kBlocks[turn++ % std::size(kBlocks)], 1}))
        return;
  std::printf("[ COUNTS   ] %s: %lld masks, %lld in interval form, %lld in parametric form\n",
              named_cases()[GetParam()].label.c_str(), static_cast<long long>(counts_.masks),
              static_cast<long long>(counts_.in_interval_form),
              static_cast<long long>(counts_.in_parametric_form));
}

INSTANTIATE_TEST_SUITE_P(All, Names, ::testing::Range<std::size_t>(0, named_cases().size()),
                         [](const auto& test) {
                           std::string label = named_cases()[test.param].label;
                           for (char& c : label)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return std::to_string(test.param) + "_" + label;
                         });

TEST(NamedCases, HaveEveryNameOfTheLanguage) {
  std::string all;
  const MaskShape shape = make_shape(1, 1, {16}, {16});
  for (const NamedCase& named : named_cases()) {
    Random random(1);
    reference::TableSet tables;
    all += named.make(random, shape, tables) + "\n";
  }
  for (const NameForm& form : name_forms()) {
    if (form.op != ExprOp::named || form.form == MaskForm::topk) continue;
    EXPECT_NE(all.find(form.name), std::string::npos) << form.signature;
  }
}

}  // namespace
}  // namespace fdma::differential
