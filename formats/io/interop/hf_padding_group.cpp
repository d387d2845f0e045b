// Hugging Face's padding mask as a group: the tokenizer's result, and how the model applies it.
#include "fdma/io/interop/hf_padding_group.hpp"

#include <fmt/format.h>

#include "io/interop/fields.hpp"

namespace fdma {

Result<HfPadding> hf_padding_from_group(const InteropGroup& group) {
  io::InteropFields fields(group);
  HfPadding padding;
  FDMA_TRY(const OwnedTable* array, fields.array("attention_mask", 2));
  padding.num_batches = array->extents[0];
  padding.kv_len = array->extents[1];
  FDMA_TRY(padding.attention_mask, fields.uint8_values("attention_mask", 2));
  FDMA_TRY(const std::int64_t causal, fields.integer("causal"));
  if (causal != 0 && causal != 1) {
    return Error{ErrorCode::invalid_argument, fmt::format("causal: {}, expected 0 or 1", causal)};
  }
  padding.is_causal = causal == 1;
  FDMA_TRY(padding.q_len, fields.integer("q_len", padding.kv_len));
  FDMA_TRY(padding.num_heads, fields.integer("num_heads", 1));
  FDMA_TRY_VOID(fields.expect_no_more());
  return padding;
}

InteropGroup group_from_hf_padding(const HfPadding& padding) {
  InteropGroup group;
  const std::vector<std::int64_t> values(padding.attention_mask.begin(),
                                         padding.attention_mask.end());
  group.arrays["attention_mask"] = io::array_of(values, {padding.num_batches, padding.kv_len});
  group.arrays["causal"] = io::scalar_of(padding.is_causal);
  group.arrays["q_len"] = io::scalar_of(padding.q_len);
  group.arrays["num_heads"] = io::scalar_of(padding.num_heads);
  return group;
}

}  // namespace fdma
