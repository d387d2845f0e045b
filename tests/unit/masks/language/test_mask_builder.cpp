#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "fdma/masks/mask_builder.hpp"
#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/parse.hpp"

namespace fdma::mask {
namespace {

// Returns the text of the expression, after a check that it parses to the same expression.
std::string text_of(const BoolExpr& mask) {
  const auto expr = build(mask);
  if (!expr) return "error: " + expr.error().message;
  EXPECT_EQ(expr->text(), to_text(*expr));
  const auto parsed = parse_mask(to_text(*expr));
  EXPECT_TRUE(parsed.has_value() && *parsed == *expr) << to_text(*expr);
  return to_text(*expr);
}

TEST(MaskBuilder, BuildsNamedMasks) {
  EXPECT_EQ(text_of(causal()), "causal");
  EXPECT_EQ(text_of(window(1024)), "window(1024)");
  EXPECT_EQ(text_of(window(inf, 3)), "window(inf, 3)");
  EXPECT_EQ(text_of(window(2, inf)), "window(2, inf)");
  EXPECT_EQ(text_of(window(h, 3 + b)), "window(h, 3 + b)");
  EXPECT_EQ(text_of(dilated(8, 2)), "dilated(8, 2)");
  EXPECT_EQ(text_of(documents_ids("t")), "documents(ids=@t)");
  EXPECT_EQ(text_of(documents_lengths("t")), "documents(lengths=@t)");
  EXPECT_EQ(text_of(documents_cu_seqlens("t")), "documents(cu_seqlens=@t)");
  EXPECT_EQ(text_of(documents_q_k_ids("a", "b")), "documents(q_ids=@a, k_ids=@b)");
  EXPECT_EQ(text_of(prefix(4)), "prefix(4)");
  EXPECT_EQ(text_of(prefix_table("p")), "prefix(@p)");
  EXPECT_EQ(text_of(prefix_documents("t", "p")), "prefix_documents(ids=@t, prefix=@p)");
  EXPECT_EQ(text_of(share_question("t", "a")), "share_question(ids=@t, parts=@a)");
  EXPECT_EQ(text_of(causal_blockwise("t")), "causal_blockwise(ids=@t)");
  EXPECT_EQ(text_of(chunked(4)), "chunked(4)");
  EXPECT_EQ(text_of(block_causal(4)), "block_causal(4)");
  EXPECT_EQ(text_of(global(4)), "global(4)");
  EXPECT_EQ(text_of(global_table("t")), "global(@t)");
  EXPECT_EQ(text_of(sink(4)), "sink(4)");
  EXPECT_EQ(text_of(padding("t")), "padding(lengths=@t)");
  EXPECT_EQ(text_of(padding("t", Side::left)), "padding(lengths=@t, side=left)");
  EXPECT_EQ(text_of(intervals("b", "e")), "intervals(begin=@b, end=@e)");
  EXPECT_EQ(text_of(rows("b", "e")), "rows(begin=@b, end=@e)");
  EXPECT_EQ(text_of(tiles("t", 64, 128)), "tiles(@t, 64, 128)");
  EXPECT_EQ(text_of(tree("t")), "tree(parents=@t)");
  EXPECT_EQ(text_of(block_diffusion(8, 2)), "block_diffusion(8, 2)");
  EXPECT_EQ(text_of(natten2d(8, 9, 3, 5)), "natten2d(8, 9, 3, 5)");
  EXPECT_EQ(text_of(natten3d(4, 8, 9, 3, 3, 5)), "natten3d(4, 8, 9, 3, 3, 5)");
  EXPECT_EQ(text_of(bits("t")), "bits(@t)");
  EXPECT_EQ(text_of(topk("s", 64, causal())), "topk(@s, 64, among=causal)");
}

TEST(MaskBuilder, CompletesTheShorthandOfTopk) {
  using ::testing::HasSubstr;
  EXPECT_EQ(text_of(causal() & topk("s", 64)), "topk(@s, 64, among=causal)");
  EXPECT_EQ(text_of(causal() & topk("s", table("w")) & window(9)),
            "topk(@s, @w, among=causal & window(9))");
  EXPECT_THAT(text_of(topk("s", 64)), HasSubstr("needs among="));
  EXPECT_THAT(text_of(causal() | topk("s", 64)), HasSubstr("needs among="));
  EXPECT_THAT(text_of(causal() & topk("s", 64) & topk("t", 64)), HasSubstr("the only topk"));
}

TEST(MaskBuilder, BuildsExpressions) {
  EXPECT_EQ(text_of(causal() & (window(1024) | sink(4))), "causal & (window(1024) | sink(4))");
  EXPECT_EQ(text_of((k <= q) & (q - k < 16 * shl(1, h % 8))),
            "k <= q & q - k < 16 * shl(1, h % 8)");
  EXPECT_EQ(text_of(~(q < k) ^ !causal()), "~q < k ^ ~causal");
  EXPECT_EQ(text_of(-q / 2 + abs(k) * 3 != kv_len), "-q // 2 + abs(k) * 3 != kv_len");
  EXPECT_EQ(text_of(min(q, 3) >= max(k, q_len)), "min(q, 3) >= max(k, q_len)");
  EXPECT_EQ(text_of(clamp(pos, 0, 9) > shr(k, 1)), "clamp(pos, 0, 9) > shr(k, 1)");
  EXPECT_EQ(text_of(bitand_(q, k) == bitor_(q, bitxor(k, 1))),
            "bitand(q, k) == bitor(q, bitxor(k, 1))");
  EXPECT_EQ(text_of(where(causal(), q, 3) < int_(k == 3)), "where(causal, q, 3) < int(k == 3)");
  EXPECT_EQ(text_of(where(causal(), k < 3, true)), "where(causal, k < 3, true)");
  EXPECT_EQ(text_of(at(causal(), k, q)), "at(causal, q=k, k=q)");
  EXPECT_EQ(text_of((q < 3) == (k < 3)), "(q < 3) == (k < 3)");
  EXPECT_EQ(text_of(-IntExpr(5) < -5), "-(5) < -5");
}

TEST(MaskBuilder, BuildsLookUps) {
  EXPECT_EQ(text_of(table("doc")(q) == table("doc")(k)), "@doc[q] == @doc[k]");
  EXPECT_EQ(text_of(table("seen")(b, q / 2) & (table("t")(k) == 3)),
            "@seen[b, q // 2] & @t[k] == 3");
  EXPECT_EQ(text_of(window(table("w")) & table("m")(0, h, q, k)), "window(@w) & @m[0, h, q, k]");
}

TEST(MaskBuilder, BuildsLoops) {
  EXPECT_EQ(text_of(any_of("i", 4, [](IntExpr i) { return table("b")(i, k) <= q; })),
            "any(i in 4 : @b[i, k] <= q)");
  EXPECT_EQ(text_of(all_of("i", h, loop("i") < k)), "all(i in h : i < k)");
}

TEST(MaskBuilder, SharesValuesThatAreUsedTwice) {
  const BoolExpr near = (k <= q) & (q - k < 2);
  const auto expr = build(near | at(near, k, q));
  ASSERT_TRUE(expr.has_value());
  EXPECT_EQ(to_text(*expr), "let x1 = k <= q & q - k < 2; x1 | at(x1, q=k, k=q)");
}

TEST(MaskBuilder, RejectsWhatOnlyTheWholeShows) {
  using ::testing::HasSubstr;
  EXPECT_THAT(text_of(window(q)), HasSubstr("error: window: w is one number"));
  EXPECT_THAT(text_of(loop("i") < 3), HasSubstr("\"i\" is used outside"));
  EXPECT_THAT(text_of(any_of("k", 3, loop("k") < 3)), HasSubstr("word of the language"));
  EXPECT_THAT(text_of(any_of("i", loop("i"), loop("i") < 3)), HasSubstr("mentions i"));
  EXPECT_THAT(text_of(any_of("i", 2, any_of("i", 3, loop("i") < 3))), HasSubstr("inside it"));
  constexpr const char* kOneBound = "the bound of 'any' is one number for every cell";
  EXPECT_THAT(text_of(any_of("i", 4, any_of("j", loop("i"), loop("j") == k))),
              HasSubstr(kOneBound));
  EXPECT_THAT(text_of(any_of("i", q + 1, loop("i") == k)), HasSubstr(kOneBound));
  EXPECT_THAT(text_of(any_of("i", 4, any_of("j", q_len, loop("j") + loop("i") == k))),
              Not(HasSubstr(kOneBound)));
  EXPECT_THAT(text_of(table("a b")(q)), HasSubstr("table \"a b\""));
  EXPECT_THAT(text_of(documents_ids("")), HasSubstr("table \"\""));
  BoolExpr nested = causal();
  for (int i = 0; i <= kMaxLoopDepth; ++i) nested = any_of(fmt::format("i{}", i), 2, nested);
  EXPECT_THAT(text_of(nested), HasSubstr("16 deep"));
}

TEST(MaskBuilder, TakesAnyDepth) {
  BoolExpr deep = causal();
  for (int i = 0; i < 200000; ++i) deep = ~deep;
  const auto expr = build(deep);
  ASSERT_TRUE(expr.has_value());
  EXPECT_EQ(expr->nodes().size(), 200001u);
  BoolExpr doubled = causal() | (k < 3);
  for (int i = 0; i < 100; ++i) doubled = doubled & (doubled ^ (k == i));
  EXPECT_TRUE(build(doubled).has_value());
}

}  // namespace
}  // namespace fdma::mask
