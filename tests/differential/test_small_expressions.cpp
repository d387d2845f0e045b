// Exhaustive: every comparison of two terms of a small grammar, and pairs of them, at all lengths
// 1 to 5.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "fdma/masks/parse.hpp"
#include "mask_check.hpp"

namespace fdma::differential {
namespace {

MaskShape square_or_not(std::int64_t q_len, std::int64_t kv_len) {
  MaskShape shape;
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  return shape;
}

void check_text(const std::string& text, std::int64_t q_len, std::int64_t kv_len,
                CheckCounts& counts) {
  const Result<MaskExpr> expr = parse_mask(text);
  ASSERT_TRUE(expr) << expr.error().message;
  const MaskShape shape = square_or_not(q_len, kv_len);
  CheckOptions options;
  options.formats = options.threads = false;
  const Expectation expected = expect_mask(*expr, {}, shape);
  const std::string report = check_mask(*expr, {}, expected, {16, 16}, options, counts);
  ASSERT_EQ(report, "") << text << "\nq_len " << q_len << ", kv_len " << kv_len;
}

void print(const CheckCounts& counts) {
  std::printf("[ COUNTS   ] %lld masks, %lld undefined, %lld in interval form\n",
              static_cast<long long>(counts.masks), static_cast<long long>(counts.undefined),
              static_cast<long long>(counts.in_interval_form));
}

std::vector<std::string> terms() {
  const std::vector<std::string> leaves = {"q", "k", "pos", "0", "2", "-1"};
  std::vector<std::string> all = leaves;
  for (const std::string& x : {std::string("q"), std::string("k"), std::string("pos")}) {
    for (const char* op : {"+", "-", "*", "//", "%"})
      for (const char* y : {"q", "k", "2", "3"}) all.push_back(x + " " + op + " " + y);
    all.push_back("abs(" + x + " - 2)");
  }
  all.push_back("abs(q - k)");
  all.push_back("min(q, k)");
  all.push_back("max(pos, k)");
  all.push_back("where(q < k, q, 3)");
  all.push_back("int(q == k)");
  all.push_back("(q - k) % 3");
  return all;
}

TEST(SmallExpressions, EveryComparison) {
  const std::vector<std::string> all = terms();
  CheckCounts counts;
  std::size_t turn = 0;
  for (const std::string& x : all)
    for (const char* op : {"<", "<=", "==", "!="})
      for (const std::string& y : all) {
        const std::string text = x + " " + op + " " + y;
        // Six of the 25 pairs of lengths each, in turn.
        for (int step = 0; step < 6; ++step, ++turn)
          check_text(text, 1 + static_cast<std::int64_t>(turn % 5),
                     1 + static_cast<std::int64_t>(turn / 5 % 5), counts);
        if (HasFatalFailure()) return;
      }
  print(counts);
}

TEST(SmallExpressions, EveryPairOfConditionsAtEveryLength) {
  const std::vector<std::string> conditions = {
      "k <= pos", "q == k",          "q - k < 2",  "k % 2 == q % 2", "q // k == 1",
      "k < 3",    "abs(q - k) == 1", "q * k != 2", "true",           "q // 2 < k // 2"};
  CheckCounts counts;
  for (const std::string& x : conditions)
    for (const char* op : {"&", "|", "^", "=="})
      for (const std::string& y : conditions) {
        const std::string text = "(" + x + ") " + op + " (~(" + y + "))";
        for (std::int64_t q_len = 1; q_len <= 5; ++q_len)
          for (std::int64_t kv_len = 1; kv_len <= 5; ++kv_len) {
            check_text(text, q_len, kv_len, counts);
            if (HasFatalFailure()) return;
          }
      }
  print(counts);
}

}  // namespace
}  // namespace fdma::differential
