#include "backend/mask_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "fdma/formats/convert.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"
#include "oracle.hpp"

namespace fdma::testing {
namespace {

// Returns the value. A case that cannot be built is a defect of the test and ends it with a
// message.
template <class T>
T must(const std::string& what, Result<T> result) {
  if (!result) throw std::runtime_error(what + ": " + result.error().message);
  return *std::move(result);
}

MaskCase without_cells(const suite::SuiteMask& mask, const MaskExpr& expr, BlockShape block) {
  LowerOptions options;
  options.block = block;
  options.num_threads = 1;
  MaskCase result;
  result.name = fmt::format("{} {}x{} in {}x{}", mask.name, mask.shape.max_q_len(),
                            mask.shape.max_kv_len(), block.block_q, block.block_kv);
  result.mask = must(mask.name, compile(expr, mask.bound_tables(), mask.shape, options));
  return result;
}

}  // namespace

MaskCase suite_case(const suite::SuiteMask& mask, BlockShape block) {
  const MaskExpr expr = must(mask.name, parse_mask(mask.spec));
  MaskCase result = without_cells(mask, expr, block);
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < mask.shape.num_heads; ++h) {
      const auto values =
          must(mask.name, reference::oracle_cells(expr, mask.bound_tables(), mask.shape, b, h));
      Cells cells(mask.shape.q_len(b), mask.shape.kv_len(b));
      std::copy(values.begin(), values.end(), cells.values.begin());
      result.cells.push_back(std::move(cells));
    }
  }
  return result;
}

MaskCase compiled_case(const suite::SuiteMask& mask, BlockShape block) {
  MaskCase result = without_cells(mask, must(mask.name, parse_mask(mask.spec)), block);
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < mask.shape.num_heads; ++h)
      result.cells.push_back(cells_of(result.mask, result.mask.group(b, h)));
  }
  return result;
}

std::vector<MaskCase> suite_cases(std::int64_t q_len, std::int64_t kv_len, BlockShape block) {
  std::vector<MaskCase> cases;
  for (suite::SuiteMask& mask : suite::mask_suite(kv_len)) {
    mask.shape.q_lens = {q_len};
    cases.push_back(suite_case(mask, block));
  }
  return cases;
}

MaskCase combined(std::string name, std::int64_t num_batches, std::int64_t num_heads,
                  const std::vector<MaskCase>& cases, BlockShape block) {
  MaskShape shape;
  shape.num_batches = num_batches;
  shape.num_heads = num_heads;
  MaskCase result;
  result.name = std::move(name);
  std::vector<SegmentMask> masks;
  for (const MaskCase& one : cases) {
    masks.push_back(segment_of_group(one.mask, 0, block));
    result.cells.push_back(one.cells.front());
  }
  for (std::int64_t b = 0; b < num_batches; ++b) {
    const SegmentMask& first = masks[static_cast<std::size_t>(b * num_heads)];
    shape.q_lens.push_back(first.q_len);
    shape.kv_lens.push_back(first.kv_len);
  }
  result.mask = make_block_mask(shape, block, std::move(masks));
  return result;
}

MaskCase case_of(std::string name, const Cells& cells, BlockShape block) {
  return {std::move(name), block_mask_of(cells, block), {cells}};
}

MaskCase random_case(std::mt19937& rng, std::int64_t num_batches, std::int64_t num_heads,
                     std::int64_t max_len, BlockShape block) {
  std::vector<MaskCase> cases;
  for (std::int64_t b = 0; b < num_batches; ++b) {
    const std::int64_t q_len = pick(rng, 0, max_len), kv_len = pick(rng, 0, max_len);
    for (std::int64_t h = 0; h < num_heads; ++h) {
      cases.push_back(case_of("", random_cells(rng, q_len, kv_len), block));
    }
  }
  MaskCase result = combined("random", num_batches, num_heads, cases, block);
  const MaskFormat format =
      kMaskFormats[static_cast<std::size_t>(pick(rng, 0, std::ssize(kMaskFormats) - 1))];
  // The conversion may fail, since not every mask has a closed form.
  if (auto other = convert(result.mask, format, block)) result.mask = *std::move(other);
  result.name = fmt::format("random {} of {}x{}", to_string(result.mask.format()), block.block_q,
                            block.block_kv);
  return result;
}

AttentionShape shape_for(const BlockMask& mask, std::int64_t batch, std::int32_t heads_q,
                         std::int32_t heads_kv) {
  AttentionShape shape;
  shape.batch = mask.shape.num_batches == 1 ? batch : mask.shape.num_batches;
  shape.heads_q =
      mask.shape.num_heads == 1 ? heads_q : static_cast<std::int32_t>(mask.shape.num_heads);
  shape.heads_kv = heads_kv;
  shape.q_lens = mask.shape.q_lens;
  shape.kv_lens = mask.shape.kv_lens;
  return shape;
}

Cells random_live_ranges(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len, int most) {
  Cells cells(q_len, kv_len);
  for (std::int64_t k = 0; k < kv_len; ++k) {
    std::int64_t q = pick(rng, 0, q_len / 2);
    for (std::int64_t i = pick(rng, 0, most); i > 0 && q < q_len; --i) {
      const std::int64_t end = std::min(q_len, q + pick(rng, 1, q_len));
      for (; q < end; ++q) cells.at(q, k) = 1;
      q += pick(rng, 1, 1 + q_len / 4);
    }
  }
  return cells;
}

}  // namespace fdma::testing
