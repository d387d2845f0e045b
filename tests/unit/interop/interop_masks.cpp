#include "interop_masks.hpp"

#include <gtest/gtest.h>

#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"

namespace fdma::testing {
namespace {

BlockMask compile(const std::string& spec, const Tables& tables, const MaskShape& shape,
                  BlockShape block) {
  const Result<MaskExpr> expr = parse_mask(spec);
  EXPECT_TRUE(expr) << spec;
  LowerOptions options;
  options.block = block;
  Result<BlockMask> mask = fdma::compile(*expr, tables, shape, options);
  EXPECT_TRUE(mask) << spec;
  return *std::move(mask);
}

}  // namespace

std::vector<NamedBlockMask> compiled_suite(std::int64_t seq_len) {
  std::vector<NamedBlockMask> masks;
  for (const suite::SuiteMask& mask : suite::mask_suite(seq_len)) {
    masks.push_back({mask.name, compile(mask.spec, mask.bound_tables(), mask.shape, {})});
  }
  return masks;
}

BlockMask compiled(const std::string& spec, std::int64_t q_len, std::int64_t kv_len,
                   BlockShape block, std::int64_t num_heads) {
  return compile(spec, {}, {1, num_heads, {q_len}, {kv_len}}, block);
}

}  // namespace fdma::testing
