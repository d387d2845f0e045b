// Hugging Face's padding masks from and to a mask.
//
// Import writes each key's query interval: all rows, or the rows from its own position on. Export
// reads attention_mask off the last query row, which sees every key that is no padding in either
// form. It then imports that and compares: exact, at the cost of closed forms.
#include "fdma/formats/interop/hf_padding.hpp"

#include <algorithm>

#include "fdma/base/memory.hpp"
#include "fdma/formats/convert.hpp"
#include "interop/cell_text.hpp"
#include "interop/checks.hpp"

namespace fdma {
namespace {

using interop::wrong;

Result<void> check(const HfPadding& padding) {
  FDMA_TRY_VOID(interop::check_length("q_len", padding.q_len));
  FDMA_TRY_VOID(interop::check_length("kv_len", padding.kv_len));
  FDMA_TRY_VOID(interop::check_pairs(padding.num_batches, padding.num_heads));
  FDMA_TRY_VOID(interop::check_extent("attention_mask", padding.attention_mask.size(),
                                      padding.num_batches, padding.kv_len));
  const auto is_wrong = [](std::uint8_t value) { return value > 1; };
  const auto found =
      std::find_if(padding.attention_mask.begin(), padding.attention_mask.end(), is_wrong);
  if (found == padding.attention_mask.end()) return {};
  const std::int64_t i = found - padding.attention_mask.begin();
  return wrong(fmt::format("attention_mask[{}, {}]: {}, expected 1 (a token) or 0 (padding)",
                           i / padding.kv_len, i % padding.kv_len, *found));
}

ColumnIntervals columns_of(const HfPadding& padding, std::int64_t batch) {
  ColumnIntervals columns;
  columns.q_len = padding.q_len;
  columns.kv_len = padding.kv_len;
  columns.offsets.reserve(static_cast<std::size_t>(padding.kv_len) + 1);
  columns.offsets.push_back(0);
  const auto end = static_cast<std::int32_t>(padding.q_len);
  const std::int64_t first_position = padding.kv_len - padding.q_len;
  for (std::int64_t k = 0; k < padding.kv_len; ++k) {
    const std::int64_t begin =
        padding.is_causal ? std::max<std::int64_t>(k - first_position, 0) : 0;
    if (padding.attention_mask[static_cast<std::size_t>(batch * padding.kv_len + k)] == 1 &&
        begin < end) {
      columns.intervals.push_back({static_cast<std::int32_t>(begin), end});
    }
    columns.offsets.push_back(static_cast<std::int64_t>(columns.intervals.size()));
  }
  return columns;
}

// The keys that the last query row sees.
void read_last_row(const BlockMask& mask, std::int64_t batch, HfPadding& padding) {
  const SegmentMask segment = segment_of_group(mask, mask.group(batch, 0), mask.block);
  std::vector<Interval> intervals;
  row_intervals_of(segment, padding.q_len - 1, intervals);
  for (const Interval& keys : intervals) {
    std::fill(padding.attention_mask.begin() + batch * padding.kv_len + keys.begin,
              padding.attention_mask.begin() + batch * padding.kv_len + keys.end, std::uint8_t{1});
  }
}

}  // namespace

Result<HfPadding> hf_padding_from_block_mask(const BlockMask& mask, std::optional<bool> is_causal) {
  FDMA_TRY_VOID(interop::check_pairs(mask.shape.num_batches, mask.shape.num_heads));
  FDMA_TRY_VOID(interop::check_uniform(mask.shape, "a padding mask"));
  FDMA_TRY_VOID(interop::check_equal_heads(mask, "a padding mask"));
  HfPadding padding;
  padding.num_batches = mask.shape.num_batches;
  padding.num_heads = mask.shape.num_heads;
  padding.q_len = mask.shape.q_lens.front();
  padding.kv_len = mask.shape.kv_lens.front();
  FDMA_TRY_VOID(check_memory(padding.num_batches * padding.kv_len, "attention_mask"));
  padding.attention_mask.assign(static_cast<std::size_t>(padding.num_batches * padding.kv_len),
                                padding.q_len == 0 ? 1 : 0);
  for (std::int64_t batch = 0; padding.q_len > 0 && batch < padding.num_batches; ++batch) {
    read_last_row(mask, batch, padding);
  }
  std::string reason;
  for (const bool causal : {false, true}) {
    if (is_causal.value_or(causal) != causal) continue;
    padding.is_causal = causal;
    FDMA_TRY(const BlockMask read, block_mask_from_hf_padding(padding, mask.block));
    const auto cell =
        equal_cells(mask, read) ? std::nullopt : interop::first_difference(mask, read);
    if (!cell) return padding;
    reason += fmt::format("{}{} has another value at {}", reason.empty() ? "" : "; ",
                          causal ? "causal padding" : "padding alone", interop::cell_text(*cell));
  }
  return interop::unsupported(fmt::format(
      "a padding mask hides the same keys from all query rows, but for causality: {}", reason));
}

Result<BlockMask> block_mask_from_hf_padding(const HfPadding& padding, BlockShape block) {
  FDMA_TRY_VOID(validate(block));
  FDMA_TRY_VOID(check(padding));
  std::vector<SegmentMask> masks;
  std::vector<std::int32_t> mask_of;
  for (std::int64_t batch = 0; batch < padding.num_batches; ++batch) {
    // Elements of a batch are often padded alike, so the row before is compared first.
    const auto row = padding.attention_mask.begin() + batch * padding.kv_len;
    const bool is_repeated =
        batch > 0 && std::equal(row, row + padding.kv_len, row - padding.kv_len);
    if (!is_repeated) masks.push_back(segment_from_columns(columns_of(padding, batch), block));
    mask_of.insert(mask_of.end(), static_cast<std::size_t>(padding.num_heads),
                   static_cast<std::int32_t>(masks.size()) - 1);
  }
  return make_block_mask(
      {padding.num_batches, padding.num_heads, {padding.q_len}, {padding.kv_len}}, block,
      std::move(masks), mask_of);
}

}  // namespace fdma
